"""Two requests for the same bytes, and what becomes of each: in virtual time."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aloader.errors import BrokenTransfer, KeyNotFound, ServerFailed
from aloader.storage import Hedged, Limited, Request, Response, Retrying, Store
from aloader.storage.wrappers.hedged import HedgeStats
from aloader.testing import Faults, FaultyStore, simulate
from tests.storage.wrappers.fakes import Scripted, Step, seeded

#: Requests that teach it that one takes a second; enough for some tokens too.
TAUGHT = 120


def taught(script: list[Step | tuple[Step, ...]]) -> Scripted:
    lessons: list[Step | tuple[Step, ...]] = [1.0] * TAUGHT
    return Scripted(lessons + script, k=b"data")


def race(
    inner: Scripted, act: Callable[[Store], Awaitable[Any]] | None = None, around: Callable[[Store], Store] = Hedged
) -> tuple[Any, float]:
    """What comes of one get (or of `act`), and the seconds that it takes."""
    store = around(inner)

    async def main() -> tuple[Any, float]:
        loop = asyncio.get_running_loop()
        async with store:
            for _ in range(TAUGHT):
                await store.get("k")
            began = loop.time()
            inner.requests.clear()
            work = store.get("k") if act is None else act(store)
            result = (await asyncio.gather(work, return_exceptions=True))[0]
            assert inner.in_flight == 0
            return result, loop.time() - began

    return simulate(main)


def test_a_second_request_is_sent_when_the_first_is_late_and_the_first_answer_counts() -> None:
    inner = taught([100.0, 1.0])
    result, seconds = race(inner)
    assert (result, inner.cancelled) == (b"data", 1)
    assert seconds == pytest.approx(2.0, rel=0.1)
    assert inner.requests == [Request("k")] * 2


def test_the_first_request_may_still_be_the_first_to_answer() -> None:
    inner = taught([1.5, 100.0])
    assert race(inner) == (b"data", 1.5)
    assert inner.cancelled == 1


def test_a_third_is_sent_when_the_second_is_late_too_and_no_fourth() -> None:
    inner = taught([100.0, 100.0, 100.0, 1.0])
    _, seconds = race(inner)
    assert (len(inner.requests), inner.cancelled) == (3, 2)
    assert seconds == pytest.approx(100.0)


def test_if_one_fails_the_other_is_waited_for() -> None:
    failed = ServerFailed("500")
    assert race(taught([(1.5, failed), 2.0]))[0] == b"data"
    assert race(taught([4.0, (0.1, failed), 9.0])) == (b"data", 4.0)


def test_if_both_fail_it_is_the_first_ones_error() -> None:
    first, second = ServerFailed("first"), ServerFailed("second")
    assert race(taught([(1.5, first), (0.9, second)]))[0] is first
    assert race(taught([(1.9, first), (0.1, second)]))[0] is first


def test_a_second_request_that_its_store_drops_does_not_cancel_whoever_asks() -> None:
    def dropped(request: Request, answer: Response) -> Response:
        raise asyncio.CancelledError

    first = ServerFailed("first")
    assert race(taught([(1.5, first), (1.0, dropped)]))[0] is first


def test_an_error_before_anything_is_late_is_raised_at_once() -> None:
    inner = taught([(0.5, ServerFailed("500"))])
    error, seconds = race(inner)
    assert (type(error), seconds, len(inner.requests)) == (ServerFailed, 0.5, 1)


def test_a_third_is_sent_only_while_the_first_is_alive() -> None:
    inner = taught([(1.2, ServerFailed("500")), 5.0])
    assert race(inner)[0] == b"data"
    assert len(inner.requests) == 2


def test_cancelling_ends_all_of_them() -> None:
    inner = taught([100.0, 100.0])

    async def cancelled(store: Store) -> None:
        task = asyncio.ensure_future(store.get("k"))
        await asyncio.sleep(1.5)  # sleep: virtual, until both are on their way
        assert inner.in_flight == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert race(inner, cancelled)[0] is None
    assert inner.cancelled == 2


class Lingering(Scripted):
    """It takes two seconds to end a request that is cancelled."""

    async def _act(self, request: Request, steps: tuple[Step, ...]) -> Response:
        try:
            return await super()._act(request, steps)
        except asyncio.CancelledError:
            await asyncio.sleep(2.0)  # sleep: virtual, what it takes
            raise


def test_who_is_cancelled_while_the_losers_end_waits_for_them_all_the_same() -> None:
    inner = Lingering([1.0] * TAUGHT + [1.5, 100.0], k=b"data")

    async def cancelled(store: Store) -> None:
        task = asyncio.ensure_future(store.get("k"))
        await asyncio.sleep(2.5)  # sleep: virtual, until the first has answered, and the second is being ended
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert race(inner, cancelled)[1] == pytest.approx(3.5)


def test_two_that_answer_while_the_first_is_being_ended_do_no_harm() -> None:
    inner = Lingering([1.0] * TAUGHT + [100.0, 2.0, 1.5], k=b"data")
    complaints: list[dict[str, Any]] = []

    async def watched(store: Store) -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        return await store.get("k")

    assert race(inner, watched) == (b"data", pytest.approx(5.0, rel=0.1))
    assert (len(inner.requests), complaints) == (3, [])


def test_stats_tell_how_many_were_sent_and_won() -> None:
    async def stats(store: Store) -> HedgeStats:
        await store.get("k")
        assert isinstance(store, Hedged)
        return store.stats()

    assert race(taught([100.0, 1.0]), stats)[0] == HedgeStats(TAUGHT + 1, 1, 1)


def test_a_request_that_waits_for_its_turn_is_not_late() -> None:
    inner = taught([5.0] + [1.0] * 20)

    async def crowd(store: Store) -> list[bytes]:
        return await asyncio.gather(*(store.get("k") for _ in range(21)))

    race(inner, crowd, lambda store: Hedged(Limited(store, 2)))
    assert len(inner.requests) == 21  # the late one's second was still waiting when the first had its answer


def test_a_second_request_that_never_got_its_turn_costs_nothing() -> None:
    inner = taught([5.0, 1.0])

    async def both(store: Store) -> HedgeStats:
        await asyncio.gather(store.get("k"), store.get("k"))
        assert isinstance(store, Hedged)
        return store.stats()

    assert race(inner, both, lambda store: Hedged(Limited(store, 1)))[0].hedged == 0
    assert len(inner.requests) == 2


def test_a_deadline_around_it_holds_also_when_second_requests_wait_for_their_turns() -> None:
    inner = taught([1e9] * 9)
    error, seconds = race(inner, None, lambda store: Retrying(Hedged(Limited(store, 1)), deadline=20.0))
    assert (type(error), seconds) == (BrokenTransfer, 20.0)


def test_missing_keys_and_numbers_without_sense() -> None:
    async def missing(store: Store) -> bytes:
        return await store.get("missing")

    assert type(race(taught([]), missing)[0]) is KeyNotFound
    with pytest.raises(ValueError, match="quantile="):
        Hedged(Scripted(), 1.0)
    with pytest.raises(ValueError, match="budget="):
        Hedged(Scripted(), budget=2.0)
    copy = pickle.loads(pickle.dumps(Hedged(Scripted(), 0.9, 0.1)))
    assert (copy.quantile, copy.budget, repr(copy)) == (0.9, 0.1, "Hedged(Scripted())")


class Versioned(Scripted):
    """As a bucket: with versions, so that `FaultyStore` need not make digests."""

    async def fetch(self, request: Request) -> Response:
        return self.answer(request)


def batches(make: Callable[[Store], Store], count: int) -> tuple[list[float], float]:
    """Seconds per batch of 64 x 100 KiB, sorted, from a store as S3 is; and the requests for each that was needed."""
    inner = Versioned(**{str(i): bytes(100 * 1024) for i in range(64)})
    faulty = FaultyStore(inner, Faults.preset("standard"), seed=1)
    store = make(faulty)

    async def main() -> list[float]:
        loop, seconds = asyncio.get_running_loop(), list[float]()
        async with store:
            for _ in range(count):
                began = loop.time()
                await asyncio.gather(*map(store.get, inner.objects))
                seconds.append(loop.time() - began)
        return sorted(seconds[5:])

    return simulate(main, seed=None), faulty.counts().requests / (count * 64)


@pytest.mark.slow
def test_the_slowest_batches_take_twice_the_usual_time_for_one_request_in_twenty() -> None:
    hedged, requests = batches(lambda store: seeded(Retrying, 1)(Hedged(Limited(store))), 75)
    plain, _ = batches(lambda store: seeded(Retrying, 1)(Limited(store)), 25)
    assert requests <= 1.05 + 0.005  # the rest are attempts after errors
    assert hedged[-2] <= 2 * hedged[len(hedged) // 2]
    assert sum(hedged) / len(hedged) <= 0.5 * sum(plain) / len(plain)
