"""The inline server answers its tickets one after the other, asks for memory, and stops when it is told to."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import default_convert

from aloader import options
from aloader.channel.marks import Mark, Resume
from aloader.channel.messages import Batch, Call, EpochOver, Failure, Granted, Need, Stop, Ticket
from aloader.channel.status import Doing
from aloader.worker import calls, inline
from tests.loader.samples import Failing, Numbers, Stamped, check
from tests.worker.bench_kit import bench_of, in_a_thread

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_tickets_are_answered_in_their_order():
    with bench_of(Numbers()) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([1, 2], [7], [3, 3])
        answers = [parent.next() for _ in range(3)]
        assert [(m.dataset, m.epoch, m.seq) for m in answers] == [(0, 0, n) for n in range(3)]
        assert [parent.open(m).tolist() for m in answers] == [[1, 2], [7], [3, 3]]
        assert all(m.fetch_seconds >= 0 and m.collate_seconds >= 0 for m in answers)


def test_large_leaves_come_through_the_arena():
    with bench_of(Stamped()) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        for n in range(5):
            parent.ask([n, n + 1], first=n)
            message = parent.next()
            assert len(message.leaves) == 1
            assert check(parent.open(message)) == [n, n + 1]
        assert parent.mappings.nbytes == bench.arena.capacity


def test_an_unbatched_ticket_is_one_sample():
    with bench_of(Numbers(), default_convert, batched=False) as (bench, parent):
        with in_a_thread(lambda: inline.serve(bench), parent):
            parent.ask(5)
            assert parent.open(parent.next()) == 5


@pytest.mark.parametrize(
    ("how", "kind"),
    [("value", ValueError), ("stop", RuntimeError), ("exit", RuntimeError), ("interrupt", RuntimeError)],
)
def test_a_failure_is_the_answer_and_the_next_ticket_follows(how, kind):
    with bench_of(Failing(how)) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([4, 5, 6], [7, 8])
        with pytest.raises(kind) as caught:
            parent.open(parent.next())
        assert "sample 5 of batch 0" in "".join([str(caught.value), *caught.value.__notes__])
        assert parent.open(parent.next()).tolist() == [7, 8]


def test_a_failure_in_collating_names_the_batch():
    def bad(samples: list[int]) -> None:
        raise ValueError("cannot collate")

    with bench_of(Numbers(), bad) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([1, 2], first=6)
        with pytest.raises(ValueError, match="cannot collate") as caught:
            parent.open(parent.next())
        assert "in batch 6 (indices [1, 2])" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("indices", [{4, 5}, frozenset([4, 5]), {4: "a", 5: "b"}], ids=["set", "frozenset", "dict"])
def test_a_failure_is_named_also_where_indices_have_no_places(indices):
    with bench_of(Failing("value")) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask(indices, [1])
        with pytest.raises(ValueError, match="bad sample") as caught:
            parent.open(parent.next())
        assert "sample 5 of batch 0" in "".join(caught.value.__notes__)
        assert parent.open(parent.next()).tolist() == [1]


def test_a_job_that_is_broken_answers_every_ticket_with_why():
    with bench_of(Numbers()) as (bench, parent):
        bench.broken = ModuleNotFoundError("no module")
        with in_a_thread(lambda: inline.serve(bench), parent):
            parent.ask([1], [2])
            for _ in range(2):
                with pytest.raises(ModuleNotFoundError, match="no module"):
                    parent.open(parent.next())


@pytest.mark.parametrize("collate", [None, list], ids=["default", "the user's"])
def test_more_memory_than_allowed_is_asked_for_and_waited_for(collate):
    arguments = () if collate is None else (collate,)
    with bench_of(Stamped(), *arguments) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([1, 2], [3, 4], allowance=1000)
        need = parent.next()
        assert (type(need), need.seq) == (Need, 0)
        assert need.nbytes == pytest.approx(2 * 4 * 30_000, rel=0.01)
        assert parent.page.read()[:3] == (Doing.WAITING, 0, 0)
        parent.tell(Granted(0, 0, 1))  # not this one's: it goes on waiting
        parent.tell(Granted(0, 0, 0))
        assert (type(answer := parent.next()), answer.seq) == (Batch, 0)
        assert type(parent.next()) is Need
        assert (type(answer := parent.next()), answer.seq) == (Batch, 1)  # its grant was there already


def test_a_conversion_asks_for_its_memory_once():
    """`default_convert` copies nothing: what is asked for is what the large leaves take on their way."""
    with bench_of(Stamped(), default_convert) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([1, 2], allowance=1000)
        assert parent.next().nbytes == 2 * 4 * 30_000
        parent.tell(Granted(0, 0, 0))
        assert type(parent.next()) is Batch


def test_within_its_allowance_nothing_is_asked_for():
    with bench_of(Stamped()) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([1, 2], allowance=options.MIB)
        assert type(parent.next()) is Batch


class Gated(Numbers):
    """Sample 0 waits for the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def __getitem__(self, index: int) -> int:
        if index == 0:
            self.entered.set()
            self.gate.wait(5)
        return index


def test_an_epoch_that_is_over_drops_its_tickets_and_leaves_the_next_ones():
    dataset = Gated()
    with bench_of(dataset) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([0], [1], [2])
        dataset.entered.wait(5)
        parent.tell(EpochOver(0, 0))
        parent.ask([7], epoch=1)
        dataset.gate.set()
        assert (parent.next().epoch, (last := parent.next()).epoch) == (0, 1)  # the one that had begun, and no other
        assert parent.open(last).tolist() == [7]


class Pass:
    """Numbers from 0 on, each with what its dataset has been told."""

    def __init__(self, dataset: Told) -> None:
        self.dataset = dataset
        self.at = 0

    def __next__(self) -> tuple[str, int]:
        self.at += 1
        return self.dataset.told, self.at - 1

    def state_dict(self) -> int:
        return self.at

    def load_state_dict(self, state: int) -> None:
        self.at = state


