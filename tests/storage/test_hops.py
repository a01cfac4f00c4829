from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aloader.errors import NotOpen
from aloader.storage import hops as module
from aloader.storage.hops import Hops


@pytest_asyncio.fixture
async def hops() -> AsyncIterator[Hops]:
    hops = Hops(2, "test")
    yield hops
    await hops.aclose()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls went over in each hop."""
    sizes = []
    work = Hops._work

    def counted(self: Hops, calls: module.deque[module._Call]) -> None:
        sizes.append(len(calls))
        work(self, calls)

    monkeypatch.setattr(Hops, "_work", counted)
    return sizes


@pytest.mark.asyncio
async def test_calls_of_one_tick_share_one_hop(hops: Hops, sent: list[int]) -> None:
    threads = await asyncio.gather(*(hops.call(lambda _: threading.get_ident(), number) for number in range(50)))
    assert sent == [50]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.asyncio
async def test_calls_of_two_ticks_are_two_hops(hops: Hops, sent: list[int]) -> None:
    first = hops.call(str, 1)
    await asyncio.sleep(0)
    second = hops.call(str, 2)
    assert await asyncio.gather(first, second) == ["1", "2"]
    assert sent == [1, 1]


@pytest.mark.asyncio
async def test_an_error_reaches_its_caller_only(hops: Hops) -> None:
    def fail_for_two(number: int) -> int:
        if number == 2:
            raise ValueError(number)
        return number

    results = await asyncio.gather(*(hops.call(fail_for_two, n) for n in range(4)), return_exceptions=True)
    assert isinstance(results[2], ValueError)
    assert [*results[:2], results[3]] == [0, 1, 3]


@pytest.mark.asyncio
@pytest.mark.parametrize("raised", [StopIteration, asyncio.CancelledError, SystemExit])
async def test_exceptions_with_a_meaning_of_their_own_do_not_leave_callers_waiting(
    hops: Hops, raised: type[BaseException]
) -> None:
    def fail(_: int) -> None:
        raise raised

    failed = hops.call(fail, 0)
    await asyncio.wait([failed], timeout=5)
    assert isinstance(failed.exception(), RuntimeError if raised is StopIteration else raised)
    assert await hops.call(str, 1) == "1"


@pytest.mark.asyncio
async def test_a_second_thread_joins_in_on_a_slow_group(monkeypatch: pytest.MonkeyPatch, hops: Hops) -> None:
    """Every call waits for another one in another thread: one thread alone would never come to an end."""
    monkeypatch.setattr(module, "SLOW", -1.0)
    meet = threading.Barrier(2, timeout=5)
    first = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            first.set()  # the first one is slow: the clock says so. The others need each other
        else:
            meet.wait()
        return number

    assert await asyncio.gather(*(hops.call(work, number) for number in range(5))) == list(range(5))


@pytest.mark.asyncio
async def test_what_is_done_is_delivered_before_a_slow_group_ends(monkeypatch: pytest.MonkeyPatch, hops: Hops) -> None:
    monkeypatch.setattr(module, "SLOW", -1.0)
    go_on = threading.Event()

    def work(number: int) -> int:
        if number == 1:
            assert go_on.wait(5)
        return number

    first, second = (hops.call(work, number) for number in range(2))
    assert await first == 0
    assert not second.done()
    go_on.set()
    assert await second == 1


@pytest.mark.asyncio
async def test_a_dropped_call_is_not_made(hops: Hops) -> None:
    made = []
    kept = hops.call(made.append, 1)
    hops.call(made.append, 2).cancel()
    await kept
    await hops.call(str, 0)
    assert made == [1]


@pytest.mark.asyncio
async def test_closing_waits_for_calls_under_way_and_fails_the_others() -> None:
    hops = Hops(1, "test")
    begun = threading.Event()
    go_on = threading.Event()

    def work(_: int) -> str:
        begun.set()
        assert go_on.wait(5)
        return "done"

    under_way = hops.call(work, 0)
    await asyncio.to_thread(begun.wait, 5)
    waiting = hops.call(work, 1)
    await asyncio.sleep(0)
    unsent = hops.call(work, 2)
    closing = asyncio.ensure_future(hops.aclose())
    for future in (waiting, unsent):
        with pytest.raises(NotOpen, match="closed while"):
            await future
    assert not closing.done()
    go_on.set()
    await closing
    assert await under_way == "done"
