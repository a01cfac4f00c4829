"""One keep-alive HTTP/1.1 connection, on which one GET after the other is made. It is told what to send, and knows
neither who waits for it nor when to give up: that is the pool's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from aloader.storage.wire.answer import Answer
from aloader.storage.wire.watch import Progress


class Connection(asyncio.BufferedProtocol):
    """`scratch` may be shared by the connections of a loop: it is filled and read within one callback."""

    def __init__(
        self,
        scratch: memoryview,
        parser: type[Any],
        made: Callable[[Connection], None],
        lost: Callable[[Connection], None],
    ) -> None:
        self._scratch = scratch
        self._parser = parser
        self._made = made
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._future: asyncio.Future[None] | None = None
        self.progress: Progress | None = None  # of the request under way, kept by the pool
        self.idle_since = 0.0  # the pool's too

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def received(self) -> int:
        """Bytes of the answer under way, or of the one that broke."""
        return 0 if self._answer is None else self._answer.fed

    async def ask(self, request: bytes, most: int | None) -> Answer:
        """Send this and receive the answer, which is done then. Raises what `give_up` was told to raise, or
        `BrokenTransfer`. If this is cancelled, the connection must be closed."""
        self._answer = answer = Answer(self._parser, most)
        if self._transport is None:
            raise answer.broken("the connection broke")
        self._future = future = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.exception()  # seen, else asyncio complains that nobody has
            raise
        self._answer = self._future = None  # a kept connection must not keep the body
        return answer

    def give_up(self, error: Callable[[Answer], Exception]) -> None:
        """End the request that is under way with this error, and close."""
        if self._answer is not None and self._future is not None and not self._future.done():
            self._future.set_exception(error(self._answer))
        self.close()

    def close(self) -> None:
        """At once: nothing that is under way is waited for."""
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it
        if (own := transport.get_extra_info("socket")) is not None:
            with suppress(OSError):  # macOS's, of one that was closed at once
                own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # else one that is dead may be kept for ever
        self._made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        answer = self._answer
        return answer.room() if answer is not None and answer.direct else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        answer = self._answer
        if answer is None or answer.done:  # nobody has asked
            self.close()
        elif answer.direct:
            answer.filled(nbytes)
        else:
            try:
                answer.feed(self._scratch[:nbytes])
            except Exception as error:
                self._fail(error)
                self.close()
                return
        if answer is not None and answer.done and self._future is not None and not self._future.done():
            self._future.set_result(None)

    def eof_received(self) -> bool:
        return False  # close: a server that has said all it will say is of no use

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        answer = self._answer
        if answer is not None and self._future is not None and not self._future.done():
            answer.keep = False
            try:
                if error is not None:
                    raise answer.broken(f"the connection broke ({error})")
                answer.end()
                self._future.set_result(None)
            except Exception as failure:
                failure.__cause__ = error
                self._fail(failure)
        self._lost(self)

    def _fail(self, error: Exception) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)