class Told:
    told = ""

    def __iter__(self) -> Any:
        return Pass(self)

    def state_dict(self) -> str:
        return self.told

    def load_state_dict(self, state: str) -> None:
        self.told = state


@pytest.mark.parametrize(("over", "begins"), [([], 30), ([EpochOver(0, 4)], 0)], ids=["in its epoch", "in the next"])
def test_where_a_lost_worker_was_in_an_epoch_is_nothing_to_the_next_one(over, begins):
    with bench_of(Told()) as (bench, _):
        bench.start = bench.start._replace(iterable=True)
        bench._go_on(Resume(Mark("told", 30, 30), 5, 5))
        bench.hear(over)
        bench.obey()
        assert bench.stream(5).take(2, [0]) == [("told", begins), ("told", begins + 1)]


def test_what_a_dataset_carries_into_an_epoch_is_older_than_the_calls_that_it_has_to_make():
    with bench_of(Told()) as (bench, _):
        bench.start = bench.start._replace(iterable=True)
        bench._go_on(Resume(Mark("before", before=True)))
        bench.hear([EpochOver(0, 4), Call(0, calls.written("load_state_dict", ("called",)))])
        stream = bench.stream(5)  # by the server on a loop it is made before the ticket begins
        bench.obey()
        assert stream.take(1, [0]) == [("called", 0)]


@pytest.mark.parametrize("end", [EpochOver(0, 0), Stop()], ids=["epoch over", "stop"])
def test_waiting_for_memory_ends_when_nobody_wants_the_batch(end):
    with bench_of(Stamped()) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent) as raised:
        parent.ask([1, 2], allowance=0)
        assert type(parent.next()) is Need
        parent.tell(end)
        if isinstance(end, EpochOver):
            parent.ask([3], epoch=1)
            assert parent.next().epoch == 1
    assert not raised
    assert not any(isinstance(m, Batch | Failure) and m.epoch == 0 for m in parent.said)


class Drawing(Numbers):
    """Draws from the worker's generators, and tells when it has come to 3."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = threading.Event()

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        random.random()
        if index == 3:
            self.ahead.set()
        return bytes(30_000)


def test_whatever_the_parent_has_read_the_states_behind_that_are_noted():
    before, dataset = random.getstate(), Drawing()
    with bench_of(dataset, default_convert) as (bench, parent):
        bench.link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # as full as one of 200 KiB gets, too
        with in_a_thread(lambda: inline.serve(bench), parent):
            parent.ask([0], [1], [2], [3])
            assert not dataset.ahead.wait(0.1), "there is room for two notes"
            assert [parent.next().seq for _ in range(4)] == [0, 1, 2, 3]
            assert parent.page.noted(0, 2) != parent.page.noted(0, 3)
    random.setstate(before)


def test_a_parent_that_hangs_up_ends_it():
    with bench_of(Numbers()) as (bench, parent):
        parent.ask([1])
        thread = threading.Thread(target=inline.serve, args=[bench])
        thread.start()
        parent.next()
        parent.link.close()
        thread.join(5)
        assert not thread.is_alive()


def test_the_status_page_says_which_sample_is_at_work():
    dataset = Gated()
    with bench_of(dataset) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([4, 0], first=9)
        dataset.entered.wait(5)
        assert parent.page.read()[:4] == (Doing.FETCHING, 0, 9, 1)
        dataset.gate.set()
        parent.next()


class Sneaky(Numbers):
    """Does not show that it is async."""

    def __getitem__(self, index: int) -> Any:
        return _late(index)


async def _late(index: int) -> int:
    await asyncio.sleep(0)
    return index


def test_awaitables_are_handed_over_with_their_ticket():
    with bench_of(Sneaky()) as (bench, parent):
        with in_a_thread(lambda: inline.serve(bench), parent) as raised:
            parent.ask([1, 2], first=4)
            while not raised:
                threading.Event().wait(0.001)
    (turn,) = raised
    assert isinstance(turn, inline.TurnsAsync)
    assert turn.ticket.seq == 4
    assert len(turn.fetched) == 2
    for coroutine in turn.fetched:
        coroutine.close()


def test_asyncio_run_in_a_dataset_works():
    class Runs(Numbers):
        def __getitem__(self, index: int) -> int:
            return asyncio.run(_late(index))

    with bench_of(Runs()) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([1, 2])
        assert parent.open(parent.next()).tolist() == [1, 2]


def test_leases_that_end_are_used_again():
    with bench_of(Stamped()) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        for n in range(30):
            parent.ask([n], first=n)
            batch = parent.open(parent.next())
            assert torch.equal(batch[1], torch.tensor([n]))
            del batch
            parent.link.flush()
        assert parent.mappings.nbytes < 12 * 4 * 30_000


def test_a_ticket_that_is_alone_says_on_the_page_which_sample_it_is_at() -> None:
    seen: list[Any] = []

    class Looking(Numbers):
        page: Any = None

        def __getitems__(self, indices: list[int]) -> list[int]:
            raise AssertionError("one by one")

        def __getitem__(self, index: int) -> int:
            seen.append(self.page.read()[:4])
            return index

    data = Looking()
    with bench_of(data) as (bench, parent):
        data.page = bench.page
        with in_a_thread(lambda: inline.serve(bench), parent):
            parent.tell(Ticket(0, 1, 5, [3, 4], 1 << 20, alone=True))
            assert parent.open(parent.next()).tolist() == [3, 4]
    assert seen == [(Doing.FETCHING, 1, 5, 0), (Doing.FETCHING, 1, 5, 1)]
