"""Requests that wait for their turn, and what becomes of a storm of 503s: in virtual time."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable
from dataclasses import dataclass, field
from math import inf
from random import Random

import pytest

from aloader.errors import NotOpen, ServerFailed, Throttled
from aloader.storage import Limited, Request, Response, Retrying, Store
from aloader.storage.permits import PERMITS, Permits
from aloader.testing.simloop import simulate
from tests.storage.wrappers.fakes import Scripted, Step, seeded


def test_no_more_than_the_limit_are_in_flight_and_they_go_in_the_order_they_came() -> None:
    inner = Scripted([1.0] * 10, **{str(i): b"" for i in range(10)})
    store = Limited(inner, 3)

    async def main() -> float:
        async with store:
            await asyncio.gather(*(store.get(str(i)) for i in range(10)))
            assert (store.stats().in_flight, store.stats().waiting, store.stats().requests) == (0, 0, 10)
            return asyncio.get_running_loop().time()

    assert simulate(main, seed=None) == 4.0
    assert inner.most_in_flight == 3
    assert [request.key for request in inner.requests] == [str(i) for i in range(10)]


def test_size_and_put_take_turns_too() -> None:
    inner = Scripted([1.0, 1.0], a=b"1")
    store = Limited(inner, 1)

    async def main() -> float:
        async with store:
            await asyncio.gather(store.get("a"), store.size("a"), store.put("b", b"2"))
            return asyncio.get_running_loop().time()

    assert simulate(main) == 2.0
    assert inner.most_in_flight == 1


@pytest.mark.parametrize("seed", range(20))
def test_turns_of_cancelled_requests_go_to_the_next(seed: int) -> None:
    inner = Scripted([0.1] * 100, k=b"")
    store, random = Limited(inner, 2), Random(seed)

    async def main() -> None:
        async with store:
            tasks = [asyncio.ensure_future(store.get("k")) for _ in range(30)]
            for task in random.sample(tasks, 15):
                await asyncio.sleep(random.choice([0, 0, 0.05, 0.1]))  # sleep: virtual
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            stats = store.stats()
            assert (stats.in_flight, stats.waiting) == (0, 0)
            await asyncio.gather(store.get("k"), store.get("k"))
        assert inner.most_in_flight == 2

    simulate(main, seed)


@pytest.mark.parametrize("seed", range(10))
def test_everybody_gets_a_turn_whatever_is_refused_and_given_up_and_whoever_deals_shares(seed: int) -> None:
    random = Random(seed)
    throttled = Throttled("slow down", retry_after=0.1)
    outcomes: list[Step | tuple[Step, ...]] = [0.03, (0.01, throttled), ServerFailed("500")]
    inner = Scripted(random.choices(outcomes, [3, 2, 1], k=1000), k=b"")
    store = seeded(Limited, seed)(inner, 8)

    async def impatient() -> None:
        try:
            async with asyncio.timeout(random.choice([0.0, 0.05, 1.0, 100.0])):
                await store.get("k")
        except (TimeoutError, Throttled, ServerFailed):
            pass

    async def main() -> None:
        permits = Permits()
        PERMITS.set(permits)
        async with store:
            tasks = [asyncio.ensure_future(impatient()) for _ in range(100)]
            for _ in range(20):
                await asyncio.sleep(0.1)  # sleep: virtual
                permits.share = random.random()
            await asyncio.gather(*tasks)
            stats = store.stats()
            assert (stats.in_flight, stats.waiting) == (0, 0)
            assert stats.limit >= 1
        assert inner.most_in_flight <= 8

    simulate(main, seed)


def test_nobody_waits_for_a_store_that_was_closed() -> None:
    store = Limited(Scripted([1.0], k=b""), 1)

    async def main() -> None:
        async with store:
            running, waiting = (asyncio.ensure_future(store.get("k")) for _ in range(2))
            await asyncio.sleep(0.5)  # sleep: virtual
        with pytest.raises(NotOpen, match="was closed while a request waited for its turn"):
            await waiting
        await running

    simulate(main, seed=None)


def test_a_share_that_is_dealt_from_outside_holds_at_once_and_refusals_are_told() -> None:
    inner = Scripted([1.0] * 12 + [Throttled("slow down")], k=b"")
    store, told = Limited(inner, 8), list[int]()

    async def main() -> None:
        permits = Permits(0.25, told.append)
        PERMITS.set(permits)
        async with store:
            await asyncio.gather(*(store.get("k") for _ in range(4)))
            assert inner.most_in_flight == 2
            permits.share = 1.0
            await asyncio.gather(*(store.get("k") for _ in range(8)))
            assert inner.most_in_flight == 8
            with pytest.raises(Throttled):
                await store.get("k")

    simulate(main)
    assert told == [1]


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_part(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Permits(share)


def test_what_cannot_be_a_limit_is_refused_and_it_pickles() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Limited(Scripted(), 0)
    copy = pickle.loads(pickle.dumps(Limited(Scripted(), 7)))
    assert (copy.concurrency, repr(copy)) == (7, "Limited(Scripted())")


@dataclass
class Bucket:
    """What a server allows: so many requests a second. All others get a 503 at once."""

    rate: float
    burst: float = 20.0
    random: Random = field(default_factory=lambda: Random(1))
    tokens: float = 0.0
    at: float = 0.0

    def admits(self, now: float) -> bool:
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Client(Scripted):
    """Who asks this server, and what came of it: the time of every answer, and whether it was one."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(k=b"x")
        self.bucket = bucket
        self.log: list[tuple[float, bool]] = []

    async def fetch(self, request: Request) -> Response:
        loop, random = asyncio.get_running_loop(), self.bucket.random
        admitted = self.bucket.admits(loop.time())
        await asyncio.sleep(0.01 + random.lognormvariate(-3.9, 0.62) if admitted else 0.002)  # sleep: virtual
        self.log.append((loop.time(), admitted))
        if not admitted:
            raise Throttled("slow down", request.key)
        return Response(b"x", 1)

    def after(self, begin: float) -> tuple[int, int]:
        """Requests and successes from then on."""
        log = [good for at, good in self.log if at >= begin]
        return len(log), sum(log)


