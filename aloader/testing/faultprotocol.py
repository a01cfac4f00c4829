"""The connections of a `FaultServer`: HTTP/1.1 on `asyncio.Protocol`, with as little work per request as can be.

A server that is measured against must not be what is measured. So a request costs one pass of the event loop where
nothing is delayed, and a timer where something is; a limited bandwidth is kept by sending a slice every few
milliseconds, small bodies in one piece when their last byte is due. A connection handles one request after the other.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

from aloader.testing.faults import NOTHING, Fault, Plan
from aloader.testing.faultservice import CONTROL, Service
from aloader.testing.s3answers import Answer, Asked, error, parse

#: Seconds between two slices of a body whose bandwidth is limited; and the fewest bytes of one.
SLICE: Final = 0.002
LEAST: Final = 64

#: Seconds that what was sent has to arrive before its connection is reset.
RESET_AFTER: Final = 0.005

#: What happens in the midst of a body.
MIDWAY: Final = (Fault.STALLED, Fault.RESET, Fault.TRUNCATED)

#: What connections wait for that are to be accepted. Tests and benchmarks open hundreds at once.
BACKLOG: Final = 1024

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_REQUEST: Final = Asked("GET", "", "", "", {})


async def listen(service: Service, port: int = 0) -> asyncio.Server:
    """Serve on this machine alone."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Connection(service), "127.0.0.1", port, backlog=BACKLOG)


class Connection(asyncio.Protocol):
    """One client. What comes while a request is being answered waits."""

    _transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._asked: Asked | None = None  # whose body is being waited for
        self._answering = False
        self._late = 0.0  # seconds that the first answer takes longer
        self._timer: asyncio.TimerHandle | None = None
        # The answer that is being sent:
        self._head = b""
        self._body = memoryview(b"")
        self._plan = NOTHING
        self._sent = self._until = 0  # bytes of the body: those that are gone, and where something happens
        self._arrived = self._began = 0.0
        self._last = False

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._service.connected(self)
        self._late = self._service.faults.latency.round_trip
        if self._service.refuses():
            self.reset()

    def connection_lost(self, error: Exception | None) -> None:
        self._service.disconnected(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answering:
            self._service.gone(None, self._sent)
        self._body = memoryview(b"")

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._answering:
            self._next()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Begin with the next request if all of it is here."""
        received = self._received
        if self._asked is None:
            end = received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._asked = self._parse(bytes(received[:end]))
            del received[: end + 4]
        asked = self._asked
        length = int(asked.headers.get(b"content-length", 0))
        if len(received) < length:
            return
        body = bytes(received[:length])
        del received[:length]
        self._asked = None
        self._last |= asked.headers.get(b"connection", b"").lower() == b"close"
        self._handle(asked, body)

    def _parse(self, head: bytes) -> Asked:
        try:
            asked = parse(head)
        except ValueError:
            self._last = True
            return NO_REQUEST
        if asked.headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(CONTINUE)
        length = asked.headers.get(b"content-length", b"0")
        if not length.isdigit() or b"transfer-encoding" in asked.headers:  # S3 wants to know the length, too
            self._last = True
            return NO_REQUEST
        return asked

    def _handle(self, asked: Asked, body: bytes) -> None:
        service = self._service
        if asked.bucket == CONTROL:
            self._control(service.control(asked, body))
            return
        plan = service.plan(asked)
        service.arrived(asked, plan)
        answer = error("InvalidArgument", asked) if asked is NO_REQUEST else service.answer(asked, body, plan)
        self._answering = True
        self._arrived = service.time()
        self._head, self._body, self._plan = answer.head(service.number), memoryview(answer.body), plan
        delay, self._late = plan.delay + self._late, 0.0
        if self._in_one_piece(plan):
            delay += len(self._body) / plan.rate
            self._plan = plan._replace(rate=0.0)
        self._after(delay, self._send)

    def _control(self, answer: Answer) -> None:
        self._transport.write(answer.head(0) + bytes(answer.body))
        if self._received:
            self._loop.call_soon(self._next)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _in_one_piece(self, plan: Plan) -> bool:
        """Whether a body with a limited bandwidth is so small that nobody can tell if its last byte is late alone."""
        return 0.0 < len(self._body) <= plan.rate * 2 * SLICE and plan.fault not in MIDWAY

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        if seconds > 0.0:
            self._timer = self._loop.call_later(seconds, act)
        else:
            act()

    def _send(self) -> None:
        """Head and body, up to where something happens."""
        size, plan = len(self._body), self._plan
        self._sent, self._until = 0, int(size * plan.at) if plan.fault in MIDWAY else size
        if plan.rate:
            self._transport.write(self._head)
            self._began = self._service.time()
            self._send_slice()
        else:
            self._transport.writelines((self._head, self._body[: self._until]))
            self._sent = self._until
            self._happen()

    def _send_slice(self) -> None:
        """What is due by now, of a body whose bandwidth is limited."""
        rate = self._plan.rate
        pause = max(SLICE, LEAST / rate)
        due = min(self._until, int((self._service.time() - self._began + pause) * rate))
        self._transport.write(self._body[self._sent : due])
        self._sent = due
        if due < self._until:
            self._timer = self._loop.call_later(pause, self._send_slice)
        else:
            self._happen()

    def _happen(self) -> None:
        """The end of the body, or what comes instead of it."""
        match self._plan.fault:
            case Fault.STALLED if self._until < len(self._body):
                self._timer = self._loop.call_later(self._plan.pause, self._resume)
            case Fault.RESET:
                self._timer = self._loop.call_later(RESET_AFTER, self.reset)
            case Fault.TRUNCATED:
                self._transport.close()
            case _:
                self._done()

    def _resume(self) -> None:
        self._until, self._plan = len(self._body), self._plan._replace(fault=None)
        if self._plan.rate:
            self._began = self._service.time() - self._sent / self._plan.rate
            self._send_slice()
        else:
            self._transport.write(self._body[self._sent :])
            self._sent = self._until
            self._happen()

    def _done(self) -> None:
        service = self._service
        self._answering = False
        service.gone(service.time() - self._arrived, self._sent)
        self._body, self._timer = memoryview(b""), None
        if self._last:
            self._transport.close()
        elif self._received:
            self._loop.call_soon(self._next)

    def reset(self) -> None:
        """End the connection as a machine does that has crashed: by RST."""
        if (sock := self._transport.get_extra_info("socket")) is not None and sock.fileno() >= 0:
            with socket.socket(fileno=os.dup(sock.fileno())) as same:  # uvloop's own object sets no options
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
