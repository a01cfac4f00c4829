"""The concurrent server works on many tickets at once, and nothing that is no longer wanted is worked on or left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from torch.utils.data import StackDataset, Subset

from aloader import options
from aloader.channel.messages import Batch, EpochOver, Granted, Need, Stop, Ticket
from aloader.channel.status import Doing
from aloader.worker import concurrent
from aloader.worker.bench import Bench
from aloader.worker.inline import TurnsAsync
from tests.loader.samples import AsyncNumbers, Failing, Numbers, Opened, Stamped, check
from tests.worker.bench_kit import Parent, bench_of

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.asyncio]


@asynccontextmanager
async def served(bench: Bench, parent: Parent, begun: TurnsAsync | None = None) -> AsyncIterator[None]:
    """The server as a task, which ends with the test."""
    task = asyncio.ensure_future(concurrent.serve(bench, begun))
    try:
        yield
    finally:
        if not parent.link.closed:
            parent.tell(Stop())
        await asyncio.wait_for(task, 5)


async def test_tickets_are_answered():
    with bench_of(AsyncNumbers()) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1, 2], [7], [3, 3])
            answers = {m.seq: parent.open(m).tolist() for m in [await parent.anext() for _ in range(3)]}
    assert answers == {0: [1, 2], 1: [7], 2: [3, 3]}


class Gated(Numbers):
    """A sample waits until its gate is opened; knows who waits, and who was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[int, asyncio.Event] = {}
        self.began = asyncio.Condition()
        self.cancelled: list[int] = []

    async def __getitem__(self, index: int) -> int:
        gate = self.gates[index] = asyncio.Event()
        async with self.began:
            self.began.notify_all()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(index)
            raise
        return index

    async def until(self, *indices: int) -> None:
        """Until exactly these have begun."""
        async with self.began, asyncio.timeout(5):
            await self.began.wait_for(lambda: set(self.gates) == set(indices))


async def test_many_tickets_are_under_way_at_once_within_the_concurrency():
    dataset = Gated()
    with bench_of(dataset, concurrency=3) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1, 2], [3, 4])
            await dataset.until(1, 2, 3)
            dataset.gates[3].set()
            await dataset.until(1, 2, 3, 4)
            dataset.gates[4].set()
            assert parent.open(await parent.anext()).tolist() == [3, 4]  # the second is ready first
            for index in (1, 2):
                dataset.gates[index].set()
            assert parent.open(await parent.anext()).tolist() == [1, 2]


async def test_an_epoch_that_is_over_is_cancelled_and_the_next_goes_on():
    dataset = Gated()
    with bench_of(dataset) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1, 2], [3])
            parent.ask([4], epoch=1)
            await dataset.until(1, 2, 3, 4)
            parent.tell(EpochOver(0, 0))
            parent.ask([5], epoch=1, first=1)
            await dataset.until(1, 2, 3, 4, 5)
            assert sorted(dataset.cancelled) == [1, 2, 3]
            for index in (4, 5):
                dataset.gates[index].set()
                assert parent.open(await parent.anext()).tolist() == [index]
    assert all(m.epoch == 1 for m in parent.said)


async def test_stop_cancels_what_is_under_way_and_leaves_the_dataset():
    dataset = Gated()
    left: list[str] = []

    class Held(Subset):
        async def __aenter__(self) -> None:
            left.append("entered")

        async def __aexit__(self, *exc: object) -> None:
            left.append("left")

    with bench_of(Held(dataset, range(100))) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1, 2])
            await dataset.until(1, 2)
    assert sorted(dataset.cancelled) == [1, 2]
    assert left == ["entered", "left"]
    assert parent.said == []


async def test_a_parent_that_hangs_up_ends_it():
    dataset = Gated()
    with bench_of(dataset) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1])
            await dataset.until(1)
            parent.link.close()
    assert dataset.cancelled == [1]


async def test_a_failure_names_its_sample_and_cancels_no_other_ticket():
    dataset = StackDataset(Failing("value", 100), AsyncNumbers())
    with bench_of(dataset) as (bench, parent):
        async with served(bench, parent):
            parent.ask([4, 5], [6, 7])
            answers = {m.seq: m for m in [await parent.anext(), await parent.anext()]}
            with pytest.raises(ValueError, match="bad sample"):
                parent.open(answers[0])
            assert [part.tolist() for part in parent.open(answers[1])] == [[6, 7], [6, 7]]


