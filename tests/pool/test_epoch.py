"""An epoch carries out what is decided: it gives tickets to workers, holds what is ready, and ends once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from aloader.channel.link import Link, pair
from aloader.channel.messages import Granted, Message, Ticket
from aloader.channel.roles import Who
from aloader.channel.status import Doing, StatusPage
from aloader.device.moving import Moving
from aloader.engine import DispatcherConfig
from aloader.errors import LoaderClosed, WorkerLost, WorkerWarning
from aloader.pool.epoch import Epoch
from aloader.pool.oom import OomWatch
from aloader.pool.starter import Exit
from aloader.pool.workers import Worker
from aloader.sampling.source import SamplerSource
from aloader.testing import SimulatedAccelerator

pytestmark = pytest.mark.usefixtures("nothing_left")


class Staff:
    """A crew whose workers are only links: what they are told is read at the other end."""

    refuses = False  # to launch another one

    def __init__(self, workers: int, batched: bool = True) -> None:
        self.who = Who(0, workers, 0, 1, False, batched, b"")
        self.workers: dict[int, Worker] = {}
        self.ends: dict[int, Link] = {}
        self.closing: list[Any] = []
        self.oom = OomWatch()

    def launch(self, slot: int, generation: int) -> None:
        if self.refuses:
            raise OSError("no descriptors")
        mine, theirs = pair()
        page, fd = StatusPage.create()
        os.close(fd)
        self.workers[slot] = Worker(slot, generation, slot, Link(mine), page)
        self.ends[slot] = Link(theirs)
        self.closing += [self.workers[slot].link, self.ends[slot], page]

    def prepare(self, most: int) -> None: ...

    def flush(self) -> None:
        for worker in self.workers.values():
            worker.link.flush()

    def told(self, slot: int) -> list[Message]:
        self.flush()
        return self.ends[slot].receive(everything=True)


class Made:
    mark = None
    left_out = ()

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def unpack(self) -> Any:
        if isinstance(self.batch, Exception):
            raise self.batch
        return self.batch


@pytest.fixture
def staff() -> Iterator[Staff]:
    made = Staff(2)
    yield made
    for one in made.closing:
        one.close()


def opened(
    staff: Staff, tickets: Any, finish: Any = None, limit: int = 1 << 30, restarts: int = 3, way: Any = None
) -> Epoch:
    """An epoch of these, with both workers ready."""
    config = DispatcherConfig(slots=2, credit=2, window=8, narrow_window=4, memory_limit=limit, max_restarts=restarts)
    epoch = Epoch(staff, 5, SamplerSource(iter(tickets)), config, finish, way=way)  # type: ignore[arg-type]
    epoch.open()
    epoch.staff()
    for slot in range(2):
        staff.workers[slot].pid = 100 + slot
        epoch.on_ready(staff.workers[slot])
    return epoch


def arrive(epoch: Epoch, staff: Staff, slot: int, seq: int, batch: Any = None) -> None:
    epoch.on_batch(staff.workers[slot], seq, 10, Made([seq] if batch is None else batch), (0.25, 0.5))


def test_tickets_go_round_robin_within_the_credit(staff):
    opened(staff, [[n] for n in range(9)])
    for slot in range(2):
        told = staff.told(slot)
        assert [type(m) for m in told] == [Ticket, Ticket]
        assert [(m.epoch, m.seq, m.indices) for m in told] == [(5, slot, [slot]), (5, slot + 2, [slot + 2])]


def test_batches_are_taken_in_order_and_the_end_comes_once_and_stays(staff):
    epoch = opened(staff, [[0], [1], [2]])
    arrive(epoch, staff, 1, 1)
    assert not epoch.available
    arrive(epoch, staff, 0, 0)
    assert epoch.available
    assert [epoch.take(), epoch.take()] == [[0], [1]]
    assert not epoch.available
    arrive(epoch, staff, 0, 2)
    assert epoch.take() == [2]
    for _ in range(2):
        with pytest.raises(StopIteration):
            epoch.take()
    counts = epoch.counts
    assert (counts.delivered, counts.nbytes, counts.fetch_seconds, counts.collate_seconds) == (3, 30, 0.75, 1.5)


def test_a_batch_is_finished_when_it_is_taken(staff):
    epoch = opened(staff, [[0]], finish=lambda batch: ("pinned", batch))
    arrive(epoch, staff, 0, 0)
    assert epoch.take() == ("pinned", [0])


def test_a_failure_is_raised_in_its_place(staff):
    epoch = opened(staff, [[0], [1], [2]])
    epoch.on_failure(staff.workers[1], 1, ValueError("bad"))
    arrive(epoch, staff, 0, 0)
    arrive(epoch, staff, 0, 2)
    assert epoch.take() == [0]
    with pytest.raises(ValueError, match="bad"):
        epoch.take()
    assert epoch.take() == [2]
    assert epoch.counts.failed == 1


def test_a_batch_that_cannot_be_opened_is_an_error_and_the_next_follows(staff):
    epoch = opened(staff, [[0], [1]])
    arrive(epoch, staff, 0, 0, ImportError("no class"))
    arrive(epoch, staff, 1, 1)
    with pytest.raises(ImportError, match="no class"):
        epoch.take()
    assert epoch.take() == [1]
    assert epoch.finished


def test_the_samplers_error_comes_after_what_it_gave_and_then_the_end(staff):
    def tickets() -> Iterator[list[int]]:
        yield [0]
        raise KeyError("sampler")

    epoch = opened(staff, tickets())
    arrive(epoch, staff, 0, 0)
    assert epoch.take() == [0]
    with pytest.raises(KeyError, match="sampler"):
        epoch.take()
    with pytest.raises(StopIteration):
        epoch.take()


def test_a_worker_that_needs_memory_is_told_when_it_has_it(staff):
    epoch = opened(staff, [[0], [1]])
    staff.told(0)
    epoch.on_need(staff.workers[0], 0, 1 << 20)
    assert staff.told(0) == [Granted(0, 5, 0)]


def test_indices_that_cannot_be_sent_fail_at_their_place(staff):
    epoch = opened(staff, [[0], [lambda: 0], [2]])
    arrive(epoch, staff, 0, 0)
    arrive(epoch, staff, 0, 2)
    assert epoch.take() == [0]
    with pytest.raises(Exception, match="pickle") as caught:
        epoch.take()
    assert "indices for batch 1" in caught.value.__notes__[0]
    assert epoch.take() == [2]


def lose(epoch: Epoch, staff: Staff, seq: int, position: int = 0) -> None:
    """The first worker is killed while it is at this ticket."""
    lost = staff.workers.pop(0)
    lost.page.write(Doing.FETCHING, 5, seq, position)
    epoch.on_lost(lost, Exit(0, 9, 0, 5_000_000))


def test_a_lost_worker_is_replaced_and_all_its_tickets_are_given_again(staff):
    epoch = opened(staff, [[10], [11], [12], [13]])
    lose(epoch, staff, 0)
    assert staff.workers[0].generation == 1
    epoch.on_ready(staff.workers[0])
    assert [(m.seq, m.indices, m.alone) for m in staff.told(0)] == [(0, [10], False), (2, [12], False)]
    arrive(epoch, staff, 0, 2)
    assert not epoch.available
    arrive(epoch, staff, 0, 0)
    with pytest.warns(WorkerWarning, match=r"SIGKILL while fetching sample 10 \(batch 0\)") as told:
        assert epoch.take() == [0]
    assert len(told) == 1
    assert epoch.counts.lost == 1
    assert not epoch.available


def test_the_user_is_told_in_a_step_of_his_and_an_error_made_of_it_loses_no_batch(staff):
    epoch = opened(staff, [[10]])
    lose(epoch, staff, 0)
    epoch.on_ready(staff.workers[0])
    arrive(epoch, staff, 0, 0)
    with pytest.raises(WorkerWarning, match="SIGKILL"):  # as the tests' filter has it
        epoch.take()
    assert epoch.take() == [0]


def test_a_ticket_at_which_two_have_died_is_given_alone(staff):
    epoch = opened(staff, [[10, 20], [11], [12], [13]])
    for position in (0, 1):
        lose(epoch, staff, 0, position)
        epoch.on_ready(staff.workers[0])
    assert [(m.seq, m.alone) for m in staff.told(0)] == [(0, True)]
    arrive(epoch, staff, 0, 0)
    with pytest.warns(WorkerWarning) as told:
        assert epoch.take() == [0]
    assert len(told) == 2


def test_without_restarts_what_it_was_at_is_lost_and_what_it_had(staff):
    epoch = opened(staff, [[10], [11], [12]], restarts=0)
    lose(epoch, staff, 0)
    assert 0 not in staff.workers
    arrive(epoch, staff, 1, 1)
    with pytest.raises(WorkerLost, match=r"SIGKILL while fetching sample 10 \(batch 0\)") as caught:
        epoch.take()
    assert caught.value.sample == 10
    assert epoch.take() == [1]
    with pytest.raises(WorkerLost):
        epoch.take()
    with pytest.raises(StopIteration):
        epoch.take()


def test_who_cannot_be_replaced_is_lost_for_good(staff):
    epoch = opened(staff, [[10], [11]])
    staff.refuses = True
    lose(epoch, staff, 0)
    arrive(epoch, staff, 1, 1)
    with pytest.raises(WorkerLost, match=r"sample 10 \(batch 0\)[^$]*It could not be replaced: no descriptors"):
        epoch.take()
    assert epoch.take() == [1]
    with pytest.raises(StopIteration):
        epoch.take()


def test_closing_wakes_whoever_would_take(staff):
    epoch = opened(staff, [[0], [1]])
    epoch.close()
    assert epoch.available
    with pytest.raises(LoaderClosed):
        epoch.take()
    epoch.close()


def test_closing_has_a_thread_wait_for_the_device(staff):
    """What it still copies from must not be anybody else's meanwhile."""
    sim = SimulatedAccelerator(h2d=1e6)
    sim.open()
    epoch = opened(staff, [[0]], way=(Moving(sim, 1), 1, False))
    arrive(epoch, staff, 0, 0, sim.pin(torch.ones(1000)))
    epoch.advance()
    joined, join = threading.Event(), sim.join
    sim.join = lambda event: (join(event), joined.set())  # type: ignore[method-assign, assignment]
    epoch.close()
    assert joined.wait(5)


def test_who_is_late_is_told_with_the_sample(staff):
    epoch = opened(staff, [[10, 11], [12, 13]])
    staff.workers[0].page.write(Doing.FETCHING, 5, 0, 1)
    staff.workers[1].page.write(Doing.WAITING, 5, 1)
    text = epoch.late()
    assert "worker 0 (pid 100): fetching sample 11 of batch 0 for 0.0 s" in text
    assert "worker 1 (pid 101): waiting of batch 1" in text
    staff.workers[0].page.write(Doing.FETCHING, 4, 0, 1)  # of another epoch: its sample is not known here
    assert "fetching of batch 0" in epoch.late()


def test_an_empty_epoch_ends_at_once(staff):
    epoch = opened(staff, [])
    assert epoch.available
    with pytest.raises(StopIteration):
        epoch.take()
