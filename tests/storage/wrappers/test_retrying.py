"""Attempts as they are made: in virtual time."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest

from aloader import errors
from aloader.storage import Hedged, Request, Response, Retrying, Store
from aloader.storage.wrappers.queueing import QUEUEING
from aloader.storage.wrappers.wrapper import Wrapper
from aloader.testing.simloop import simulate
from tests.storage.wrappers.fakes import Scripted

FAILED = errors.ServerFailed("cannot read 'k': the server answered 500", "k", status=500)


def broken(received: bytes = b"", version: str = "1", size: int = 10, stalled: bool = False) -> errors.BrokenTransfer:
    return errors.BrokenTransfer("it broke", "k", received=received, version=version, size=size, stalled=stalled)


def during(store: Store, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of the work, and the virtual seconds it took."""

    async def main() -> Any:
        async with store:
            result = await asyncio.gather(work, return_exceptions=True)
            return result[0], asyncio.get_running_loop().time()

    return simulate(main)


def test_what_fails_once_is_asked_for_again() -> None:
    inner = Scripted([FAILED, broken(), errors.Throttled("slow down")], k=b"0123456789")
    store = Retrying(inner)
    data, _ = during(store, store.get("k"))
    assert data == b"0123456789"
    assert len(inner.requests) == 4
    assert inner.opened == 0


def test_a_store_that_says_how_long_to_wait_is_left_alone_for_so_long() -> None:
    store = Retrying(Scripted([errors.Throttled("slow down", retry_after=3.0)], k=b""), first_delay=1.0)
    assert 3.0 <= during(store, store.get("k"))[1] <= 4.0


def test_the_error_is_of_the_last_ones_type_and_says_how_often_it_was_tried() -> None:
    inner = Scripted([FAILED] * 9, k=b"")
    store = Retrying(inner, 3, first_delay=1.0)
    error, seconds = during(store, store.get("k"))
    assert type(error) is errors.ServerFailed
    assert str(error) == f"cannot read 'k': the server answered 500 (3 attempts in {seconds:.1f} s)"
    assert (error.key, error.attempts, error.status, error.__cause__) == ("k", 3, 500, FAILED)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_would_fail_again_is_raised_as_it_is() -> None:
    inner = Scripted(k=b"")
    store = Retrying(inner)
    error, seconds = during(store, store.get("missing"))
    assert (type(error), str(error), seconds) == (errors.KeyNotFound, "no object 'missing' in Scripted()", 0.0)
    assert error.__cause__ is None
    assert len(inner.requests) == 1


def test_an_error_that_is_not_the_stores_is_not_touched() -> None:
    mistake = RuntimeError("a mistake")
    store = Retrying(Scripted([FAILED, mistake], k=b""))
    error, _ = during(store, store.get("k"))
    assert error is mistake


def test_a_broken_body_is_resumed_by_range_and_version() -> None:
    inner = Scripted([broken(b"012"), broken(b"34", stalled=True)], k=b"0123456789")
    store = Retrying(inner)
    assert during(store, store.get("k", 0, 8))[0] == b"01234567"
    assert inner.requests == [Request("k", 0, 8), Request("k", 3, 8, "1"), Request("k", 5, 8, "1")]


def test_an_object_that_has_become_too_short_to_be_resumed_is_read_from_the_front() -> None:
    """As of a server that does not look at versions before it looks at ranges."""
    behind = errors.BadRange("'k' has 3 bytes: none from 7", "k", status=416)
    inner = Scripted([broken(b"0123456"), behind], k=b"new")
    store = Retrying(inner)
    assert during(store, store.get("k"))[0] == b"new"
    assert inner.requests == [Request("k"), Request("k", 7, 10, "1"), Request("k")]
    store = Retrying(Scripted([behind], k=b"new"))
    assert during(store, store.get("k", 7))[0] is behind


def test_a_body_that_breaks_again_and_again_comes_as_long_as_something_comes() -> None:
    inner = Scripted([broken(b"%d" % i) for i in range(9)], k=b"0123456789")
    store = Retrying(inner, 2)
    assert during(store, store.get("k"))[0] == b"0123456789"
    inner = Scripted([broken(b"0"), broken(b"1"), broken(), broken()], k=b"0123456789")
    store = Retrying(inner, 2)
    assert during(store, store.get("k"))[0].attempts == 4


def test_an_object_that_changes_meanwhile_is_read_from_the_front_once() -> None:
    inner = Scripted([broken(b"012")], k=b"0123456789")
    inner.replace("k", b"abcdefghij")
    store = Retrying(inner)
    assert during(store, store.get("k"))[0] == b"abcdefghij"
    assert [request.start for request in inner.requests] == [0, 3, 0]

    inner = Scripted([broken(b"012"), errors.ObjectChanged("x"), broken(b"abc", "2")], k=b"0123456789")
    inner.versions["k"] = "3"
    store = Retrying(inner)
    assert type(during(store, store.get("k"))[0]) is errors.ObjectChanged


def test_a_body_that_breaks_behind_its_last_byte_needs_no_more() -> None:
    inner = Scripted([broken(b"0123456789")], k=b"0123456789")
    store = Retrying(inner)
    assert during(store, store.fetch(Request("k")))[0] == Response(b"0123456789", 10, "1")
    assert len(inner.requests) == 1


