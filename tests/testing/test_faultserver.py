"""`FaultServer` on the test's own loop, seen by a raw client: every fault, and the HTTP in between."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aloader.testing import Faults, FaultServer, Latency, Synthetic
from tests.testing.raw import Came, ask, send

pytestmark = pytest.mark.usefixtures("nothing_left")

DATA = bytes(range(256)) * 40
CALM = Faults()


@asynccontextmanager
async def serving(
    faults: Faults = CALM, objects: Mapping[str, bytes] | Path | Synthetic | None = None
) -> AsyncIterator[FaultServer]:
    async with FaultServer(objects or {"key": DATA, "a b/ü": b"odd"}, faults, in_process=True) as server:
        yield server


async def asked_often(faults: Faults, count: int = 16) -> tuple[list[Came], FaultServer, dict[str, int]]:
    async with serving(faults) as server:
        came = list(await asyncio.gather(*(ask(server, f"/bucket/key?{number}") for number in range(count))))
        return came, server, dict(server.served().faults)


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody run until it holds."""
    while True:
        if condition():
            return
        await asyncio.sleep(0)


# -- HTTP --------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("wanted", "status", "start", "stop"),
    [
        ("", 200, 0, 10240),
        ("bytes=0-0", 206, 0, 1),
        ("bytes=100-199", 206, 100, 200),
        ("bytes=10000-", 206, 10000, 10240),
        ("bytes=10000-99999", 206, 10000, 10240),
        ("bytes=-100", 206, 10140, 10240),
        ("bytes=-99999", 206, 0, 10240),
        ("bytes=5-4", 200, 0, 10240),
        ("lines=1-2", 200, 0, 10240),
    ],
)
async def test_ranges_are_those_of_http(wanted: str, status: int, start: int, stop: int) -> None:
    async with serving() as server:
        came = await ask(server, "/bucket/key", **({"Range": wanted} if wanted else {}))
    assert (came.status, came.body) == (status, DATA[start:stop])
    assert came.headers.get("content-range") == (f"bytes {start}-{stop - 1}/10240" if status == 206 else None)
    assert came.headers["etag"] == f'"{hashlib.md5(DATA).hexdigest()}"'


@pytest.mark.asyncio
async def test_what_is_not_there_is_said_as_s3_says_it() -> None:
    async with serving() as server:
        behind = await ask(server, "/bucket/key", Range="bytes=10240-")
        missing = await ask(server, "/bucket/nothing")
        other = await ask(server, "/bucket/key", If_Match='"other"')
        same = await ask(server, "/bucket/key", If_None_Match=f'"{hashlib.md5(DATA).hexdigest()}"')
        posted = await ask(server, "/bucket/key", "POST")
    assert [each.status for each in (behind, missing, other, same, posted)] == [416, 404, 412, 304, 405]
    assert b"<Code>InvalidRange</Code>" in behind.body
    assert b"<Code>NoSuchKey</Code>" in missing.body
    assert b"<Key>nothing</Key>" in missing.body
    assert b"<Code>PreconditionFailed</Code>" in other.body
    assert not same.body


@pytest.mark.asyncio
async def test_a_head_has_the_length_and_no_body() -> None:
    async with serving() as server:
        came = await ask(server, "/bucket/a%20b/%C3%BC", "HEAD")
        gone = await ask(server, "/bucket/nothing", "HEAD")
    assert (came.status, came.headers["content-length"], came.body) == (200, "3", b"")
    assert (gone.status, gone.headers["content-length"]) == (404, "0")


