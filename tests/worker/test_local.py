"""The crew that stands in for worker processes says what they would say, on the loop that it is attached to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from aloader import options
from aloader.channel.messages import Granted, Ticket
from aloader.channel.roles import Who
from aloader.channel.status import Doing
from aloader.worker.local import LocalCrew
from tests.loader.samples import AsyncNumbers, Numbers, as_list

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.asyncio]


class Hearer:
    """An epoch that only listens, and its watcher."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.loop = asyncio.get_running_loop()
        self.heard: dict[int, Any] = {}
        self.needs: dict[int, int] = {}
        self._news = asyncio.Event()

    def wake(self) -> None:
        self._news.set()

    def on_batch(self, worker: Any, seq: int, nbytes: int, batch: Any, seconds: tuple[float, float]) -> None:
        self.heard[seq] = batch.unpack()

    def on_failure(self, worker: Any, seq: int, fault: bytes | BaseException) -> None:
        self.heard[seq] = fault

    def on_need(self, worker: Any, seq: int, nbytes: int) -> None:
        self.needs[seq] = nbytes
        self.wake()

    async def until(self, seqs: set[int], of: dict[int, Any] | None = None) -> dict[int, Any]:
        found = self.heard if of is None else of
        async with asyncio.timeout(5):
            while set(found) != seqs:
                await self._news.wait()
                self._news.clear()
        return found


@asynccontextmanager
async def crew_of(dataset: Any, collate_fn: Any = as_list, concurrency: int = 8) -> AsyncIterator[LocalCrew]:
    crew = LocalCrew(Who(0, 1, 0, concurrency, False, True, b""), dataset, collate_fn)
    try:
        yield crew
    finally:
        await crew.aclose()


def ask(crew: LocalCrew, *tickets: list[int], epoch: int = 0, allowance: int = options.GIB) -> None:
    for seq, indices in enumerate(tickets):
        crew.workers[0].link.send(Ticket(0, epoch, seq, indices, allowance))


async def test_tickets_are_made_into_batches():
    async with crew_of(AsyncNumbers(), default_collate) as crew:
        hearer = Hearer()
        crew.attach(hearer, hearer)
        ask(crew, [1, 2], [3])
        assert {seq: batch.tolist() for seq, batch in (await hearer.until({0, 1})).items()} == {0: [1, 2], 1: [3]}


class Held(AsyncNumbers):
    """Says when it is entered and left, and in which task."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Any] = []
        self.loops: list[Any] = []

    async def __aenter__(self) -> None:
        self.tasks.append(asyncio.current_task())
        self.loops.append(asyncio.get_running_loop())

    async def __aexit__(self, *exc: object) -> None:
        self.tasks.append(asyncio.current_task())
        self.loops.append(asyncio.get_running_loop())


async def test_the_dataset_is_entered_once_and_left_by_the_same_task():
    dataset = Held()
    async with crew_of(dataset) as crew:
        for epoch in range(3):
            hearer = Hearer(epoch)
            crew.attach(hearer, hearer)
            ask(crew, [1], epoch=epoch)
            await hearer.until({0})
            crew.detach()
        assert len(dataset.tasks) == 1
    assert len(dataset.tasks) == 2
    assert dataset.tasks[0] is dataset.tasks[1]
    assert len(set(dataset.loops)) == 1


async def test_entering_that_fails_is_the_answer_to_every_ticket():
    class Closed(AsyncNumbers):
        async def __aenter__(self) -> None:
            raise ConnectionError("no such bucket")

        async def __aexit__(self, *exc: object) -> None:
            raise AssertionError("never entered")

    async with crew_of(Closed()) as crew:
        hearer = Hearer()
        crew.attach(hearer, hearer)
        ask(crew, [1], [2])
        heard = await hearer.until({0, 1})
    assert [type(error) for error in heard.values()] == [ConnectionError] * 2


@pytest.mark.parametrize("where", ["sample", "collate", "enter"])
@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, StopIteration], ids=lambda kind: kind.__name__)
async def test_a_failure_of_the_users_code_is_always_an_answer(where, kind):
    class Raises(AsyncNumbers):
        async def __aenter__(self) -> None:
            if where == "enter":
                raise kind("theirs")

        async def __aexit__(self, *exc: object) -> None:
            pass

        async def __getitem__(self, index: int) -> int:
            if where == "sample":
                raise kind("theirs")
            return index

    def collate(samples: list[int]) -> list[int]:
        if where == "collate":
            raise kind("theirs")
        return samples

    async with crew_of(Raises(), collate) as crew:
        hearer = Hearer()
        crew.attach(hearer, hearer)
        ask(crew, [1, 2])
        error = (await hearer.until({0}))[0]
    assert isinstance(error, Exception), "it would end more than the batch"
    assert type(error) is (kind if kind is ValueError else RuntimeError)


async def test_memory_is_asked_for_and_waited_for():
    class Large(Numbers):
        async def __getitem__(self, index: int) -> torch.Tensor:
            return torch.zeros(30_000)

    async with crew_of(Large(), default_collate) as crew:
        hearer = Hearer()
        crew.attach(hearer, hearer)
        ask(crew, [1, 2], allowance=10)
        (nbytes,) = (await hearer.until({0}, hearer.needs)).values()
        assert nbytes == pytest.approx(2 * 4 * 30_000, rel=0.01)
        assert not hearer.heard
        crew.workers[0].link.send(Granted(0, 0, 0))
        assert (await hearer.until({0}))[0].shape == (2, 30_000)


class Gated(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[int, asyncio.Event] = {}
        self.cancelled: list[int] = []
        self.began = asyncio.Condition()

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
        async with self.began, asyncio.timeout(5):
            await self.began.wait_for(lambda: set(self.gates) == set(indices))


async def test_an_epoch_that_is_over_is_cancelled_and_nobody_hears_of_it():
    dataset = Gated()
    async with crew_of(dataset) as crew:
        old, new = Hearer(0), Hearer(1)
        crew.attach(old, old)
        ask(crew, [1, 2])
        await dataset.until(1, 2)
        assert crew.workers[0].page.read()[:3] == (Doing.FETCHING, 0, 0)
        crew.epoch_over(0)
        crew.detach()
        crew.attach(new, new)
        ask(crew, [3], epoch=1)
        await dataset.until(1, 2, 3)
        dataset.gates[3].set()
        assert await new.until({0}) == {0: [3]}
    assert sorted(dataset.cancelled) == [1, 2]
    assert old.heard == {}


async def test_closing_cancels_what_is_under_way_and_waits_for_it():
    dataset = Gated()
    crew = LocalCrew(Who(0, 1, 0, 8, False, True, b""), dataset, as_list)
    hearer = Hearer()
    crew.attach(hearer, hearer)
    ask(crew, [1], [2])
    await dataset.until(1, 2)
    await crew.aclose()
    assert sorted(dataset.cancelled) == [1, 2]
    assert hearer.heard == {}
    await crew.aclose()  # twice is once


async def test_concurrency_holds_over_all_tickets():
    dataset = Gated()
    async with crew_of(dataset, concurrency=2) as crew:
        hearer = Hearer()
        crew.attach(hearer, hearer)
        ask(crew, [1, 2], [3])
        await dataset.until(1, 2)
        dataset.gates[1].set()
        await dataset.until(1, 2, 3)
