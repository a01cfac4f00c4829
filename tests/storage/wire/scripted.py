"""A server on this machine that says what the test wants, to each request on each connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aloader.storage.wire.pool import Origin, Pool
from aloader.storage.wire.watch import Patience

#: In place of bytes: what happens to the connection then.
CLOSE = "close"
RESET = "reset"

Said = bytes | str

#: From the number of the connection, the number of the request on it and the request's text to what is said.
Script = Callable[[int, int, bytes], list[Said]]


def ok(body: bytes = b"here", *headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers, b"", body])


class Scripted:
    """`open` connections at the moment, at `most` at once; all `requests`, as text. A script that says nothing leaves
    the request waiting; `asked` is set by every request."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.made = 0
        self.most = 0
        self.open: set[asyncio.Transport] = set()
        self.requests: list[bytes] = []
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        self.port = 0

    @property
    def origin(self) -> Origin:
        return Origin("http", "127.0.0.1", self.port)

    def say(self, text: bytes) -> None:
        """To everybody, unasked."""
        for transport in self.open:
            transport.write(text)

    def hang_up(self) -> None:
        for transport in list(self.open):
            transport.close()

    def connection(self) -> asyncio.Protocol:
        return _Connection(self, self._script)


class _Connection(asyncio.Protocol):
    def __init__(self, server: Scripted, script: Script) -> None:
        self._server = server
        self._script = script
        self._text = b""
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._number = self._server.made
        self._transport = transport
        self._server.made += 1
        self._server.open.add(transport)  # type: ignore[arg-type]
        self._server.most = max(self._server.most, len(self._server.open))

    def data_received(self, data: bytes) -> None:
        self._text += data
        while b"\r\n\r\n" in self._text:
            request, _, self._text = self._text.partition(b"\r\n\r\n")
            self._server.requests.append(request)
            for said in self._script(self._number, self._count, request):
                self._say(said)
            self._count += 1
            self._server.asked.set()

    def _say(self, said: Said) -> None:
        match said:
            case bytes():
                self._transport.write(said)  # type: ignore[attr-defined]
            case "close":
                self._transport.close()
            case _:
                self._transport.abort()  # type: ignore[attr-defined]

    def connection_lost(self, error: Exception | None) -> None:
        self._server.open.discard(self._transport)  # type: ignore[arg-type]
        self._server.closed.set()


@asynccontextmanager
async def scripted(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    """The server while it runs."""
    server = Scripted(script)
    listening = await asyncio.get_running_loop().create_server(server.connection, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        server.hang_up()
        while server.open:
            server.closed.clear()
            await server.closed.wait()


@asynccontextmanager
async def pool_of(
    origin: Origin,
    *,
    max_connections: int = 8,
    connect_timeout: float = 5,
    read_timeout: float = 30,
    min_rate: float = 16_384,
    stall_after: float = 5,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Pool]:
    pool = Pool(
        origin,
        max_connections=max_connections,
        connect_timeout=connect_timeout,
        patience=Patience(read_timeout, min_rate, stall_after),
        ssl=tls,
    )
    try:
        yield pool
    finally:
        await pool.aclose()
