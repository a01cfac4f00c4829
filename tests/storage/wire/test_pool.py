"""Connections in earnest, to a server on this machine: how they are shared, kept, and lost."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

import pytest

from aloader.errors import BrokenTransfer, NotOpen, StoreUnreachable
from aloader.storage.wire.addresses import Addresses
from aloader.storage.wire.pool import Origin, Pool
from tests.storage.wire.conftest import Run
from tests.storage.wire.scripted import CLOSE, RESET, Said, Scripted, ok, pool_of, scripted

pytestmark = pytest.mark.usefixtures("nothing_left")

LARGE = bytes(range(256)) * 20_000


def test_a_request_is_sent_as_it_was_asked_for(run: Run) -> None:
    async def main() -> None:
        async with scripted(lambda *_: [ok(b"body", b"ETag: x")]) as server, pool_of(server.origin) as pool:
            reply = await pool.get("/a/b?c", "X: y\r\n")
            assert (reply.status, reply.body, reply.headers[b"etag"]) == (200, b"body", b"x")
            host = f"Host: 127.0.0.1:{server.port}".encode()
            assert server.requests == [b"\r\n".join([b"GET /a/b?c HTTP/1.1", host, b"X: y"])]

    run(main())


def test_bodies_of_every_size_come_whole(run: Run) -> None:
    sizes = [0, 1, 2, 65_535, 65_536, 262_144, 262_145, 1_000_003, len(LARGE)]

    def script(_: int, number: int, request: bytes) -> list[Said]:
        return [ok(LARGE[: sizes[number]])]

    async def main() -> None:
        async with scripted(script) as server, pool_of(server.origin) as pool:
            for size in sizes:
                assert (await pool.get("/")).body == LARGE[:size]
            assert server.made == 1

    run(main())


def test_connections_are_kept_used_last_in_first_out_and_never_too_many(run: Run) -> None:
    async def main() -> None:
        async with scripted(lambda *_: [ok()]) as server, pool_of(server.origin, max_connections=3) as pool:
            await asyncio.gather(*(pool.get(f"/{i}") for i in range(20)))
            assert server.most <= 3
            before = server.made
            for _ in range(5):
                await pool.get("/")
            assert server.made == before
            assert "0 active" in repr(pool)

    run(main())


def test_connections_that_have_rested_for_long_are_closed_and_not_used_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scripted(lambda *_: [ok()]) as server, pool_of(server.origin) as pool:
            await asyncio.gather(pool.get("/"), pool.get("/"))
            assert (server.made, len(pool._open)) == (2, 2)
            for connection in pool._open:
                own = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
                assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            monkeypatch.setattr(f"{Pool.__module__}.RESTED", -1.0)
            assert (await pool.get("/")).body == b"here"
            assert (server.made, len(pool._open)) == (3, 1)

    run(main())


def test_who_waits_for_a_place_gets_it_in_the_order_of_asking(run: Run) -> None:
    async def main() -> None:
        async with scripted(lambda *_: [ok()]) as server, pool_of(server.origin, max_connections=1) as pool:
            done: list[int] = []

            async def get(number: int) -> None:
                await pool.get(f"/{number}")
                done.append(number)

            await asyncio.gather(*map(get, range(10)))
            assert done == list(range(10))

    run(main())


def test_a_connection_that_the_server_has_closed_meanwhile_is_replaced(run: Run) -> None:
    def script(connection: int, number: int, request: bytes) -> list[Said]:
        return [ok()] if number == 0 else [CLOSE]  # it looks open until the second request is there

    async def main() -> None:
        async with scripted(script) as server, pool_of(server.origin) as pool:
            for _ in range(3):
                assert (await pool.get("/")).body == b"here"
            assert (server.made, len(server.requests)) == (3, 5)

    run(main())


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_a_new_connection_that_breaks_before_the_answer_is_an_error(run: Run, end: str) -> None:
    async def main() -> None:
        async with scripted(lambda *_: [end]) as server, pool_of(server.origin) as pool:
            with pytest.raises(BrokenTransfer, match="the connection broke"):
                await pool.get("/")
            assert len(server.requests) == 1

    run(main())


@pytest.mark.parametrize("end", [CLOSE, RESET])
@pytest.mark.parametrize("here", [b"", b"part"])
def test_an_answer_that_breaks_off_is_an_error_and_not_asked_for_again(run: Run, here: bytes, end: str) -> None:
    broken = b'HTTP/1.1 206 OK\r\nContent-Length: 100\r\nContent-Range: bytes 0-99/300\r\nETag: "v"\r\n\r\n'

    def script(connection: int, number: int, request: bytes) -> list[Said]:
        return [ok()] if number == 0 else [broken + here, end]

    async def main() -> None:
        async with scripted(script) as server, pool_of(server.origin) as pool:
            await pool.get("/")
            with pytest.raises(BrokenTransfer) as caught:
                await pool.get("/")
            error = caught.value
            if end is CLOSE:
                assert (error.received, error.version, error.size, error.status) == (here, '"v"', 300, 206)
                assert len(server.requests) == 2
            assert (await pool.get("/")).body == b"here"

    run(main())


def test_a_server_that_closes_after_each_answer_is_believed(run: Run) -> None:
    async def main() -> None:
        async with (
            scripted(lambda *_: [ok(b"x", b"Connection: close"), CLOSE]) as server,
            pool_of(server.origin) as pool,
        ):
            assert [(await pool.get("/")).body for _ in range(3)] == [b"x"] * 3
            assert server.made == 3

    run(main())


def test_a_body_without_a_length_goes_to_the_end_of_the_connection(run: Run) -> None:
    async def main() -> None:
        async with (
            scripted(lambda *_: [b"HTTP/1.1 200 OK\r\n\r\n", LARGE, CLOSE]) as server,
            pool_of(server.origin) as pool,
        ):
            for _ in range(2):
                assert (await pool.get("/")).body == LARGE

    run(main())


def test_what_nobody_has_asked_for_closes_the_connection(run: Run) -> None:
    async def main() -> None:
        async with scripted(lambda *_: [ok()]) as server, pool_of(server.origin) as pool:
            await pool.get("/")
            server.say(ok(b"poisoned"))
            await server.closed.wait()
            assert (await pool.get("/")).body == b"here"
            assert server.made == 2

    run(main())


def test_of_a_body_longer_than_wanted_the_rest_is_not_waited_for(run: Run) -> None:
    def script(connection: int, number: int, request: bytes) -> list[Said]:
        return [b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n" + LARGE]

    async def main() -> None:
        async with scripted(script) as server, pool_of(server.origin) as pool:
            reply = await pool.get("/", most=1_000_000)
            assert (reply.body, reply.length) == (LARGE[:1_000_000], 10_000_000_000)
            assert "0 idle" in repr(pool)

    run(main())


def test_a_cancelled_request_closes_its_connection_and_frees_its_place(run: Run) -> None:
    def script(connection: int, number: int, request: bytes) -> list[Said]:
        return [ok()[:-1]] if b"/stuck" in request else [ok()]

    async def main() -> None:
        async with scripted(script) as server, pool_of(server.origin, max_connections=1) as pool:
            stuck = asyncio.ensure_future(pool.get("/stuck"))
            waiting = asyncio.ensure_future(pool.get("/waiting"))
            dropped = asyncio.ensure_future(pool.get("/dropped"))
            await server.asked.wait()
            dropped.cancel()
            stuck.cancel()
            assert (await waiting).body == b"here"
            assert server.made == 2
            await asyncio.wait([stuck, dropped])
            assert stuck.cancelled()
            assert dropped.cancelled()

    run(main())


def test_a_place_given_to_a_request_that_is_cancelled_goes_to_the_next(run: Run) -> None:
    async def main() -> None:
        async with scripted(lambda *_: [ok()]) as server, pool_of(server.origin, max_connections=1) as pool:
            for steps in range(12):
                first = asyncio.ensure_future(pool.get("/first"))
                second = asyncio.ensure_future(pool.get("/second"))
                third = asyncio.ensure_future(pool.get("/third"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                second.cancel()
                assert (await first).body == (await third).body == b"here"
                await asyncio.wait([second])

    run(main())


def test_closing_fails_those_who_wait_in_every_way(run: Run) -> None:
    async def main() -> None:
        async with scripted(lambda *_: []) as server, pool_of(server.origin, max_connections=2) as pool:
            asking = [asyncio.ensure_future(pool.get("/")) for _ in range(2)]
            waiting = asyncio.ensure_future(pool.get("/"))
            await server.asked.wait()
            await pool.aclose()
            for each in await asyncio.gather(*asking, waiting, pool.get("/late"), return_exceptions=True):
                assert isinstance(each, NotOpen), each

    run(main())


def test_closing_while_connections_are_made_leaves_none(run: Run) -> None:
    async def main() -> None:
        for steps in range(8):
            async with scripted(lambda *_: []) as server, pool_of(server.origin) as pool:
                asking = [asyncio.ensure_future(pool.get("/")) for _ in range(4)]
                for _ in range(steps):
                    await asyncio.sleep(0)
                await pool.aclose()
                assert "0 active, 0 idle" in repr(pool)
                for each in await asyncio.gather(*asking, return_exceptions=True):
                    assert isinstance(each, NotOpen), each

    run(main())


def test_a_refused_connection_is_an_error_at_once(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as held:  # bound and never listened on
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
            async with pool_of(Origin("http", "127.0.0.1", port)) as pool:
                with pytest.raises(StoreUnreachable, match=rf"nothing answers there at .*:{port}.*refused"):
                    await pool.get("/")
                assert "0 active" in repr(pool)

    run(main())


def test_what_this_machine_has_no_more_of_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Pool, "_dial", none_left)

    async def main() -> None:
        async with pool_of(Origin("http", "127.0.0.1", 9)) as pool:
            with pytest.raises(StoreUnreachable, match="for a reason on this machine: Too many open files"):
                await pool.get("/")

    run(main())


def test_a_server_that_does_not_speak_tls_is_said(run: Run) -> None:
    class Plain(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")  # type: ignore[attr-defined]
            self.transport.close()

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Plain, "127.0.0.1", 0)
        try:
            origin = Origin("https", "127.0.0.1", server.sockets[0].getsockname()[1])
            async with pool_of(origin, tls=ssl.create_default_context()) as pool:
                with pytest.raises(StoreUnreachable, match=r"answers, but not in TLS .*WRONG_VERSION"):
                    await pool.get("/")
        finally:
            server.close()

    run(main())


def test_a_name_that_leads_nowhere_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(self: Addresses) -> list[str]:
        raise socket.gaierror("not known")

    monkeypatch.setattr(Addresses, "_resolve", nowhere)

    async def main() -> None:
        async with pool_of(Origin("http", "nowhere.test", 80)) as pool:
            with pytest.raises(StoreUnreachable, match=r"the name 'nowhere\.test' leads nowhere"):
                await pool.get("/")

    run(main())


def test_silence_is_given_up(run: Run) -> None:
    silent: list[Said] = []

    async def main() -> None:
        async with (
            scripted(lambda *_: silent) as server,
            pool_of(server.origin, read_timeout=0.04) as pool,
        ):
            with pytest.raises(StoreUnreachable, match="went silent: if it is slow, raise read_timeout="):
                await pool.get("/")
            silent.append(ok(b"half")[:-2])
            with pytest.raises(BrokenTransfer, match="went silent, after 2 of 4 bytes") as caught:
                await pool.get("/")
            assert (caught.value.stalled, caught.value.received) == (True, b"ha")

    run(main())


def test_a_body_that_dribbles_is_given_up(run: Run) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"

    async def dribble(server: Scripted) -> None:
        await server.asked.wait()
        while True:
            server.say(b"x")
            await asyncio.sleep(0.002)  # sleep: a server's slowness

    async def main() -> None:
        async with (
            scripted(lambda *_: [head]) as server,
            pool_of(server.origin, stall_after=0.04, min_rate=10_000) as pool,
        ):
            dribbling = asyncio.ensure_future(dribble(server))
            with pytest.raises(BrokenTransfer, match="slower than 10,000 bytes/s") as caught:
                await pool.get("/")
            assert caught.value.stalled
            assert set(caught.value.received) == {ord("x")}
            dribbling.cancel()
            await asyncio.wait([dribbling])

    run(main())


def test_the_addresses_of_a_host_are_used_in_turn_and_the_next_is_tried(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def resolve(self: Addresses) -> list[str]:
        asked.append(self)
        return ["127.0.0.2", "127.0.0.1", "127.0.0.3"]

    monkeypatch.setattr(Addresses, "_resolve", resolve)

    async def main() -> None:
        addresses = Addresses("host", 1)
        assert [(await addresses.in_turn())[0] for _ in range(4)] == [
            "127.0.0.2", "127.0.0.1", "127.0.0.3", "127.0.0.2",
        ]  # fmt: skip
        assert len(asked) == 1
        async with scripted(lambda *_: [ok(b"x", b"Connection: close"), CLOSE]) as server:
            async with pool_of(Origin("http", "host.test", server.port)) as pool:
                for _ in range(4):
                    assert (await pool.get("/")).body == b"x"
                assert b"Host: host.test" in server.requests[0]

    run(main())
