"""So many at once, the earliest group first, and nothing outlives the call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader.testing.simloop import simulate
from aloader.worker.flight import Cancelled, Flight

NAME: ContextVar[str] = ContextVar("NAME", default="nobody's")


class Work:
    """Coroutines that take a while, and what was seen of them."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.begun: list[object] = []

    def one(self, name: object, seconds: float = 1.0, error: Exception | None = None) -> Coroutine[Any, Any, object]:
        self.begun.append(name)
        return self._one(name, seconds, error)

    async def _one(self, name: object, seconds: float, error: Exception | None) -> object:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)  # sleep: of virtual time
            if error is not None:
                raise error
            return name
        finally:
            self.running -= 1


@given(
    seed=st.integers(0, 2**32),
    limit=st.integers(1, 5),
    groups=st.lists(st.lists(st.floats(0, 3), max_size=6), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_any_groups_come_back_whole_in_order_and_within_the_limit(
    seed: int, limit: int, groups: list[list[float]]
) -> None:
    async def main() -> None:
        flight, work = Flight(limit), Work()
        begins = [[partial(work.one, (n, i), t) for i, t in enumerate(group)] for n, group in enumerate(groups)]
        results = await asyncio.gather(*map(flight.all, begins))
        assert results == [[(n, i) for i in range(len(group))] for n, group in enumerate(groups)]
        assert work.most <= limit
        for n, group in enumerate(groups):
            assert [name for name in work.begun if name[0] == n] == [(n, i) for i in range(len(group))]  # type: ignore[index]

    simulate(main, seed)


def test_a_slow_one_keeps_nobody_waiting_but_its_own_group() -> None:
    async def main() -> list[str]:
        flight, work, over = Flight(4), Work(), []

        async def group(name: str, slowest: float) -> None:
            await flight.all([partial(work.one, name, slowest), *(partial(work.one, name) for _ in range(3))])
            over.append(name)

        await asyncio.gather(group("slow", 100), group("second", 1), group("third", 1))
        return over

    assert simulate(main) == ["second", "third", "slow"]


def test_a_failure_ends_its_group_and_frees_its_places() -> None:
    async def main() -> None:
        flight, work = Flight(2), Work()
        group = [partial(work.one, "fails", 1, KeyError("first")), *(partial(work.one, i, 50) for i in range(4))]
        with pytest.raises(KeyError, match="first"):
            await flight.all(group)
        assert work.running == 0
        assert work.begun == ["fails", 0, 1] or work.begun == ["fails", 0]
        assert await asyncio.wait_for(flight.all([partial(work.one, i) for i in range(4)]), 2.1) == [0, 1, 2, 3]

    for seed in range(10):
        simulate(main, seed)


def test_cancelling_the_caller_cancels_all_of_it_and_frees_its_places() -> None:
    async def main() -> None:
        flight, work = Flight(2), Work()
        first = asyncio.create_task(flight.all([partial(work.one, i, 9) for i in range(3)]))
        waiting = asyncio.create_task(flight.all([partial(work.one, "waiting")]))
        await asyncio.sleep(0.5)  # sleep: of virtual time
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert await waiting == ["waiting"]
        assert work.begun == [0, 1, "waiting"]
        waiting = asyncio.create_task(flight.all([partial(work.one, i, 1) for i in "abc"]))
        never = asyncio.create_task(flight.all([partial(work.one, "never")]))
        await asyncio.sleep(0.5)  # sleep: of virtual time
        never.cancel()
        assert await waiting == ["a", "b", "c"]
        assert "never" not in work.begun

    simulate(main, 3)


def test_one_that_cancels_its_own_task_is_named() -> None:
    async def own() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)  # sleep: of virtual time

    async def main() -> None:
        flight, work = Flight(3), Work()
        with pytest.raises(Cancelled) as caught:
            await flight.all([partial(work.one, 0, 9), own, partial(work.one, 2, 9)])
        assert caught.value.position == 1

    simulate(main)


def test_each_runs_in_a_copy_of_its_callers_context_whoever_made_room_for_it() -> None:
    async def who() -> str:
        before = NAME.get()
        NAME.set("changed")
        await asyncio.sleep(1)  # sleep: of virtual time
        return before

    async def main() -> None:
        flight = Flight(1)

        async def group(name: str) -> list[str]:
            NAME.set(name)
            return await flight.all([who, who])

        assert await asyncio.gather(group("a"), group("b")) == [["a", "a"], ["b", "b"]]

    simulate(main)


def test_nothing_to_do_is_done_at_once() -> None:
    async def main() -> None:
        assert await Flight(1).all([]) == []

    simulate(main)
