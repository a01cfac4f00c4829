"""A sample that takes too long on a loop is cancelled and fails as samples do; nothing waits for it for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aloader import options
from aloader.channel.marks import Resume
from aloader.channel.messages import Ticket
from aloader.errors import SampleError, SampleTimeout
from aloader.testing.simloop import simulate
from aloader.worker.faulty import Policy
from aloader.worker.fetch import Failed, Fetcher
from aloader.worker.marks import Marker
from aloader.worker.stream import Stream
from aloader.worker.tasks import place_of


class Dataset:
    """Sample i takes i seconds."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, float]] = []

    async def __getitem__(self, index: int) -> int:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(index)  # sleep: of virtual time
            return index
        finally:
            self.ended.append((index, loop.time()))


def fetcher(dataset: Any, limit: int = 8, seconds: float = 5.0) -> Fetcher:
    return Fetcher(dataset, True, limit, sample_timeout=seconds, where=place_of)


async def failure(fetched: Any) -> tuple[int, SampleTimeout]:
    with pytest.raises(Failed) as caught:
        await fetched
    assert isinstance(caught.value.cause, SampleTimeout)
    return caught.value.position, caught.value.cause


def nothing(position: int) -> None:
    """A note."""


def test_a_sample_has_its_time_from_when_it_begins_and_fails_with_its_stack() -> None:
    async def main() -> None:
        data = Dataset()
        fetching = fetcher(data, limit=1)
        assert await fetching.fetch([4, 4, 4], nothing) == [4, 4, 4], "none waits for its turn within its time"
        began = asyncio.get_running_loop().time()
        position, error = await failure(fetching.fetch([1, 9, 1], nothing))
        assert (position, error.index, error.stack.count("in __getitem__")) == (1, 9, 1)
        assert "await asyncio.sleep(index)" in error.stack
        assert str(error).startswith("sample 9 has taken longer than 5 s, its sample_timeout.\n")
        assert str(error).endswith("to go on without them.")
        assert data.ended[-1] == (9, began + 6)

    simulate(main)


def test_each_has_its_own_time_and_the_timer_goes_on() -> None:
    async def main() -> None:
        fetching = fetcher(Dataset())
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = asyncio.create_task(failure(fetching.fetch([9], nothing)))
        await asyncio.sleep(2)  # sleep: of virtual time
        second = asyncio.create_task(failure(fetching.fetch([4, 7], nothing)))
        await first
        assert loop.time() == began + 5
        assert (await second)[0] == 1
        assert loop.time() == began + 7
        assert await fetching.fetch([3], nothing) == [3]

    simulate(main)


class Deaf(Dataset):
    """Does not hear that it is cancelled: sample 1 goes on for 1000 s, sample 2 returns."""

    async def __getitem__(self, index: int) -> int:
        if index == 0:
            return 0
        event = asyncio.Event()
        try:
            await event.wait()
        except asyncio.CancelledError:
            if index == 2:
                return 2
        while not event.is_set():
            try:
                await asyncio.sleep(1000)  # sleep: of virtual time
                event.set()
            except asyncio.CancelledError:
                pass
        return 1


def test_code_that_swallows_its_cancellation_is_late_all_the_same_and_holds_nobody_up() -> None:
    async def main() -> None:
        fetching = fetcher(Deaf(), limit=2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        position, error = await failure(fetching.fetch([0, 2], nothing))
        assert (position, error.index, loop.time() - began) == (1, 2, 5)
        position, error = await failure(fetching.fetch([0, 1, 1], nothing))
        assert (position, error.index) == (1, 1)
        assert loop.time() - began == pytest.approx(10 + options.CLOSE_GRACE)
        assert await fetching.fetch([0] * 5, nothing) == [0] * 5, "their places are free again"
        left = {task for task in asyncio.all_tasks() if "Fetcher._timed" in repr(task)}
        assert len(left) == 2, "they are left alone"
        await asyncio.wait(left)

    simulate(main)


def test_where_samples_may_fail_one_that_is_given_up_has_failed_and_its_batch_has_not() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asked: list[int] = []

        async def late(error: SampleError) -> int:
            asked.append(error.index)  # type: ignore[arg-type]
            await asyncio.sleep(100 if len(asked) > 1 else 1)  # sleep: of virtual time
            return 77

        kinds = (Policy("skip"), [0, 0, 0]), (Policy("drop"), [0, 0]), (Policy("call", late), [0, 77, 0])
        for policy, expected in kinds:
            fetching, began = fetcher(Deaf(), limit=2), loop.time()
            ticket = Ticket(0, 1, 7, [0, 1, 0], 0)
            losses = policy.losses(ticket, True, False, None)
            assert losses is not None
            assert losses.settled(await fetching.fetch([0, 1, 0], nothing, losses=losses)) == expected
            assert loop.time() - began == pytest.approx(5 + options.CLOSE_GRACE + len(asked))
            (failed,) = losses.left_out()
            assert failed.position == 1
            assert isinstance(failed.fault, SampleTimeout)
            assert (failed.fault.index, failed.fault.batch) == (1, 7)
        losses = policy.losses(ticket, True, False, None)
        position, error = await failure(fetching.fetch([0, 1, 0], nothing, losses=losses))
        assert (position, type(error), error.index) == (1, SampleTimeout, 1), "the function has its time, too"
        left = {task for task in asyncio.all_tasks() if "Fetcher._careful" in repr(task)}
        assert len(left) == 4
        await asyncio.wait(left)
        assert asked == [1, 1], "nobody is asked once more when they end"

    simulate(main)


class Turning(Dataset):
    async def __getitem__(self, index: int) -> int:
        try:
            await asyncio.sleep(index)  # sleep: of virtual time
        except asyncio.CancelledError:
            raise ValueError("interrupted") from None
        return index


def test_what_its_code_makes_of_the_cancellation_is_the_cause() -> None:
    async def main() -> None:
        _, error = await failure(fetcher(Turning()).fetch([9], nothing))
        assert isinstance(error.__cause__, ValueError)

    simulate(main)


def test_whoever_is_cancelled_himself_gets_no_timeout() -> None:
    async def main() -> None:
        fetching = fetcher(Dataset())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):  # in the same step of the loop as the sample's own
                await fetching.fetch([9], nothing)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await fetching.fetch([9, 9], nothing)
        await asyncio.sleep(100)  # sleep: of virtual time

    simulate(main)


