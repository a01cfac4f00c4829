"""One connection alone, on both kinds of loop."""

from __future__ import annotations

import asyncio
import weakref

import pytest
from httptools import HttpResponseParser

from aloader.errors import BrokenTransfer
from aloader.storage.wire.connection import Connection
from tests.storage.wire.conftest import Run
from tests.storage.wire.scripted import ok, scripted

pytestmark = pytest.mark.usefixtures("nothing_left")

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def connect(port: int, lost: asyncio.Event) -> Connection:
    def make() -> Connection:
        scratch = memoryview(bytearray(1000))
        return Connection(scratch, HttpResponseParser, lambda _: None, lambda _: lost.set())

    _, connection = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    return connection


@pytest.mark.parametrize("size", [5_000, 65_536, 3_000_000])
def test_the_memory_that_was_received_into_is_what_is_handed_out(run: Run, size: int) -> None:
    async def main() -> None:
        lost = asyncio.Event()
        async with scripted(lambda *_: [ok(bytes(size))]) as server:
            connection = await connect(server.port, lost)
            for _ in range(2):
                answer = await connection.ask(REQUEST, None)
                body = answer.reply().body
                assert len(body) == size
                assert answer.reply().body is body  # no loop holds on to a view, which would make it a copy
                left = weakref.ref(answer)
                del answer
                assert left() is None  # the connection does not keep it
            connection.close()
            await lost.wait()

    run(main())


def test_a_request_can_be_given_up_with_any_error(run: Run) -> None:
    async def main() -> None:
        lost = asyncio.Event()
        async with scripted(lambda *_: [ok(b"0123456789")[:-3]]) as server:
            connection = await connect(server.port, lost)
            asking = asyncio.ensure_future(connection.ask(REQUEST, None))
            await server.asked.wait()
            while connection.received < 40:  # noqa: ASYNC110  (nothing tells)
                await asyncio.sleep(0)
            connection.give_up(lambda answer: answer.broken("enough"))
            with pytest.raises(BrokenTransfer, match="enough, after 7 of 10 bytes") as caught:
                await asking
            assert caught.value.received == b"0123456"
            await lost.wait()
            assert not connection.is_open
            with pytest.raises(BrokenTransfer, match="the connection broke"):
                await connection.ask(REQUEST, None)

    run(main())
