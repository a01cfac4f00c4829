"""Connections to one origin, for one event loop: how many, which is used next, and when a request is given up.

*Places.* At most `max_connections` requests are under way; the others wait for a place, first come, first served. Who
has a place takes the connection that was used last (the one least likely to have been closed by the server, and the
others may rest), or makes a new one.

*Closed meanwhile.* A server may close a kept connection just when the next request is written. If not one byte of
an answer has come on a connection that was used before, the request is sent once more, on a new one: GETs may be.

*Forgotten meanwhile.* What stands between may forget a connection that rests, and swallow the next request: that would
be seen only when the time for its answer is over. So one that has rested for long is not used again.

*Time.* One timer for all requests looks at how they go (see `watch`). It runs only while there are any.

There are no tasks: connections are made by whoever needs one. A request that is cancelled closes its connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl as tls
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from aloader.errors import BrokenTransfer, NotOpen, StoreUnreachable
from aloader.options import KIB
from aloader.storage.wire.addresses import Addresses
from aloader.storage.wire.answer import Answer, Reply
from aloader.storage.wire.connection import Connection
from aloader.storage.wire.watch import Patience, Progress, Verdict

T = TypeVar("T")

#: Bytes that are read before it is known how long the body is: a head and a small object.
SCRATCH: Final = 256 * KIB

#: Seconds for which a connection may rest and be used again: less than those after which firewalls and load balancers
#: forget it, and most servers close it. A new one takes some milliseconds. (It is aiohttp's number, too.)
RESTED: Final = 15.0

#: What this machine or process has no more of, or does not allow itself, when a connection is to be made.
OWN: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EACCES}

PORTS: Final = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Whom to talk to."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """What goes into the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class Pool:
    """To be made and used on one running loop. `ssl` is the context for https."""

    def __init__(
        self,
        origin: Origin,
        *,
        max_connections: int,
        connect_timeout: float,
        patience: Patience,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        from httptools import HttpResponseParser

        self._origin = origin
        self._loop = asyncio.get_running_loop()
        self._parser = HttpResponseParser
        self._connect_timeout = connect_timeout
        self._patience = patience
        self._ssl = ssl
        self._host = f"Host: {origin.authority}\r\n"
        self._addresses = Addresses(origin.host, origin.port)
        self._scratch = memoryview(bytearray(SCRATCH))
        self._places = max_connections
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: list[Connection] = []
        self._active: set[Connection] = set()
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._closed = False
        self._gone = asyncio.Event()

    def __repr__(self) -> str:
        counts = f"{len(self._active)} active, {len(self._idle)} idle, {len(self._waiting)} waiting"
        return f"Pool({str(self._origin)!r}, {counts})"

    async def get(self, target: str, headers: str = "", most: int | None = None) -> Reply:
        """GET `target` (a path, with its query), with these headers (each with its line end).

        Of a body longer than `most`, its first `most` bytes. `StoreUnreachable` if nothing answers there or in time,
        `BrokenTransfer` if it breaks off, `NotOpen` if the pool is closed meanwhile. Whatever the server answers is a
        `Reply`.
        """
        request = f"GET {target} HTTP/1.1\r\n{self._host}{headers}\r\n".encode("latin-1")
        if self._closed:
            raise self._not_open()
        if self._places:
            self._places -= 1
        else:
            await self._place()
        try:
            connection = self._kept()
            if connection is not None:
                try:
                    return await self._exchange(connection, request, most)
                except BrokenTransfer as error:
                    if connection.received or error.stalled:
                        raise
            return await self._exchange(await self._connect(), request, most)
        finally:
            self._leave()

    async def aclose(self) -> None:
        """Requests that wait or are under way fail with `NotOpen`; every connection is closed."""
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(self._not_open())
        for connecting in self._connecting:
            if not connecting.expired():
                connecting.reschedule(self._loop.time())
        for connection in list(self._open):
            connection.give_up(lambda _: self._not_open())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._idle.clear()
        while self._open or self._connecting:
            self._gone.clear()
            await self._gone.wait()

    # Places.

    async def _place(self) -> None:
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave()  # it was given a place that it will not use
            raise

    def _leave(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._places += 1

    # Connections.

    def _kept(self) -> Connection | None:
        oldest = self._loop.time() - RESTED
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since < oldest:
                connection.close()
            elif connection.is_open:
                return connection
        return None

    async def _exchange(self, connection: Connection, request: bytes, most: int | None) -> Reply:
        if self._closed:  # while the connection was made
            connection.close()
            raise self._not_open()
        now = self._loop.time()
        connection.progress = Progress(now)
        self._active.add(connection)
        if self._timer is None:
            self._look_later(now)
        try:
            answer = await connection.ask(request, most)
        except BaseException:
            connection.close()
            raise
        finally:
            self._active.discard(connection)
        reply = answer.reply()
        if answer.keep and connection.is_open and not self._closed:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    async def _connect(self) -> Connection:
        """A new connection, to the first of the host's addresses that takes it."""
        if self._closed:
            raise self._not_open()
        try:
            addresses = await self._limited(self._addresses.in_turn())
        except _Failed as failed:
            raise StoreUnreachable(f"the name {self._origin.host!r} leads nowhere: {failed.why}") from failed.why
        for address in addresses:
            try:
                return await self._limited(self._dial(address))
            except _Failed as failed:
                why = failed.why
                if isinstance(why, tls.SSLCertVerificationError):  # no other address would show another one
                    break
        raise StoreUnreachable(_said(why, self._origin)) from why

    async def _dial(self, address: str) -> Connection:
        connection = Connection(self._scratch, self._parser, self._open.add, self._lost)
        name = self._origin.host if self._ssl else None
        try:
            await self._loop.create_connection(
                lambda: connection, address, self._origin.port, ssl=self._ssl, server_hostname=name
            )
        except BaseException:
            connection.close()
            self._loop.call_soon(self._lost, connection)  # uvloop does not tell of the end of one that was half made
            raise
        return connection

    async def _limited(self, work: Coroutine[Any, Any, T]) -> T:
        """Part of making a connection: within the time for it, and no longer than the pool is open. `_Failed`, else
        `NotOpen` (which is an `OSError` too, as all errors of stores are)."""
        try:
            async with asyncio.timeout(self._connect_timeout) as limit:
                self._connecting.add(limit)
                return await work
        except OSError as error:
            if self._closed:
                raise self._not_open() from None
            raise _Failed(error) from error
        finally:
            self._connecting.discard(limit)
            self._gone.set()

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._gone.set()

    # Time.

    def _look_later(self, now: float) -> None:
        self._due = now + self._patience.interval
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        late = now - self._due
        for connection in list(self._active):
            progress = connection.progress
            assert progress is not None
            if late > self._patience.interval:
                progress.excuse(late)
            match progress.look(now, connection.received, self._patience):
                case Verdict.SILENT:
                    connection.give_up(self._silent)
                case Verdict.SLOW:
                    connection.give_up(self._slow)
        if self._active:
            self._look_later(now)

    def _silent(self, answer: Answer) -> Exception:
        if not answer.fed:
            return StoreUnreachable(f"{self._origin} went silent: if it is slow, raise read_timeout=")
        return answer.broken("the connection went silent", stalled=True)

    def _slow(self, answer: Answer) -> Exception:
        return answer.broken(f"the answer came slower than {self._patience.min_rate:,.0f} bytes/s", stalled=True)

    def _not_open(self) -> NotOpen:
        return NotOpen(f"the connections to {self._origin} were closed meanwhile")


def _said(why: OSError, origin: Origin) -> str:
    """Whose doing it is that there is no connection."""
    match why:
        case tls.SSLCertVerificationError():
            return f"{origin} shows a certificate that is not trusted: {why}"
        case tls.SSLError():
            return f"{origin} answers, but not in TLS that suits: {why}. Is it an http:// address?"
        case OSError(errno=number) if number in OWN:
            return f"cannot connect to {origin}, for a reason on this machine: {os.strerror(number)}"
        case TimeoutError():
            return f"nothing answers in time at {origin}: is the server up, and is its address right?"
        case _:
            reason = os.strerror(why.errno) if why.errno else str(why)
            return f"nothing answers there at {origin}: is the server up, and is its address right? ({reason})"


class _Failed(Exception):  # noqa: N818  (what happened)
    """The operating system's reason why there is no connection."""

    def __init__(self, why: OSError) -> None:
        super().__init__(why)
        self.why = why
