"""Any events in any order, checked after each against an independent oracle; and at the end, that all comes to an end.

The machine plays the driver and its workers: it answers draws late, restarts workers late, lets dead generations speak,
asks for memory, fails, consumes in any order that is possible, and closes.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from aloader.engine import (
    BatchArrived,
    CameToNothing,
    Closed,
    Consumed,
    Dispatcher,
    DispatcherConfig,
    Drawn,
    Event,
    Exhausted,
    NeedMemory,
    Opened,
    Raise,
    RanDry,
    TicketFailed,
    WorkerLost,
    WorkerReady,
)
from tests.engine.oracle import Oracle, renumbered

pytestmark = pytest.mark.slow

LIMIT = 100
SIZES = st.sampled_from([0, 1, 2, 5, 10, 30, 60, 120])


@st.composite
def configs(draw: st.DrawFn, *, in_order: bool, interchangeable: bool) -> DispatcherConfig:
    narrow = draw(st.integers(1, 8))
    slots = draw(st.integers(1, 4))
    return DispatcherConfig(
        slots=slots,
        credit=draw(st.integers(1, 3)),
        window=draw(st.integers(narrow, 2 * narrow)),
        narrow_window=narrow,
        memory_limit=draw(st.sampled_from([LIMIT, LIMIT, 10 * LIMIT])),
        in_order=in_order,
        wide_window_bytes=draw(st.sampled_from([10, 50, 1000])),
        first_allowance=draw(st.sampled_from([1, 10, 40, 150])),
        max_restarts=draw(st.integers(0, 4)),
        lifetime=draw(st.sampled_from([0, 0, 1, 2, 5])),
        tolerant=draw(st.booleans()),
        first=draw(st.sampled_from([0, 0, 7])),
        first_slot=draw(st.integers(0, slots - 1)),
        far_window=draw(st.sampled_from([0, 0, 2 * narrow, 5 * narrow])),
        interchangeable=interchangeable,
    )


class Machine(RuleBasedStateMachine):
    """One epoch. `in_order` and `shares` (of an iterable dataset) are set by the classes below."""

    in_order: bool
    shares = False

    def __init__(self) -> None:
        super().__init__()
        self.opened = False
        self.exhausted = False
        self.batches = 0
        self.spoken: list[BatchArrived] = []  # what has arrived, to be said again

    @initialize(data=st.data(), samples=st.integers(0, 25))
    def start(self, data: st.DataObject, samples: int) -> None:
        self.config = data.draw(configs(in_order=self.in_order, interchangeable=self.shares))
        self.dispatcher = Dispatcher(self.config)
        self.oracle = Oracle(self.config)
        self.samples = 10_000 if self.shares else samples  # shares end by running dry
        self.losses = data.draw(st.sampled_from([0, 2, 4, 9]))
        self.largest = data.draw(st.sampled_from([1, 10, 20, 120]))  # the smaller, the more have room, and ask for more
        self.may_close = data.draw(st.integers(0, 3)) == 0
        if data.draw(st.booleans()):
            self.begin()

    def begin(self) -> None:
        """The usual beginning, so that most of an example's steps are spent in the middle of things."""
        self.open()
        for slot in range(self.config.slots):
            self.tell(WorkerReady(slot, 0))
        self.answer_draws()

    def tell(self, event: Event) -> None:
        first = self.oracle.config.first
        commands = [renumbered(command, -first) for command in self.dispatcher.handle(renumbered(event, first))]
        self.dispatcher.validate()
        self.oracle.follow(event, commands)
        self.compare()

    def compare(self) -> None:
        """What it says of itself is what can be seen from outside."""
        oracle, now = self.oracle, self.dispatcher.statistics()
        places = range(self.config.slots)
        assert now.reserved == oracle.reserved()
        assert now.held == tuple(len(oracle.held_by(slot)) for slot in places)
        assert (now.queued, now.landed) == (len(oracle.those("queued")), len(oracle.those("landed")))
        assert now.unconsumed == len(oracle.those("out"))
        assert now.restarts == oracle.restarts
        assert (now.state == "closed") == oracle.closed
        assert oracle.closed or (now.state == "finished") == oracle.finished
        assert oracle.closed or now.waiting_for_memory == len(oracle.requests())
        assert "Dispatcher " + now.state in repr(self.dispatcher)

    def new_batch(self) -> str:
        self.batches += 1
        return f"batch {self.batches}"

    def held(self) -> list[tuple[int, int, int]]:
        places = self.oracle.places
        return [(f.slot, places[f.slot].generation, f.seq) for f in self.oracle.those("held") if f.slot is not None]

    # -- the sampler and the consumer -------------------------------------------------------------------------------

    @precondition(lambda self: not self.opened and not self.oracle.closed)
    @rule()
    def open(self) -> None:
        self.opened = True
        self.tell(Opened())

    @precondition(lambda self: self.oracle.pending or self.oracle.closed or self.exhausted)
    @rule()
    def answer_draw(self) -> None:
        if len(self.oracle.fates) < self.samples and not self.exhausted:
            self.tell(Drawn(("indices", len(self.oracle.fates))))
        else:
            self.exhausted = True
            self.tell(Exhausted())

    @precondition(lambda self: self.oracle.pending > 1)
    @rule()
    def answer_draws(self) -> None:
        while self.oracle.pending:
            self.answer_draw()

    @precondition(lambda self: self.oracle.those("out"))
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        self.tell(Consumed(data.draw(st.sampled_from([fate.seq for fate in self.oracle.those("out")]))))

    @precondition(lambda self: len(self.oracle.those("out")) > 1)
    @rule()
    def consume_all(self) -> None:
        for fate in self.oracle.those("out"):
            self.tell(Consumed(fate.seq))

    @precondition(lambda self: self.may_close and (self.oracle.those("landed") or self.batches > 8))
    @rule()
    def close(self) -> None:
        self.tell(Closed())

    # -- workers ----------------------------------------------------------------------------------------------------

    def starting(self) -> list[int]:
        return [slot for slot in self.oracle.alive() if not self.oracle.places[slot].ready]

    @precondition(lambda self: self.starting())
    @rule(data=st.data())
    def become_ready(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.starting()))
        served = data.draw(st.sampled_from([0, 0, 0, 3])) if self.oracle.places[slot].generation == 0 else 0
        self.tell(WorkerReady(slot, self.oracle.places[slot].generation, served))

    @precondition(lambda self: self.oracle.those("held"))
    @rule(data=st.data(), nbytes=SIZES, as_allowed=st.booleans())
    def arrive(self, data: st.DataObject, nbytes: int, as_allowed: bool) -> None:
        slot, generation, seq = data.draw(st.sampled_from(self.held()))
        size = min(nbytes, self.oracle.fates[seq].reserved if as_allowed else self.largest)
        self.spoken.append(BatchArrived(slot, generation, seq, size, self.new_batch()))
        self.tell(self.spoken[-1])

    @precondition(lambda self: self.oracle.those("held"))
    @rule(data=st.data(), more=st.sampled_from([-1, 0, 1, 20, 40, 60, 120]))
    def need_memory(self, data: st.DataObject, more: int) -> None:
        slot, generation, seq = data.draw(st.sampled_from(self.held()))
        self.tell(NeedMemory(slot, generation, seq, max(0, self.oracle.fates[seq].reserved + more)))

    @precondition(lambda self: self.oracle.those("held"))
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        slot, generation, seq = data.draw(st.sampled_from(self.held()))
        self.tell(TicketFailed(slot, generation, seq, f"error in {seq}"))

    @precondition(lambda self: self.oracle.those("held"))
    @rule(data=st.data())
    def come_to_nothing(self, data: st.DataObject) -> None:
        slot, generation, seq = data.draw(st.sampled_from(self.held()))
        self.tell(CameToNothing(slot, generation, seq, f"nothing of {seq}"))

    @precondition(lambda self: self.shares and self.oracle.those("held"))
    @rule(data=st.data())
    def run_dry(self, data: st.DataObject) -> None:
        slot, generation, seq = data.draw(st.sampled_from(self.held()))
        self.tell(RanDry(slot, generation, seq))

    @precondition(lambda self: self.losses and self.oracle.alive())
    @rule(data=st.data(), error=st.integers(0, 1000))
    def lose(self, data: st.DataObject, error: int) -> None:
        self.losses -= 1
        slot = data.draw(st.sampled_from(self.oracle.alive()))
        mine = [fate.seq for fate in self.oracle.held_by(slot)]
        running = data.draw(st.sampled_from([None, 0, *mine, *mine]))
        how: dict[str, Any] = {
            "place": data.draw(st.sampled_from([None, 0, 0, 1])),
            "certain": data.draw(st.sampled_from([True, True, False])),
            "incident": data.draw(st.sampled_from([0, 0, 0, 1, 2])),
            "oom": data.draw(st.sampled_from([False, False, False, True])),
            "stuck": data.draw(st.sampled_from([False, False, True])),
        }
        self.tell(WorkerLost(slot, self.oracle.places[slot].generation, running, f"lost {error}", **how))

    @rule(data=st.data(), old=st.integers(0, 2), nbytes=SIZES)
    def speak_out_of_turn(self, data: st.DataObject, old: int, nbytes: int) -> None:
        """A dead generation, or a worker about a ticket that may be another's."""
        slot = data.draw(st.integers(0, self.config.slots - 1))
        generation = self.oracle.places[slot].generation - old
        seq = data.draw(st.integers(0, len(self.oracle.fates)))
        if old == 0 and seq in [fate.seq for fate in self.oracle.held_by(slot)]:
            return
        if old == 0 and seq == len(self.oracle.fates):
            return
        kinds: list[Any] = [
            NeedMemory(slot, generation, seq, nbytes),
            BatchArrived(slot, generation, seq, nbytes, self.new_batch()),
            TicketFailed(slot, generation, seq, "late"),
            CameToNothing(slot, generation, seq, "late"),
            *([RanDry(slot, generation, seq)] if self.shares and old else []),
            *([WorkerLost(slot, generation, seq, "late"), WorkerReady(slot, generation)] if old else []),
        ]
        self.tell(data.draw(st.sampled_from(kinds)))

    @precondition(lambda self: self.spoken)
    @rule(data=st.data())
    def say_again(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.spoken))
        if event.seq not in [fate.seq for fate in self.oracle.held_by(event.slot)]:
            self.tell(event)

    # -- the end ----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """With workers that get ready and a reader that reads, every epoch ends; a closed one has kept nothing."""
        if not hasattr(self, "oracle"):
            return
        if not self.opened and not self.oracle.closed:
            self.open()
        for _ in range(1000):
            if self.oracle.closed or self.oracle.finished:
                break
            self.make_progress()
        if self.oracle.closed:
            self.tell(Closed())
            assert self.dispatcher.handle(BatchArrived(0, 0, 0, 1, "late"))
        else:
            assert self.oracle.finished, f"stuck: {self.dispatcher!r}"
            assert all(fate.state in ("consumed", "skipped") for fate in self.oracle.fates)
            assert not self.oracle.untold, "nobody was told of a lost share"
            assert self.dispatcher.statistics().reserved == 0
            self.check_nothing_is_missing()

    def check_nothing_is_missing(self) -> None:
        """An epoch that ended early has told its reader why."""
        if self.shares:
            assert not self.oracle.live(), "it ended, and somebody had not said that there is nothing left"
        elif len(self.oracle.fates) < self.samples:
            assert not self.oracle.live()
            assert any(fate.outcome == Raise(fate.seq, self.oracle.loss) for fate in self.oracle.fates)

    def make_progress(self) -> None:
        for slot, place in enumerate(self.oracle.places):
            if not place.ready and not place.ended:
                self.tell(WorkerReady(slot, place.generation))
        while self.oracle.pending:
            self.answer_draw()
        for slot, generation, seq in self.held():
            if self.shares and self.oracle.places[slot].generation == generation and seq >= 12:
                self.tell(RanDry(slot, generation, seq))
                continue
            fate = self.oracle.fates[seq]
            if fate.state == "held" and fate.asked is None:
                self.tell(BatchArrived(slot, generation, seq, fate.reserved, self.new_batch()))
        self.consume_all()


class InOrder(Machine):
    in_order = True


class OnArrival(Machine):
    in_order = False


class Shares(Machine):
    shares = True


class SharesInOrder(Shares):
    in_order = True


class SharesOnArrival(Shares):
    in_order = False


#: Without shrinking, which can take minutes, and a test has two: add `Phase.shrink` when there is something to shrink.
SETTINGS = settings(
    max_examples=40, stateful_step_count=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
TestInOrder = InOrder.TestCase
TestInOrder.settings = SETTINGS
TestOnArrival = OnArrival.TestCase
TestOnArrival.settings = SETTINGS
TestSharesInOrder = SharesInOrder.TestCase
TestSharesInOrder.settings = settings(SETTINGS, max_examples=20)
TestSharesOnArrival = SharesOnArrival.TestCase
TestSharesOnArrival.settings = settings(SETTINGS, max_examples=20)
