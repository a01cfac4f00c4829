"""Where a host's name leads: all its addresses, used in turn, asked for again from time to time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

#: Seconds for which addresses are used. Large stores change theirs by the minute, to spread their load.
KEPT: Final = 30.0

#: Addresses that one connection is tried at, at most.
TRIED: Final = 3


class Addresses:
    """The addresses of one host. One lookup at a time, whoever asks."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._found: list[str] = []
        self._until = 0.0
        self._turn = 0
        self._lookup = asyncio.Lock()

    async def in_turn(self) -> list[str]:
        """The addresses to try for the next connection, best first. `OSError` if the name leads nowhere."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._until:
            async with self._lookup:
                if loop.time() >= self._until:
                    self._found = await self._resolve()
                    self._until = loop.time() + KEPT
        first = self._turn % len(self._found)
        self._turn += 1
        return (self._found[first:] + self._found[:first])[:TRIED]

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