@pytest.mark.parametrize("where", ["sample", "collate", "enter"])
async def test_a_cancelled_error_of_the_users_code_is_an_answer(where):
    class Raises(AsyncNumbers):
        async def __aenter__(self) -> None:
            if where == "enter":
                raise asyncio.CancelledError("theirs")

        async def __aexit__(self, *exc: object) -> None:
            pass

        async def __getitem__(self, index: int) -> int:
            if where == "sample":
                raise asyncio.CancelledError("theirs")
            return index

    def bad(samples: list[int]) -> None:
        raise asyncio.CancelledError("theirs")

    with bench_of(Raises(), bad) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1, 2])
            with pytest.raises(RuntimeError, match="CancelledError"):
                parent.open(await parent.anext())


async def test_entering_that_fails_is_the_answer_to_every_ticket():
    class Closed(AsyncNumbers):
        async def __aenter__(self) -> None:
            raise ConnectionError("no such bucket")

        async def __aexit__(self, *exc: object) -> None:
            raise AssertionError("never entered")

    with bench_of(Closed()) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1], [2])
            for _ in range(2):
                with pytest.raises(ConnectionError, match="no such bucket"):
                    parent.open(await parent.anext())


async def test_a_dataset_inside_others_is_entered_innermost_first_and_left_in_reverse():
    events: list[str] = []

    class Part(Numbers):
        def __init__(self, name: str, dataset: Any = None) -> None:
            super().__init__()
            self.name, self.dataset = name, dataset

        async def __aenter__(self) -> None:
            events.append(f"enter {self.name}")

        async def __aexit__(self, *exc: object) -> None:
            events.append(f"leave {self.name}")

    with bench_of(Part("outer", Subset(Part("inner"), [0]))) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1])
            await parent.anext()
    assert events == ["enter inner", "enter outer", "leave outer", "leave inner"]


async def test_a_ticket_that_waits_for_memory_holds_up_no_other():
    class Sized(AsyncNumbers):
        async def __getitem__(self, index: int) -> Any:
            return Stamped()[index]

    with bench_of(Sized()) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1, 2], allowance=10)
            need = await parent.anext()
            assert (type(need), need.seq) == (Need, 0)
            assert parent.page.read().doing is Doing.WAITING
            parent.ask([3, 4], first=1)
            answer = await parent.anext()
            assert (type(answer), answer.seq) == (Batch, 1)
            assert check(parent.open(answer)) == [3, 4]
            parent.tell(Granted(0, 0, 0))
            assert check(parent.open(await parent.anext())) == [1, 2]


@pytest.mark.parametrize("end", [EpochOver(0, 0), Stop()], ids=["epoch over", "stop"])
async def test_waiting_for_memory_ends_when_nobody_wants_the_batch(end):
    class Sized(AsyncNumbers):
        async def __getitem__(self, index: int) -> Any:
            return Stamped()[index]

    with bench_of(Sized()) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1, 2], allowance=10)
            await parent.anext()
            parent.tell(end)
            if isinstance(end, EpochOver):
                parent.ask([3], epoch=1)
                assert (await parent.anext()).epoch == 1


async def test_a_ticket_that_the_inline_server_began_is_finished():
    async def late(index: int) -> int:
        await asyncio.sleep(0)
        return index

    ticket = Ticket(0, 0, 4, [8, 9], options.GIB)
    with bench_of(AsyncNumbers()) as (bench, parent):
        async with served(bench, parent, TurnsAsync(ticket, [late(8), late(9)])):
            answer = await parent.anext()
            assert answer.seq == 4
            assert parent.open(answer).tolist() == [8, 9]
            parent.ask([1], first=5)
            assert parent.open(await parent.anext()).tolist() == [1]


async def test_when_nothing_is_under_way_the_page_says_idle():
    with bench_of(Opened()) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1], [2])
            for _ in range(2):
                await parent.anext()
            assert parent.page.read().doing in (Doing.IDLE, Doing.COLLATING)


async def test_an_ordinary_dataset_in_threads_is_fetched_many_at_once():
    import threading

    class Meets(Numbers):
        barrier = threading.Barrier(4)

        def __getitem__(self, index: int) -> int:
            self.barrier.wait(5)
            return index

    with bench_of(Meets(), concurrency=4, threads=True) as (bench, parent):
        async with served(bench, parent):
            parent.ask([1, 2], [3, 4])
            answers = [parent.open(await parent.anext()).tolist() for _ in range(2)]
    assert sorted(answers) == [[1, 2], [3, 4]]


async def test_a_flood_of_answers_passes_through_a_full_socket():
    with bench_of(AsyncNumbers(), lambda samples: b"x" * 20_000) as (bench, parent):
        async with served(bench, parent):
            parent.ask(*([n] for n in range(100)))
            seqs = [(await parent.anext()).seq for _ in range(100)]
    assert sorted(seqs) == list(range(100))
