"""Where a host's name leads: all its addresses, used in turn, asked for again from time to time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from itertools import zip_longest
from typing import Final

#: Seconds for which addresses are used. Large stores change theirs by the minute, to spread their load.
KEPT: Final = 30.0

#: Addresses that one connection is tried at, at most.
TRIED: Final = 3


#: Seconds for which those that are known are used once more where looking the name up again fails, or takes so long:
#: they have worked until now, and what fails is more often the name server than they are.
KEPT_ON: Final = 5.0
LOOKING: Final = 2.0


class Addresses:
    """The addresses of one host. One lookup at a time, whoever asks."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._found: list[str] = []
        self._until = 0.0
        self._turn = 0
        self._lookup = asyncio.Lock()
        self._failure: OSError | None = None  # of the last lookup

    async def in_turn(self) -> list[str]:
        """The addresses to try for the next connection, best first. `OSError` if the name leads nowhere."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._until:
            before = self._failure
            async with self._lookup:
                if self._failure is not before and self._failure is not None:  # of the lookup that this has waited for
                    raise _copied(self._failure)
                if loop.time() >= self._until:
                    await self._look()
        self._turn += 1
        return _mixed(self._found, self._turn - 1)[:TRIED]

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if self._found:  # the others go on with these, and so do all if this fails, or is given up
            self._until = loop.time() + KEPT_ON
        try:
            async with asyncio.timeout(LOOKING if self._found else None):
                found = await self._resolve()
        except OSError as error:
            if self._found:
                return
            self._failure = _copied(error)
            raise
        self._found, self._failure = found, None
        self._until = loop.time() + KEPT

    async def _resolve(self) -> list[str]:
        try:
            ipaddress.ip_address(self._host)
        except ValueError:
            pass
        else:
            return [self._host]
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _copied(error: OSError) -> OSError:
    """To be raised for somebody else, without what the traceback of this one holds."""
    return type(error)(*error.args)


def _mixed(found: list[str], turn: int) -> list[str]:
    """One of each family after the other (RFC 8305, 4), since a host may have no way to one of them; each in turn."""
    families: dict[bool, list[str]] = {}  # the first is the one that the system prefers
    for address in found:
        families.setdefault(":" in address, []).append(address)
    turned = [each[turn % len(each) :] + each[: turn % len(each)] for each in families.values()]
    return [address for row in zip_longest(*turned) for address in row if address is not None]
