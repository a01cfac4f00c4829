"""Samples come out of a dataset in order, as many at once as allowed, and a failure names the sample it belongs to."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, StackDataset, Subset, random_split

from aloader.channel.messages import Ticket
from aloader.channel.states import Generators
from aloader.testing.simloop import simulate
from aloader.worker.awaitables import has_awaitables
from aloader.worker.faulty import Failed
from aloader.worker.fetch import Fetcher, fetch_inline
from aloader.worker.generators import Seeding, sample_rng
from aloader.worker.kinds import is_async, parts
from tests.loader.samples import AsyncNumbers, Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")

SEEDS = range(12)


def quiet(position: int) -> None:
    """Nobody wants to know."""


# -- what is async -----------------------------------------------------------------------------------------------------


class Wrapper:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


class AsyncBulk(Numbers):
    async def __getitems__(self, indices: list[int]) -> list[int]:
        return list(indices)


class OnlyOpened(Numbers):
    async def __aenter__(self) -> OnlyOpened:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass


@pytest.mark.parametrize("inner", [AsyncNumbers(), AsyncBulk(), OnlyOpened()], ids=lambda d: type(d).__name__)
def test_an_async_dataset_is_seen_through_torchs_wrappers_and_the_users(inner):
    for wrapped in (
        inner,
        Subset(inner, [1, 2]),
        random_split(inner, [60, 40])[1],
        ConcatDataset([Numbers(), inner]),
        StackDataset(Numbers(), inner),
        StackDataset(a=Numbers(), b=inner),
        Wrapper(inner),
        Wrapper(Subset(ConcatDataset([inner]), [0])),
    ):
        assert is_async(wrapped), wrapped
        assert inner in parts(wrapped)


def test_an_ordinary_dataset_is_not_async_however_it_is_wrapped():
    inner = Numbers()
    for wrapped in (inner, [1, 2], range(5), Subset(inner, [1]), StackDataset(inner), ConcatDataset([inner])):
        assert not is_async(wrapped)


def test_wrappers_that_hold_each_other_are_walked_once():
    first, second = Wrapper(None), Wrapper(None)
    first.dataset, second.dataset = second, first
    assert list(parts(first)) == [first, second]
    assert not is_async(first)
    first.datasets = [AsyncNumbers(), first]
    assert is_async(second)


def test_attributes_that_are_no_datasets_are_left_alone():
    odd = Wrapper("a name")
    odd.datasets = "several names"
    assert list(parts(odd)) == [odd]


async def nothing() -> None:
    pass


def test_awaitables_are_seen_alone_and_in_lists_and_tuples():
    coroutine = nothing()
    for fetched in (coroutine, [1, coroutine], (coroutine,), [(1, coroutine)], {"a": coroutine}, [{"a": coroutine}]):
        assert has_awaitables(fetched)
    for fetched in (1, [], (), [1, "a"], {"a": 1}, None):
        assert not has_awaitables(fetched)
    coroutine.close()


# -- inline ------------------------------------------------------------------------------------------------------------


class FailsAt(Numbers):
    def __getitem__(self, index: int) -> int:
        if index >= 7:
            raise ValueError(f"bad {index}")
        return index


class Bulk(Numbers):
    def __getitems__(self, indices: list[int]) -> list[int]:
        if 7 in indices:
            raise ValueError("bad bulk")
        return [10 * i for i in indices]


def test_inline_does_what_torchs_fetcher_does():
    assert fetch_inline(Numbers(), [3, 1], True, [0]) == [3, 1]
    assert fetch_inline(Numbers(), 3, False, [0]) == 3
    assert fetch_inline(Bulk(), [3, 1], True, [0]) == [30, 10]
    assert fetch_inline(Bulk(), 3, False, [0]) == 3  # one sample at a time: no bulk method
    assert fetch_inline(Numbers(), iter([5, 6]), True, [0]) == [5, 6]


@pytest.mark.parametrize(
    ("dataset", "indices", "batched", "position"),
    [(FailsAt(), [1, 2, 9, 8], True, 2), (FailsAt(), 7, False, 0), (Bulk(), [1, 7], True, -1)],
)
def test_inline_keeps_where_it_is_and_says_where_it_failed(dataset, indices, batched, position):
    progress = [99]
    with pytest.raises(Failed) as caught:
        fetch_inline(dataset, indices, batched, progress)
    assert caught.value.position == progress[0] == position
    assert type(caught.value.cause) is ValueError


def test_inline_passes_on_whatever_is_raised_also_what_ends_programs():
    class Exits(Numbers):
        def __getitem__(self, index: int) -> int:
            raise SystemExit(3)

    with pytest.raises(Failed) as caught:
        fetch_inline(Exits(), [0], True, [0])
    assert type(caught.value.cause) is SystemExit


# -- many at once ------------------------------------------------------------------------------------------------------


class Timed:
    """Sample i takes i virtual seconds (or as `seconds` says); knows what was asked for, and what is in flight."""

    def __init__(self, seconds: Any = None) -> None:
        self.seconds = seconds or (lambda index: index)
        self.began: list[int] = []
        self.cancelled: list[int] = []
        self.flying = 0
        self.most = 0

    async def __getitem__(self, index: int) -> int:
        self.began.append(index)
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            await asyncio.sleep(self.seconds(index))  # sleep: the work, in virtual time
        except asyncio.CancelledError:
            self.cancelled.append(index)
            raise
        finally:
            self.flying -= 1
        return index


@pytest.mark.parametrize("seed", SEEDS)
def test_samples_come_in_their_order_however_long_each_takes(seed):
    async def main() -> None:
        dataset = Timed(lambda index: (index * 7) % 5)
        assert await Fetcher(dataset, True, 100).fetch([5, 1, 9, 3], quiet) == [5, 1, 9, 3]
        assert await Fetcher(dataset, False, 100).fetch(4, quiet) == 4
        assert await Fetcher(dataset, True, 100).fetch([], quiet) == []

    simulate(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_concurrency_is_shared_by_all_tickets_and_used_up(seed):
    async def main() -> None:
        dataset = Timed(lambda index: 1 + index % 3)
        fetcher = Fetcher(dataset, True, 4)
        tickets = [list(range(10 * n, 10 * n + 6)) for n in range(5)]
        assert await asyncio.gather(*(fetcher.fetch(t, quiet) for t in tickets)) == tickets
        assert dataset.most == 4

    simulate(main, seed)


def test_the_earliest_ticket_is_served_first():
    """In the order in which they were asked for: tasks step in that order, as in any asyncio loop."""

    async def main() -> None:
        dataset = Timed(lambda index: 1)
        fetcher = Fetcher(dataset, True, 3)
        await asyncio.gather(*(fetcher.fetch([10 * n, 10 * n + 1, 10 * n + 2, 10 * n + 3], quiet) for n in range(3)))
        assert dataset.began == [10 * n + k for n in range(3) for k in range(4)]

    simulate(main, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failure_cancels_the_others_and_leaves_no_task(seed):
    class Fails(Timed):
        async def __getitem__(self, index: int) -> int:
            await super().__getitem__(index)
            if index == 2:
                raise ValueError("bad")
            return index

    async def main() -> None:
        dataset = Fails()
        with pytest.raises(Failed) as caught:
            await Fetcher(dataset, True, 100).fetch([9, 2, 8, 1], quiet)
        assert caught.value.position == 1
        assert str(caught.value.cause) == "bad"
        assert sorted(dataset.cancelled) == [8, 9]
        assert dataset.flying == 0
        assert asyncio.get_running_loop().time() == 2.0  # it was not waited for the slow ones

    simulate(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_several_failures_at_once_the_lowest_position_is_named(seed):
    gate = []

    class Fails:
        async def __getitem__(self, index: int) -> int:
            await gate[0].wait()
            raise ValueError(f"bad {index}")

    async def main() -> None:
        gate[:] = [asyncio.Event()]
        asyncio.get_running_loop().call_later(1, gate[0].set)
        with pytest.raises(Failed) as caught:
            await Fetcher(Fails(), True, 100).fetch([4, 5, 6], quiet)
        assert (caught.value.position, str(caught.value.cause)) == (0, "bad 4")

    simulate(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_permits_come_back_after_failures_and_cancellations(seed):
    async def main() -> None:
        dataset = Timed()
        fetcher = Fetcher(dataset, True, 2)
        task = asyncio.ensure_future(fetcher.fetch([50, 60, 70], quiet))
        await asyncio.sleep(1)  # sleep: virtual
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert dataset.flying == 0
        dataset.most = 0
        assert await fetcher.fetch([1, 1, 1, 1], quiet) == [1] * 4
        assert dataset.most == 2

    simulate(main, seed)


class Raises:
    def __init__(self, error: Any) -> None:
        self.error = error

    def __len__(self) -> int:
        return 100

    async def __getitem__(self, index: int) -> int:
        await asyncio.sleep(0)
        if index == 3:
            raise self.error
        return index


@pytest.mark.parametrize("indices", [[1, 3, 2], 3], ids=["batched", "unbatched"])
def test_a_cancellation_that_the_users_code_raised_is_that_samples_failure(indices):
    async def main() -> None:
        error = asyncio.CancelledError("theirs")
        with pytest.raises(Failed) as caught:
            await Fetcher(Raises(error), indices != 3, 10).fetch(indices, quiet)
        assert caught.value.cause is error
        assert caught.value.position == (1 if indices != 3 else 0)

    simulate(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sample_that_cancels_its_own_task_fails_and_nothing_hangs(seed):
    class Own(Numbers):
        async def __getitem__(self, index: int) -> int:
            if index == 3:
                asyncio.current_task().cancel()
            await asyncio.sleep(0)
            return index

    async def main() -> None:
        with pytest.raises(Failed) as caught:
            await Fetcher(Own(), True, 10).fetch([1, 3, 2], quiet)
        assert caught.value.position == 1
        assert isinstance(caught.value.cause, asyncio.CancelledError)

    simulate(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_our_own_cancellation_passes_and_reaches_every_sample(seed):
    async def main() -> None:
        dataset = Timed(lambda index: 100)
        task = asyncio.ensure_future(Fetcher(dataset, True, 2).fetch([1, 2, 3], quiet))
        await asyncio.sleep(1)  # sleep: virtual
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(dataset.cancelled) == sorted(dataset.began)
        assert len(dataset.began) == 2  # the third had not
        assert asyncio.get_running_loop().time() == 1.0

    simulate(main, seed)


def test_each_sample_is_noted_before_it_is_fetched():
    async def main() -> None:
        noted: list[int] = []
        await Fetcher(Timed(), True, 1).fetch([3, 2, 1], noted.append)
        assert noted == [0, 1, 2]
        await Fetcher(AsyncBulk(), True, 1).fetch([3, 2, 1], noted.append)
        assert noted[3:] == [-1]

    simulate(main, None)


class Draws:
    """What `random` gives in a sample, and `sample_rng`."""

    async def __getitem__(self, index: int) -> tuple[float, float]:
        return random.random(), float(sample_rng().random())


class DrawsNothing(Draws):
    draws_random_numbers = False


class Around:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    async def __getitem__(self, index: int) -> Any:
        return await self.dataset[index]


def test_a_dataset_that_says_so_is_spared_the_global_generators_and_keeps_its_own() -> None:
    def seeded(dataset: Any) -> Any:
        seeding = Seeding.of(Generators(), Ticket(0, 0, 0, [1, 2], 0, 99), True)
        random.seed(7)
        return simulate(lambda: Fetcher(dataset, True, 2).fetch([1, 2], quiet, seeding), None)

    mine, nobodys = seeded(Draws()), seeded(DrawsNothing())
    random.seed(7)
    assert [drawn for drawn, _ in nobodys] == [random.random(), random.random()]
    assert [own for _, own in nobodys] == [own for _, own in mine]
    assert seeded(Subset(DrawsNothing(), [0, 1, 2])) == nobodys  # type: ignore[arg-type]
    assert seeded(Subset(Around(DrawsNothing()), [0, 1, 2])) == mine  # type: ignore[arg-type]


# -- what a dataset may return -----------------------------------------------------------------------------------------


class Returns:
    """`__getitems__` returns what it is told to, made when it is asked for."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __getitem__(self, index: int) -> int:
        raise AssertionError("there is a bulk method")

    def __getitems__(self, indices: list[int]) -> Any:
        return self.make(indices)