@pytest.mark.asyncio
async def test_a_connection_serves_one_request_after_the_other_however_they_come() -> None:
    request = b"GET /bucket/key HTTP/1.1\r\nRange: bytes=%d-%d\r\n\r\n"
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.endpoint_url.rpartition(":")[2]))
        at_once = b"".join(request % (number, number + 9) for number in range(20))
        pieces = [await send(reader, writer, at_once)] + [await send(reader, writer, b"") for _ in range(19)]
        writer.write(b"PUT /bucket/new HTTP/1.1\r\nContent-Le")
        await writer.drain()
        split = await send(reader, writer, b"ngth: 5\r\n\r\n12345" + request % (0, 3))
        last = await send(reader, writer, b"GET /bucket/new HTTP/1.1\r\nConnection: close\r\n\r\n")
        rest = await send(reader, writer, b"")
        ended = reader.at_eof()
        writer.close()
        await writer.wait_closed()
        assert server.served().connections == 1
    assert [each.body for each in pieces] == [DATA[number : number + 10] for number in range(20)]
    assert split.headers["etag"] == f'"{hashlib.md5(b"12345").hexdigest()}"'
    assert (last.body, rest.body) == (DATA[:4], b"12345")
    assert ended or not reader.exception()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "head",
    [
        b"what is this",
        b"what is that?",
        b"GET /bucket/key HTTP/1.1\r\nContent-Length: some",
        b"PUT /bucket/key HTTP/1.1\r\nTransfer-Encoding: chunked",
    ],
)
async def test_nonsense_is_answered_and_ends_the_connection(head: bytes) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.endpoint_url.rpartition(":")[2]))
        came = await send(reader, writer, head + b"\r\n\r\n")
        assert came.status == 400
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        listing = await ask(server, "/bucket?list-type=2&continuation-token=%C3%BC")
        assert listing.status == 400


@pytest.mark.asyncio
async def test_files_of_a_folder_are_objects_and_nothing_outside_is(tmp_path: Path) -> None:
    (tmp_path / "served" / "deep").mkdir(parents=True)
    (tmp_path / "served" / "deep" / "file").write_bytes(DATA)
    (tmp_path / "secret").write_bytes(b"not for you")
    async with serving(objects=tmp_path / "served") as server:
        assert (await ask(server, "/bucket/deep/file", Range="bytes=1-3")).body == DATA[1:4]
        assert (await ask(server, "/bucket/../secret")).status == 404
        assert (await ask(server, "/bucket/%2E%2E/secret")).status == 404
        assert (await ask(server, "/bucket/../stolen", "PUT", b"x")).status == 400
        assert (await ask(server, "/bucket/new/one", "PUT", b"written")).status == 200
    assert (tmp_path / "served" / "new" / "one").read_bytes() == b"written"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "served"]


@pytest.mark.asyncio
async def test_synthetic_objects_are_all_different_and_known_beforehand() -> None:
    made = Synthetic(300, 1000, seed=5)
    async with serving(objects=made) as server:
        came = await asyncio.gather(*(ask(server, f"/bucket/{made.key(number)}") for number in range(0, 300, 10)))
        assert (await ask(server, "/bucket/00000300")).status == 404
        assert (await ask(server, "/bucket/0000000001")).status == 404
    again = Synthetic(300, 1000, seed=5)
    assert [each.body for each in came] == [again.expected(again.key(number)) for number in range(0, 300, 10)]
    assert len({again.expected(again.key(number)) for number in range(300)}) == 300
    assert len({each.headers["etag"] for each in came}) == 30
    assert Synthetic(300, 1000, seed=6).expected("00000000") != again.expected("00000000")


@pytest.mark.asyncio
async def test_synthetic_objects_can_have_their_md5_as_etag() -> None:
    async with serving(objects=Synthetic(3, 10, md5=True)) as server:
        came = await ask(server, "/bucket/00000001")
    assert came.headers["etag"] == f'"{hashlib.md5(came.body).hexdigest()}"'


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "answers"),
    [
        ("server_error", {(500, b"InternalError"), (503, b"ServiceUnavailable")}),
        ("slow_down", {(503, b"SlowDown")}),
        ("not_found", {(404, b"NoSuchKey")}),
        ("not_satisfiable", {(416, b"InvalidRange")}),
        ("moved", {(301, b"PermanentRedirect")}),
    ],
)
async def test_refusals_have_s3s_status_and_code(fault: str, answers: set[tuple[int, bytes]]) -> None:
    came, _, counted = await asked_often(Faults(**{fault: 1.0}))  # type: ignore[arg-type]
    codes = {(each.status, each.body.partition(b"<Code>")[2].partition(b"</Code>")[0]) for each in came}
    assert codes == answers
    assert counted == {fault: 16}
    if fault == "moved":
        assert {each.headers["x-amz-bucket-region"] for each in came} == {"eu-central-1"}


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["reset", "truncated"])
async def test_a_body_breaks_off_in_the_midst(fault: str) -> None:
    came, _, counted = await asked_often(Faults(**{fault: 1.0}))  # type: ignore[arg-type]
    assert all(each.headers["content-length"] == "10240" and not each.whole for each in came)
    assert all(each.body == DATA[: len(each.body)] for each in came)
    assert {each.reset for each in came} == {fault == "reset"}
    assert counted == {fault: 16}


