"""All wrappers around a store that does everything wrong: the right bytes or an error that says why, and no hang."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from aloader.errors import Corrupted, CredentialsExpired, StorageError
from aloader.storage import Hedged, Limited, MemoryStore, Parted, Request, Response, Retrying, Store, Verified
from aloader.storage.wrappers.wrapper import Wrapper
from aloader.testing import Faults, FaultyStore, simulate
from tests.storage.wrappers.fakes import seeded

DEADLINE = 20.0

#: Everything that S3 does wrong, ten times as often.
STANDARD = Faults.preset("standard").times(10)

#: And what it does not, or should not.
WORSE = replace(
    STANDARD,
    slow_down=0.02, truncated=0.02, wrong_length=0.01, refused=0.005, loris=0.002, throttle=400.0, burst=20,
    expired_at=1.0,
)  # fmt: skip


def objects(random: Random, count: int) -> dict[str, bytes]:
    """Small ones, and some that are read in parts."""
    return {f"key-{i}": random.randbytes(random.choice([0, 1, 1000, 4000, 9000, 40_000])) for i in range(count)}


class Bucket(MemoryStore):
    """With versions and digests, as buckets have them: `FaultyStore` would make them anew for each request."""

    def __init__(self, data: dict[str, bytes]) -> None:
        super().__init__(data)
        self.digests = {key: {"md5": hashlib.md5(whole).hexdigest()} for key, whole in data.items()}

    async def fetch(self, request: Request) -> Response:
        answer = await super().fetch(request)
        digests = self.digests[request.key]
        return answer._replace(version=digests["md5"], digests=digests)


class Renewing(Wrapper):
    """Renews its credentials when they have expired, for the next attempt: as stores do."""

    def __init__(self, store: FaultyStore) -> None:
        super().__init__(store)
        self.renew = store.renew

    async def fetch(self, request: Request) -> Response:
        try:
            return await super().fetch(request)
        except CredentialsExpired:
            self.renew()
            raise

    async def size(self, key: str) -> int:
        try:
            return await super().size(key)
        except CredentialsExpired:
            self.renew()
            raise


def stack(store: Store, seed: int = 0) -> Store:
    hedged = Hedged(seeded(Limited, seed)(store, 32), budget=0.1)
    return Verified(Parted(seeded(Retrying, seed)(hedged, deadline=DEADLINE), 8192, 4096), "all")


async def epoch(store: Store, data: dict[str, bytes], random: Random) -> list[Any]:
    """Every object once, and ranges of some: what came, or the error, with what it should be."""
    wanted: list[tuple[str, Awaitable[Any], Any]] = [(key, store.get(key), whole) for key, whole in data.items()]
    for key in random.sample(sorted(key for key, whole in data.items() if len(whole) > 2), 16):
        whole = data[key]
        start, stop = sorted(random.sample(range(len(whole) + 1), 2))
        wanted.append((key, store.get(key, start, stop), whole[start:stop]))
        ranges = [(start, stop), (0, 1), (stop - 1, stop)]
        wanted.append((key, store.get_ranges(key, ranges), [whole[a:b] for a, b in ranges]))
        wanted.append((key, store.size(key), len(whole)))
    came = await asyncio.gather(*(work for _, work, _ in wanted), return_exceptions=True)
    return [(key, result, right) for (key, _, right), result in zip(wanted, came, strict=True)]


def check(key: str, result: Any, right: Any) -> bool:
    """Whether it is the right result. Otherwise it must be an error that says what was done about what."""
    if not isinstance(result, BaseException):
        assert result == right, f"{key}: wrong bytes"
        return True
    assert isinstance(result, StorageError), repr(result)
    assert result.key == key
    assert key in str(result)
    assert result.attempts > 1
    if isinstance(result, Corrupted):
        assert "came damaged, twice" in str(result)
        return False
    assert f"({result.attempts} attempts in" in str(result)
    assert isinstance(result.__cause__, StorageError)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("faults", [STANDARD, WORSE], ids=["standard", "worse"])
@pytest.mark.parametrize("first", range(0, 50, 25))
def test_an_epoch_is_right_whatever_the_store_does_wrong(faults: Faults, first: int) -> None:
    right = wrong = 0
    for seed in range(first, first + 25):
        random = Random(seed)
        data = objects(random, 64)
        faulty = FaultyStore(Bucket(data), faults, seed)
        store = stack(Renewing(faulty), seed)

        async def main(store: Store = store, data: dict[str, bytes] = data, random: Random = random) -> list[Any]:
            async with store:
                results = await epoch(store, data, random)
            assert asyncio.get_running_loop().time() < 3 * DEADLINE
            return results

        for each in simulate(main, seed):
            if check(*each):
                right += 1
            else:
                wrong += 1
        assert faulty.counts().in_flight == 0
    assert wrong <= 0.001 * right


def test_flipped_bits_are_seen_in_whole_objects_also_of_those_that_are_read_in_parts() -> None:
    data = objects(Random(0), 64)
    faulty = FaultyStore(Bucket(data), Faults(flipped=0.01), 0)
    store = stack(Renewing(faulty))

    async def main() -> list[bytes]:
        async with store:
            return await store.get_many(data)

    assert simulate(main) == list(data.values())
    assert faulty.counts().faults["flipped"] > 0


def test_a_store_that_is_down_is_an_error_for_each_key_and_no_flood() -> None:
    data = {f"key-{i}": b"x" for i in range(200)}
    faulty = FaultyStore(MemoryStore(data), Faults(server_error=1.0))
    store = Verified(Parted(Retrying(Hedged(Limited(faulty)), budget=100)), "all")

    async def main() -> list[Any]:
        async with store:
            return await asyncio.gather(*map(store.get, data), return_exceptions=True)

    assert all(isinstance(result, StorageError) for result in simulate(main))
    assert faulty.counts().requests == 300


def test_a_network_that_swallows_everything_ends_at_the_deadline() -> None:
    data = {f"key-{i}": b"x" for i in range(20)}
    faulty = FaultyStore(MemoryStore(data), Faults(stalled=1.0, stall=(1e9, 1e9)))
    store = Verified(Parted(Retrying(Hedged(Limited(faulty, 5)), deadline=10.0)), "all")

    async def main() -> float:
        async with store:
            results = await asyncio.gather(*map(store.get, data), return_exceptions=True)
            assert all(isinstance(result, StorageError) for result in results)
            return asyncio.get_running_loop().time()

    assert simulate(main) == pytest.approx(4 * 10.0)  # four rounds of five at once
    assert faulty.counts().in_flight == 0