def storm(clients: list[Client], tasks: int, seconds: float) -> None:
    """So many tasks per client that want all the time."""

    async def want(store: Store) -> None:
        while asyncio.get_running_loop().time() < seconds:
            assert await store.get("k") == b"x"

    async def run(seed: int, client: Client) -> None:
        async with seeded(Retrying, seed)(seeded(Limited, seed)(client)) as store:
            await asyncio.gather(*(want(store) for _ in range(tasks)))

    async def main() -> None:
        work: list[Awaitable[None]] = [run(seed, client) for seed, client in enumerate(clients)]
        await asyncio.gather(*work)

    simulate(main, seed=None)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [64, 256])
def test_a_storm_of_503s_ends_in_a_rate_just_under_what_the_server_allows(tasks: int) -> None:
    client = Client(Bucket(500.0))
    storm([client], tasks, 15.0)
    requests, served = client.after(10.0)
    assert requests <= 1.05 * served
    assert served >= 0.9 * 500 * 5


@pytest.mark.slow
def test_clients_that_do_not_talk_share_what_the_server_allows() -> None:
    clients = [Client(Bucket(500.0))]
    clients += [Client(clients[0].bucket) for _ in range(3)]
    storm(clients, 64, 20.0)
    served = [client.after(12.0)[1] for client in clients]
    assert sum(served) >= 0.9 * 500 * 8
    assert sum(client.after(12.0)[0] for client in clients) <= 1.1 * sum(served)
    assert min(served) >= 0.6 * max(served)


def test_a_server_that_does_not_throttle_is_not_held_back() -> None:
    limited = Limited(Scripted([0.03] * 600, k=b"x"))

    async def main() -> None:
        async with limited:
            for _ in range(4):
                await asyncio.gather(*(limited.get("k") for _ in range(128)))
            assert asyncio.get_running_loop().time() == pytest.approx(0.12)
            assert limited.stats().rate == inf

    simulate(main)