@pytest.mark.asyncio
async def test_one_bit_is_wrong_and_nothing_says_so() -> None:
    came, _, _ = await asked_often(Faults(flipped=1.0))
    for each in came:
        assert each.whole
        assert sum((a ^ b).bit_count() for a, b in zip(each.body, DATA, strict=True)) == 1
        assert each.headers["etag"] == f'"{hashlib.md5(DATA).hexdigest()}"'


@pytest.mark.asyncio
async def test_a_wrong_length_is_one_that_http_finds_right() -> None:
    came, _, _ = await asked_often(Faults(wrong_length=1.0))
    assert all(each.whole for each in came)
    lengths = {len(each.body) for each in came}
    assert min(lengths) < len(DATA) < max(lengths)


@pytest.mark.asyncio
async def test_a_refused_connection_is_reset_before_it_is_of_use() -> None:
    came, _, counted = await asked_often(Faults(refused=1.0))
    assert all(each.status == 0 for each in came)
    assert counted == {"refused": 16}


def test_what_it_has_counted_is_told_though_connections_are_refused() -> None:
    with FaultServer({"key": DATA}, Faults(refused=0.5), seed=1) as server:
        for _ in range(20):
            server.served()
        assert server.served().faults["refused"] > 0


@pytest.mark.asyncio
async def test_stalls_are_before_the_answer_or_amidst_it_and_then_it_goes_on() -> None:
    came, _, counted = await asked_often(Faults(stalled=1.0, stall=(0.05, 0.06)))
    assert all(each.whole and each.body == DATA for each in came)
    assert all(each.seconds >= 0.049 for each in came)
    assert counted == {"stalled": 16}


@pytest.mark.asyncio
async def test_latency_bandwidth_and_new_connections_take_their_time() -> None:
    came, _, _ = await asked_often(Faults(latency=Latency(median=0.03, round_trip=0.02)), 4)
    assert all(each.seconds >= 0.049 for each in came)
    came, _, _ = await asked_often(Faults(bandwidth=200 * 1024, bandwidth_spread=0.0), 4)  # 10 KiB: 50 ms
    assert all(each.seconds >= 0.045 and each.body == DATA for each in came)


@pytest.mark.asyncio
async def test_a_slow_loris_trickles() -> None:
    async with serving(Faults(loris=1.0), {"key": DATA[:100]}) as server:
        came = await ask(server, "/bucket/key")
    assert came.body == DATA[:100]
    assert came.seconds > 0.03  # 64 bytes go at once


@pytest.mark.asyncio
async def test_more_than_the_limit_is_told_to_slow_down() -> None:
    came, _, counted = await asked_often(Faults(throttle=0.001, burst=10))
    assert sorted(each.status for each in came) == [200] * 10 + [503] * 6
    assert counted == {"slow_down": 6}


def signed(access_key: str) -> str:
    scope = "20250101/us-east-1/s3/aws4_request"
    return f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders=host, Signature=00"