def test_the_deadline_ends_the_attempt_that_runs() -> None:
    inner = Scripted([FAILED, 1e6], k=b"")
    store = Retrying(inner, deadline=5.0)
    error, seconds = during(store, store.get("k"))
    assert (type(error), seconds, inner.cancelled) == (errors.ServerFailed, 5.0, 1)
    assert str(error).endswith("answered 500 (2 attempts in 5.0 s: deadline=5 was over)")


def test_a_first_attempt_without_end_is_a_stalled_transfer() -> None:
    store = Retrying(Scripted([1e6], k=b""), deadline=5.0)
    error, _ = during(store, store.get("k"))
    assert (type(error), error.stalled, error.key, error.attempts) == (errors.BrokenTransfer, True, "k", 1)
    assert str(error) == "cannot read 'k' from Scripted(): it takes too long (1 attempt in 5.0 s: deadline=5 was over)"


def test_a_timeout_of_the_store_is_not_the_deadline() -> None:
    store = Retrying(Scripted([TimeoutError("its own")], k=b""))
    assert str(during(store, store.get("k"))[0]) == "its own"


def test_time_spent_waiting_for_a_turn_is_not_counted() -> None:
    class Queue(Wrapper):
        async def fetch(self, request: Request) -> Response:
            listener = QUEUEING.get()
            assert listener is not None
            listener.waits()
            await asyncio.sleep(1000)  # sleep: virtual, others' turns
            listener.goes()
            return await super().fetch(request)

    store = Retrying(Queue(Scripted([2.0], k=b"data")), deadline=5.0)
    assert during(store, store.get("k")) == (b"data", 1002.0)
    store = Retrying(Queue(Scripted([6.0], k=b"data")), deadline=5.0)
    error, seconds = during(store, store.get("k"))
    assert (type(error), seconds) == (errors.BrokenTransfer, 1005.0)
    assert "(1 attempt in 5.0 s: " in str(error)


def test_a_store_that_is_down_gets_each_request_once_when_the_budget_is_spent() -> None:
    inner = Scripted([FAILED] * 10_000, k=b"")
    store = Retrying(inner, budget=50)

    async def epoch() -> list[str]:
        return [str(each) for each in await asyncio.gather(*(failing() for _ in range(400)))]

    async def failing() -> str:
        with pytest.raises(errors.ServerFailed) as caught:
            await store.get("k")
        return str(caught.value)

    said, _ = during(store, epoch())
    assert len(inner.requests) == 450
    assert sum("no more, since too many requests to this store fail" in each for each in said) >= 350


def test_size_is_tried_again_and_stats_tell() -> None:
    inner = Scripted([FAILED, (), broken(b"0")], k=b"0123")
    store = Retrying(inner)

    async def both() -> Any:
        assert await store.size("k") == 4
        assert await store.get("k") == b"0123"
        return store.stats()

    stats = during(store, both())[0]
    assert (stats.requests, stats.retries, stats.resumed, stats.failed) == (2, 2, 1, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_what_broke_is_not_kept_longer_than_it_is_of_use(fails: bool) -> None:
    alive: list[weakref.ref[Exception]] = []

    def breaks(request: Request, answer: Response) -> Response:
        raise kept(broken(b"012"))

    def kept(error: Exception) -> Exception:
        alive.append(weakref.ref(error))
        return error

    store = Retrying(Hedged(Scripted([breaks, *[breaks] * 9 * fails], k=b"0123456789")), 2)

    async def main() -> None:
        async with store:
            gc.disable()
            try:
                await asyncio.gather(store.get("k"), return_exceptions=True)
                await asyncio.sleep(0)  # the loop lets go of it
                assert alive
                assert not any(error() for error in alive)
            finally:
                gc.enable()

    simulate(main)


def test_cancelling_ends_the_attempt_and_is_not_an_error() -> None:
    inner = Scripted([1e6], k=b"")
    store = Retrying(inner)

    async def main() -> None:
        async with store:
            task = asyncio.ensure_future(store.get("k"))
            await asyncio.sleep(1)  # sleep: virtual, until it runs
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (inner.cancelled, inner.opened) == (1, 0)

    simulate(main)


def test_the_users_generators_are_left_alone() -> None:
    random.seed(1)
    before = random.getstate()
    store = Retrying(Scripted([FAILED], k=b""))
    during(store, store.get("k"))
    assert random.getstate() == before


def test_it_pickles_as_closed_and_shows_what_is_inside() -> None:
    store = Retrying(Scripted(k=b""), 7)
    assert pickle.loads(pickle.dumps(store)).policy == store.policy
    assert repr(store) == "Retrying(Scripted())"


class Tidying(Scripted):
    """It waits for a turn, and goes, when it is cancelled."""

    async def fetch(self, request: Request) -> Response:
        try:
            return await super().fetch(request)
        except asyncio.CancelledError:
            listener = QUEUEING.get()
            assert listener is not None
            listener.waits()
            await asyncio.sleep(0)
            listener.goes()
            await asyncio.sleep(1.0)  # sleep: virtual, what it takes
            raise


def test_a_request_that_takes_its_time_to_end_does_not_stop_the_deadlines_of_others() -> None:
    inner = Tidying([100.0, 0.0, 100.0], k=b"")
    store = Retrying(inner, deadline=2.0)

    async def again() -> set[type]:
        with pytest.raises(errors.BrokenTransfer, match="it takes too long"):
            await store.get("k")
        return {type(each) for each in await asyncio.gather(store.get("k"), store.get("k"), return_exceptions=True)}

    assert during(store, again()) == ({bytes, errors.BrokenTransfer}, 6.0)
