"""Long seeded walks under want of memory, checked by the same oracle as the model.

Hypothesis looks for the odd combination; it rarely stays long where workers wait for each other's memory. These do.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from aloader.engine import (
    Assign,
    BatchArrived,
    CameToNothing,
    Command,
    Consumed,
    Deliver,
    Dispatcher,
    DispatcherConfig,
    Draw,
    Drawn,
    Event,
    Exhausted,
    Finish,
    Grant,
    NeedMemory,
    Omit,
    Opened,
    Raise,
    Restart,
    TicketFailed,
    WorkerLost,
    WorkerReady,
)
from tests.engine.oracle import Oracle, renumbered

pytestmark = pytest.mark.slow

LIMIT = 100
SAMPLES = 60


def config_of(random: Random, *, in_order: bool) -> DispatcherConfig:
    slots, credit = random.randint(1, 4), random.randint(1, 4)
    narrow = random.randint(1, slots * credit)
    return DispatcherConfig(
        slots,
        credit,
        2 * narrow,
        narrow,
        LIMIT,
        in_order,
        wide_window_bytes=60,
        first_allowance=random.choice([1, 30]),
        first=random.choice([0, 5]),
        first_slot=random.randrange(slots),
        far_window=random.choice([0, 5 * narrow]),
    )


class Walk:
    """Workers that ask for what they need, then answer; in a random order, and dying now and then."""

    def __init__(self, random: Random, config: DispatcherConfig, deaths: float) -> None:
        self.random, self.deaths = random, deaths
        self.dispatcher, self.oracle = Dispatcher(config), Oracle(config)
        self.typical = random.choice([1, 10, 30, 60])
        self.possible: list[Event] = [Opened(), *(WorkerReady(slot, 0) for slot in range(config.slots))]
        self.commands: list[Command] = []
        self.samples = 0

    def run(self) -> None:
        while self.possible:
            event = self.possible.pop(self.random.randrange(len(self.possible)))
            self.tell(event)
            if self.random.random() < self.deaths:
                slot = self.random.randrange(len(self.oracle.places))
                running = self.random.choice([None, *(fate.seq for fate in self.oracle.held_by(slot))])
                self.tell(WorkerLost(slot, self.oracle.places[slot].generation, running, "lost"))

    def tell(self, event: Event) -> None:
        first = self.oracle.config.first
        commands = [renumbered(command, -first) for command in self.dispatcher.handle(renumbered(event, first))]
        self.dispatcher.validate()
        self.oracle.follow(event, commands)
        for command in commands:
            self.commands.append(command)
            self.possible += self.answers(command)

    def answers(self, command: Command) -> Iterator[Event]:
        match command:
            case Draw(count):
                drawn = min(count, SAMPLES - self.samples)
                for _ in range(drawn):
                    self.samples += 1
                    self.tell(Drawn(("indices", self.samples)))
                if drawn < count:
                    self.tell(Exhausted())
            case Assign(slot, generation, seq, _, allowance):
                nbytes = self.random.randint(0, 2 * self.typical)
                if nbytes > allowance:
                    yield NeedMemory(slot, generation, seq, nbytes)
                else:
                    yield self.finished(slot, generation, seq, nbytes)
            case Grant(slot, generation, seq):
                yield self.finished(slot, generation, seq, self.oracle.fates[seq].reserved)
            case Restart(slot, generation):
                yield WorkerReady(slot, generation)
            case Deliver(seq) | Raise(seq) | Omit(seq):
                yield Consumed(seq)

    def finished(self, slot: int, generation: int, seq: int, nbytes: int) -> Event:
        if self.random.random() < 0.03:
            return TicketFailed(slot, generation, seq, "failed")
        if self.random.random() < 0.03:
            return CameToNothing(slot, generation, seq, "nothing")
        return BatchArrived(slot, generation, seq, nbytes, ("batch", slot, generation, seq))


@pytest.mark.parametrize("deaths", [0, 0.01, 0.05])
@pytest.mark.parametrize("in_order", [True, False])
def test_walks_end_and_keep_every_rule(in_order: bool, deaths: float) -> None:
    for seed in range(25):
        random = Random(seed)
        walk = Walk(random, config_of(random, in_order=in_order), deaths)
        walk.run()
        assert walk.commands.count(Finish()) == 1, f"seed {seed}: {walk.dispatcher!r}"
        assert walk.oracle.reserved() == 0
        if walk.oracle.live():
            assert len(walk.oracle.fates) == SAMPLES
        if not deaths:
            assert not [c for c in walk.commands if isinstance(c, Raise) and c.error != "failed"]