async def late(value: Any) -> Any:
    await asyncio.sleep(1)  # sleep: the work, in virtual time
    return value


@pytest.mark.parametrize(
    ("make", "result"),
    [
        (lambda indices: [10 * i for i in indices], [10, 20]),
        (lambda indices: [late(i) for i in indices], [1, 2]),
        (lambda indices: tuple(late(i) for i in indices), (1, 2)),
        (lambda indices: late([late(i) for i in indices]), [1, 2]),
        (lambda indices: [1, late(2)], [1, 2]),
        (lambda indices: {"a": 1}, {"a": 1}),
    ],
    ids=["plain", "list", "tuple", "coroutine of coroutines", "mixed", "a dict"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_bulk_method_may_return_awaitables_in_many_ways(make, result, seed):
    async def main() -> None:
        assert await Fetcher(Returns(make), True, 1).fetch([1, 2], quiet) == result

    simulate(main, seed)


def test_a_bulk_call_that_fails_names_no_sample_and_an_awaitable_of_it_names_its_own():
    async def fail() -> None:
        await asyncio.sleep(1)  # sleep: the work, in virtual time
        raise ValueError("late and bad")

    async def main() -> None:
        with pytest.raises(Failed) as caught:
            await Fetcher(Bulk(), True, 4).fetch([1, 7], quiet)
        assert caught.value.position == -1
        with pytest.raises(Failed) as caught:
            await Fetcher(Returns(lambda indices: [late(1), fail()]), True, 4).fetch([0, 0], quiet)
        assert caught.value.position == 1

    simulate(main)


def test_what_a_bulk_call_returned_and_never_had_its_turn_is_closed():
    """Or Python would warn of a coroutine that was never awaited."""

    async def fail() -> None:
        raise ValueError("bad")

    async def main() -> None:
        with pytest.raises(Failed):
            await Fetcher(Returns(lambda indices: [fail(), late(1), (late(2), late(3))]), True, 1).fetch([1], quiet)
        with pytest.raises(Failed):
            await Fetcher(StackDataset(a=Raises(ValueError()), b=AsyncNumbers()), True, 1).fetch([3, 3], quiet)

    simulate(main, None)


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_stacked_and_subset_async_datasets_give_values(bulk, seed):
    inner = AsyncBulk() if bulk else AsyncNumbers()

    async def main() -> None:
        for dataset, expected in (
            (Subset(AsyncNumbers(), [5, 6, 7]), [6, 7]),
            (ConcatDataset([AsyncNumbers(2), AsyncNumbers(9)]), [1, 0]),
            (StackDataset(AsyncNumbers(), Numbers()), [(1, 1), (2, 2)]),
            (StackDataset(a=AsyncNumbers(), b=AsyncNumbers()), [{"a": 1, "b": 1}, {"a": 2, "b": 2}]),
            (Subset(StackDataset(AsyncNumbers(), Numbers()), [4, 5, 6]), [(5, 5), (6, 6)]),
        ):
            assert await Fetcher(dataset, True, 3).fetch([1, 2], quiet) == expected
        assert await Fetcher(StackDataset(inner, Numbers()), False, 3).fetch(1, quiet) is not None

    simulate(main, seed)


# -- ordinary datasets in threads --------------------------------------------------------------------------------------

who = contextvars.ContextVar("who", default="nobody")


class Meets(Numbers):
    """Every sample waits until `parties` of them are in flight."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(parties)

    def __getitem__(self, index: int) -> tuple[int, str]:
        self.barrier.wait(5)
        return index, who.get()


@pytest.mark.asyncio
async def test_an_ordinary_dataset_in_threads_overlaps_and_sees_the_context():
    who.set("me")
    with ThreadPoolExecutor(3) as threads:
        fetched = await Fetcher(Meets(3), True, 3, threads).fetch([1, 2, 3], quiet)
    assert fetched == [(1, "me"), (2, "me"), (3, "me")]


@pytest.mark.asyncio
async def test_a_failure_in_a_thread_is_that_samples():
    with ThreadPoolExecutor(2) as threads:
        with pytest.raises(Failed) as caught:
            await Fetcher(FailsAt(), True, 2, threads).fetch([1, 8, 9], quiet)
    assert caught.value.position == 1


@pytest.mark.asyncio
async def test_stop_iteration_in_a_thread_is_a_failure_and_not_a_hang():
    class Stops(Numbers):
        def __getitem__(self, index: int) -> int:
            raise StopIteration

    with ThreadPoolExecutor(2) as threads:
        with pytest.raises(Failed) as caught:
            await asyncio.wait_for(Fetcher(Stops(), True, 2, threads).fetch([1], quiet), 2)
    assert isinstance(caught.value.cause, StopIteration | RuntimeError)