@pytest.mark.asyncio
async def test_credentials_that_were_in_use_expire_and_others_do_not() -> None:
    async with serving(Faults(expired_at=0.05)) as server:
        while (await ask(server, "/bucket/key", Authorization=signed("old"))).status == 200:
            pass
        refused = await ask(server, "/bucket/key", Authorization=signed("old"))
        renewed = await ask(server, "/bucket/key", Authorization=signed("new"))
    assert (refused.status, renewed.status) == (403, 200)
    assert b"<Code>ExpiredToken</Code>" in refused.body


@pytest.mark.asyncio
async def test_only_allowed_access_keys_get_in_and_any_can_be_made_to_expire() -> None:
    async with FaultServer({"key": DATA}, allowed=["one", "two"], in_process=True) as server:
        who = {"one": 200, "two": 200, "three": 403}
        assert {key: (await ask(server, "/b/key", Authorization=signed(key))).status for key in who} == who
        assert (await ask(server, "/b/key?X-Amz-Credential=two%2F2025%2Fus-east-1")).status == 200
        assert b"<Code>AccessDenied</Code>" in (await ask(server, "/b/key")).body
        server.expire("one")
        assert b"<Code>ExpiredToken</Code>" in (await ask(server, "/b/key", Authorization=signed("one"))).body
        assert (await ask(server, "/b/key", Authorization=signed("two"))).status == 200
        assert server.environment()["AWS_ACCESS_KEY_ID"] == "one"


@pytest.mark.asyncio
async def test_it_counts_requests_by_kind_and_begins_afresh() -> None:
    async with serving() as server:
        await asyncio.gather(*(ask(server, "/bucket/key") for _ in range(5)))
        await ask(server, "/bucket/key", "HEAD")
        await ask(server, "/bucket?list-type=2")
        await ask(server, "/bucket/new", "PUT", b"x")
        served = server.served(afresh=True)
        assert served.requests == {"GET": 5, "HEAD": 1, "LIST": 1, "PUT": 1}
        assert (served.connections, served.answered, served.in_flight) == (8, 8, 0)
        assert served.bytes_sent > 5 * len(DATA)
        assert not server.served().requests


@pytest.mark.asyncio
async def test_who_is_cancelled_while_its_process_starts_leaves_none() -> None:
    server = FaultServer({"key": DATA})
    task = asyncio.create_task(server.start())
    for _ in range(3):  # until a thread is at it
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert repr(server).startswith("FaultServer('not running'")


@pytest.mark.asyncio
async def test_what_is_in_flight_is_counted_until_its_client_goes() -> None:
    async with serving(Faults(latency=Latency(median=30.0))) as server:
        tasks = [asyncio.ensure_future(ask(server, "/bucket/key")) for _ in range(3)]
        await until(lambda: server.served().in_flight == 3)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await until(lambda: not server.served().open_connections)
        served = server.served()
        assert (served.in_flight, served.most_in_flight, served.answered) == (0, 3, 0)


@pytest.mark.asyncio
async def test_faults_can_be_changed_while_it_runs() -> None:
    async with serving() as server:
        assert (await ask(server, "/bucket/key")).status == 200
        server.change(Faults(moved=1.0))
        assert (await ask(server, "/bucket/key")).status == 301
        server.change(Faults())
        assert (await ask(server, "/bucket/key")).status == 200


@pytest.mark.asyncio
async def test_the_same_seed_has_the_same_faults_for_the_same_objects() -> None:
    async def statuses(seed: int) -> list[int]:
        made = Synthetic(40, 10)
        async with FaultServer(made, Faults(server_error=0.5), seed, in_process=True) as server:
            return [(await ask(server, f"/bucket/{key}")).status for key in map(made.key, range(40))]

    first, second, other = [await statuses(seed) for seed in (1, 1, 2)]
    assert first == second != other


@pytest.mark.asyncio
async def test_it_ends_while_clients_wait() -> None:
    async with serving(Faults(latency=Latency(median=30.0))) as server:
        task = asyncio.ensure_future(ask(server, "/bucket/key"))
        await until(lambda: server.served().in_flight > 0)
    came = await task
    assert came.status == 0
    assert repr(server).startswith("FaultServer('not running', Faults(latency=")
