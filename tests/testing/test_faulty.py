"""`FaultyStore`: what it raises, returns and counts. In virtual time: its seconds take none."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from aloader.errors import (
    BadRange,
    BrokenTransfer,
    CredentialsExpired,
    KeyNotFound,
    ObjectChanged,
    ServerFailed,
    StorageError,
    StoreUnreachable,
    Throttled,
)
from aloader.storage import MemoryStore
from aloader.storage.base import Request, Response
from aloader.testing import Faults, FaultyStore, Latency, simulate

T = TypeVar("T")

DATA = bytes(range(256)) * 4


def used(faults: Faults, use: Callable[[FaultyStore], Awaitable[T]], seed: int = 0) -> tuple[T, FaultyStore, float]:
    """What comes of it, the store afterwards, and the seconds that it took."""
    store = FaultyStore(MemoryStore({"key": DATA} | {f"{number}": DATA for number in range(100)}), faults, seed)

    async def main() -> tuple[T, float]:
        async with store:
            began = asyncio.get_running_loop().time()
            return await use(store), asyncio.get_running_loop().time() - began

    result, seconds = simulate(main)
    return result, store, seconds


async def all_of_them(store: FaultyStore) -> list[bytes | BaseException]:
    return await asyncio.gather(*(store.get(f"{number}") for number in range(100)), return_exceptions=True)


async def fetched(store: FaultyStore) -> Response:
    return await store.fetch(Request("key"))


def test_without_faults_it_is_the_store_inside() -> None:
    async def use(store: FaultyStore) -> tuple[object, ...]:
        await store.put("new", b"12345")
        listed = [info.key async for info in store.list("ne")]
        return await store.get("key"), await store.get("new", 1, 3), await store.size("new"), listed

    result, store, seconds = used(Faults(), use)
    assert result == (DATA, b"23", 5, ["new"])
    assert (seconds, store.counts().requests, store.counts().faults) == (0, 5, {})


@pytest.mark.parametrize(
    ("fault", "kind", "status"),
    [
        ("server_error", ServerFailed, {500, 503}),
        ("slow_down", Throttled, {503}),
        ("refused", StoreUnreachable, {0}),
        ("not_found", KeyNotFound, {404}),
        ("not_satisfiable", BadRange, {416}),
        ("moved", StorageError, {301}),
        ("reset", BrokenTransfer, {0}),
        ("truncated", BrokenTransfer, {0}),
    ],
)
def test_it_raises_what_real_stores_raise(fault: str, kind: type[StorageError], status: set[int]) -> None:
    errors, store, _ = used(Faults(**{fault: 1.0}), all_of_them)  # type: ignore[arg-type]
    assert {type(error) for error in errors} == {kind}
    assert {error.status for error in errors if isinstance(error, StorageError)} == status
    assert [error.key for error in errors if isinstance(error, StorageError)] == [f"{number}" for number in range(100)]
    assert store.counts().faults == {fault: 100}


def test_a_broken_transfer_has_what_came_before_it_broke() -> None:
    errors, _, _ = used(Faults(reset=0.5, truncated=0.5), all_of_them)
    for error in errors:
        assert isinstance(error, BrokenTransfer)
        assert error.received == DATA[: len(error.received)]
        assert (error.size, error.version) == (len(DATA), f'"{hashlib.md5(DATA).hexdigest()}"')
    assert len({len(error.received) for error in errors if isinstance(error, BrokenTransfer)}) > 50


@pytest.mark.parametrize("fault", ["flipped", "wrong_length"])
def test_wrong_bytes_come_with_the_digest_of_the_right_ones(fault: str) -> None:
    answer, _, _ = used(Faults(**{fault: 1.0}), fetched)  # type: ignore[arg-type]
    assert answer.data != DATA
    assert answer.digests == {"md5": hashlib.md5(DATA).hexdigest()}


def test_parts_of_an_object_have_its_version_and_no_digest() -> None:
    async def use(store: FaultyStore) -> tuple[Response, str]:
        part = await store.fetch(Request("key", 3, 7))
        with pytest.raises(ObjectChanged):
            await store.fetch(Request("key", 3, 7, "another"))
        return part, (await store.fetch(Request("key", version=part.version))).version

    (part, version), _, _ = used(Faults(), use)
    assert part == Response(DATA[3:7], len(DATA), version, {})


def test_latencies_stalls_and_bandwidths_are_waited_for() -> None:
    assert used(Faults(latency=Latency(median=3.0)), fetched)[2] == 3.0
    assert used(Faults(bandwidth=512, bandwidth_spread=0), fetched)[2] == 2.0
    assert used(Faults(loris=1.0), fetched)[2] == 1.0
    seconds = [used(Faults(stalled=1.0), fetched, seed)[2] for seed in range(10)]
    assert all(2 <= each <= 10 for each in seconds)


def test_more_requests_than_the_limit_are_told_to_slow_down() -> None:
    async def twice(store: FaultyStore) -> tuple[int, int]:
        first = await all_of_them(store)
        await asyncio.sleep(2)  # sleep: virtual, for tokens to come back
        again = await all_of_them(store)
        return sum(isinstance(each, Throttled) for each in first), sum(isinstance(each, Throttled) for each in again)

    assert used(Faults(throttle=10, burst=30), twice)[0] == (70, 80)


def test_expired_credentials_are_refused_until_they_are_renewed() -> None:
    async def use(store: FaultyStore) -> bytes:
        await store.get("key")
        await asyncio.sleep(60)  # sleep: virtual, until they expire
        with pytest.raises(CredentialsExpired, match="renew them"):
            await store.get("key")
        store.renew()
        return await store.get("key")

    assert used(Faults(expired_at=60), use)[0] == DATA


def test_it_counts_what_is_in_flight() -> None:
    async def use(store: FaultyStore) -> int:
        task = asyncio.ensure_future(all_of_them(store))
        await asyncio.sleep(1)  # sleep: virtual, to the midst of the requests
        in_flight = store.counts().in_flight
        await task
        return in_flight

    in_flight, store, _ = used(Faults(latency=Latency(median=2.0)), use)
    assert in_flight == 100
    assert (store.counts().in_flight, store.counts().most_in_flight) == (0, 100)


def test_the_same_seed_gives_the_same_results() -> None:
    faults = Faults.preset("standard").times(200)
    runs = [used(faults, all_of_them, seed) for seed in (1, 1, 2)]
    first, second, other = ([repr(each) for each in results] for results, _, _ in runs)
    assert first == second != other
    assert runs[0][2] == runs[1][2] != runs[2][2]


def test_a_cancelled_request_is_no_longer_in_flight() -> None:
    async def use(store: FaultyStore) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await store.get("key")

    _, store, _ = used(Faults(latency=Latency(median=2.0)), use)
    assert store.counts().in_flight == 0


def test_it_pickles_as_one_that_has_not_been_used() -> None:
    _, store, _ = used(Faults(reset=0.5), all_of_them, seed=3)
    copy = pickle.loads(pickle.dumps(store))
    assert repr(copy) == repr(store) == f"FaultyStore({store.store!r}, Faults(reset=0.5), seed=3)"
    assert copy.counts().requests == 0