class Together(Dataset):
    async def __getitems__(self, indices: list[int]) -> list[int]:
        await asyncio.sleep(sum(indices))  # sleep: of virtual time
        return indices


def test_a_call_for_many_samples_has_the_time_of_all() -> None:
    async def main() -> None:
        fetching = fetcher(Together())
        assert await fetching.fetch([9, 3, 2], nothing) == [9, 3, 2]
        position, error = await failure(fetching.fetch([9, 2], nothing))
        assert (position, error.index) == (-1, None)
        assert str(error).startswith("a call for 2 samples has taken longer than 10 s = 2 × sample_timeout.")

    simulate(main)


class Blocking(Dataset):
    """Sample 0 holds up the loop (of virtual time: no other way to let time go by)."""

    def __init__(self, skip: Any) -> None:
        super().__init__()
        self.skip = skip

    async def __getitem__(self, index: int) -> int:
        if index == 0:
            self.skip()
        return await super().__getitem__(index)


def test_time_in_which_the_loop_stood_still_is_not_counted() -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        began, ahead = loop.time(), [0.0]
        clock = loop.time
        loop.time = lambda: clock() + ahead[0]

        def skip() -> None:
            ahead[0] += 60.0

        fetching = fetcher(Blocking(skip))
        assert await fetching.fetch([4, 0, 4], nothing) == [4, 0, 4]
        assert loop.time() >= began + 60

    simulate(main)


class Failing:
    """Read from the front; sample 1 cannot be read."""

    def __init__(self) -> None:
        self.read = 0

    def __aiter__(self) -> Failing:
        return self

    async def __anext__(self) -> int:
        self.read += 1
        if self.read == 2:
            raise ValueError("not that one")
        return self.read


def test_the_function_for_what_cannot_be_read_has_the_time_of_a_sample() -> None:
    async def late(error: SampleError) -> int:
        await asyncio.sleep(100)  # sleep: of virtual time
        return 0

    async def main() -> None:
        data, loop = Failing(), asyncio.get_running_loop()
        stream = Stream(data, False, Marker(data))
        stream.deadlines = fetcher(data).deadlines
        losses = Policy("call", late).losses(Ticket(0, 1, 7, None, 0), True, True, None)
        position, error = await failure(stream.take_async(3, nothing, None, losses))
        assert (position, loop.time()) == (1, 5)
        assert str(error).startswith("a sample has taken longer than 5 s")

    simulate(main)


class Positions(list[int]):
    """A page's progress, which remembers."""

    def __setitem__(self, at: Any, position: Any) -> None:
        self.append(position)


def test_what_is_read_and_dropped_under_one_ticket_is_seen_to_move() -> None:
    resume, positions = Resume(None, low=3), Positions()
    stream = Stream(range(100), False, Marker(range(100)), resume=resume)
    assert stream.take(1, positions) == [3]
    assert positions == [0, -2, -3, -4, 0]

    async def main() -> list[int]:
        noted: list[int] = []
        stream = Stream(range(100), False, Marker(range(100)), resume=resume)
        assert await stream.take_async(1, noted.append) == [3]
        return noted

    assert simulate(main) == [0, -2, -3, -4, 0]
