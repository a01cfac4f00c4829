"""One timer for many deadlines: each holds to the moment."""

from __future__ import annotations

import asyncio
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from aloader.storage.wrappers.deadlines import Deadlines
from aloader.testing import simulate


class Runner:
    def __init__(self, due: float) -> None:
        self.due = due
        self.ended: list[float] = []

    def end(self) -> None:
        self.ended.append(asyncio.get_running_loop().time())


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 5), st.floats(0.01, 9)), max_size=12))
@settings(max_examples=80, deadline=None)
def test_whoever_is_still_watched_when_it_is_due_is_ended_then_and_nobody_else(
    lives: list[tuple[float, float, float]],
) -> None:
    async def main() -> None:
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        runners = []
        for began, patience, leaves in lives:
            runner = Runner(began + patience)
            runners.append(runner)
            loop.call_at(began, deadlines.watch, runner)
            loop.call_at(began + leaves, deadlines.forget, runner)
        await asyncio.sleep(30)  # sleep: of virtual time
        for runner, (_, patience, leaves) in zip(runners, lives, strict=True):
            assert runner.ended == ([runner.due] if patience < leaves else []) or patience == leaves

    simulate(main)


def test_whose_time_stands_still_is_left_alone_until_it_is_watched_again() -> None:
    async def main() -> None:
        deadlines, runner, other = Deadlines(), Runner(1.0), Runner(2.0)
        deadlines.watch(runner)
        deadlines.watch(other)
        runner.due = inf
        await asyncio.sleep(5)  # sleep: of virtual time
        assert (runner.ended, other.ended) == ([], [2.0])
        runner.due = 7.0
        deadlines.watch(runner)
        await asyncio.sleep(5)  # sleep: of virtual time
        assert runner.ended == [7.0]

    simulate(main)


def test_a_closed_one_ends_nobody() -> None:
    async def main() -> None:
        deadlines, runner = Deadlines(), Runner(1.0)
        deadlines.watch(runner)
        deadlines.close()
        await asyncio.sleep(2)  # sleep: of virtual time
        assert not runner.ended

    simulate(main)
