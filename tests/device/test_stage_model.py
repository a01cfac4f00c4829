"""The device stage under anything that may happen to it, against a device that shows every mistake as wrong bytes.

A worker's memory is given out again, and overwritten, in the moment in which a lease ends; device memory by torch's
rules; and every kernel of the program looks at all bytes of its batch when the device comes to it.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aloader.channel.leaves import CODES, tensor_on
from aloader.device.moving import Moving
from aloader.device.stage import Stage
from aloader.testing import SimulatedAccelerator
from tests.device.kit import Steps

ROW = 1024
SHAPE = (4, ROW)
NBYTES = 4 * ROW * 4
PLACES = 8


class Memory:
    """As a worker's arena: places of one batch each; what is let go is written to at once."""

    def __init__(self, sim: SimulatedAccelerator, places: int, *, locked: bool) -> None:
        self.map = mmap.mmap(-1, places * NBYTES)
        self.free = list(range(places))
        self.leases: dict[int, weakref.ref[Any]] = {}  # by place
        if locked:
            sim.lock(np.frombuffer(self.map, np.uint8).ctypes.data, len(self.map))

    def write(self, number: int) -> np.ndarray:
        place = self.free.pop()
        owner = np.frombuffer(self.map, np.uint8, NBYTES, place * NBYTES)
        owner.view(np.int32).reshape(SHAPE)[:] = number * 4 + np.arange(4)[:, None]
        self.leases[place] = weakref.ref(owner, lambda lease: self._let_go(place))
        return owner

    def _let_go(self, place: int) -> None:
        del self.leases[place]
        np.frombuffer(self.map, np.uint8, NBYTES, place * NBYTES)[:] = 0x5A
        self.free.append(place)


class Arrived:
    """A batch that is unpacked once."""

    def __init__(self, owner: np.ndarray, number: int) -> None:
        self.owner: np.ndarray | None = owner
        self.number = number

    def unpack(self) -> Any:
        owner, self.owner = self.owner, None
        x = tensor_on(owner, CODES[torch.int32], SHAPE)
        return [x, torch.arange(4) + 4 * self.number]


class Plan(NamedTuple):
    """What one story is played with."""

    ahead: int
    locked: bool
    h2d: float
    transforms: bool


class Story:
    """One way in which everything may happen: `play` the steps, then `end`. Each step holds what must hold."""

    def __init__(self, plan: Plan, without: frozenset[str] = frozenset(), way: type[Moving] = Moving) -> None:
        self.sim = sim = SimulatedAccelerator(h2d=plan.h2d, without=without)
        sim.open()
        self.memory = Memory(sim, PLACES, locked=plan.locked)
        self.plan = plan
        self.way = way(sim, plan.ahead, self.transform if plan.transforms else None)
        self.stage = Stage(self.way, plan.ahead, lambda outcome: outcome.batch.unpack(), lambda seq: seq)
        self.queue: deque[Any] = deque()
        self.seq = 0
        self.hand: Any = None
        self.kept: list[Any] = []
        self.extra = 0  # that were kept and have been dropped since the device was last idle
        self.steps = Steps(sim)
        self.expected: list[list[int]] = []
        self.failures = self.broken = 0

    def transform(self, batch: Any) -> Any:
        """Computes on the side stream, into memory of its own."""
        x, labels = batch
        return [self.sim.apply(torch.clone, x, seconds=2e-5), labels]

    def play(self, steps: list[tuple[str, Any]]) -> None:
        for name, argument in steps:
            getattr(self, name)(argument)
            self.sim.check(synchronize=False)
            batches = self.plan.ahead + 1 + len(self.kept) + self.extra + self.broken
            spare = NBYTES if self.plan.transforms else 0  # what is being transformed
            assert self.sim.resident_bytes <= batches * (NBYTES + 1024) + spare, "device memory is not bounded"

    # -- what comes ----------------------------------------------------------------------------------------------------

    def arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.memory.free))):
            self.queue.append(SimpleNamespace(seq=self.seq, batch=Arrived(self.memory.write(self.seq), self.seq)))
            self.seq += 1
            self.stage.advance(self.queue)

    def arrive_as_an_error(self, _: Any) -> None:
        self.queue.append(SimpleNamespace(seq=self.seq, error=ValueError("its sample")))
        self.seq += 1
        self.stage.advance(self.queue)

    def let_a_copy_fail(self, which: int) -> None:
        self.sim.fail_copies = {self.sim.copies + which}
        self.broken += 1  # what was copied of its batch lies there until that is done

    def pump(self, _: Any) -> None:
        self.stage.advance(self.queue)

    # -- what the program does -----------------------------------------------------------------------------------------

    def take(self, how: tuple[float, bool]) -> None:
        seconds, own_stream = how
        if not self.queue:
            self.arrive(1)
        if not self.queue:
            return  # the program keeps everything
        self.stage.settle(self.queue)
        outcome = self.queue.popleft()
        if hasattr(outcome, "error"):
            return
        try:
            self.hand = self.stage.take(outcome)
        except RuntimeError:
            self.failures += 1
            return
        self.expected.append([outcome.seq * 4 + i for i in range(4)])
        if not own_stream:
            self.steps.step(self.hand, seconds)
            return
        sim, stream = self.sim, self.sim.new_stream("mine")
        sim.wait(stream, sim.record(sim.current()))
        with sim.on(stream):
            self.steps.step(self.hand, seconds)
        for tensor in self.hand:
            sim.record_stream(tensor, stream)
        self.extra += 1  # how far a stream of the program's own has come, only the program knows

    def drop(self, _: Any) -> None:
        self.hand = None

    def keep(self, _: Any) -> None:
        if self.hand is not None and len(self.kept) < PLACES // 2:
            self.kept.append(self.hand)

    def drop_what_was_kept(self, _: Any) -> None:
        self.extra += len(self.kept)
        self.kept.clear()

    def work_on_the_cpu(self, seconds: float) -> None:
        self.sim.advance(seconds)

    def wait_for_the_device(self, _: Any) -> None:
        self.sim.synchronize()
        self.extra = 0

    def end(self) -> None:
        """Break off, and see that everything was right and nothing is left."""
        self.hand = None
        self.kept.clear()
        self.queue.clear()
        self.stage.close()
        assert self.steps.seen() == self.expected
        for thread in threading.enumerate():
            if thread.name.startswith("aloader"):
                thread.join(10)
        self.sim.synchronize()
        self.sim.check()
        assert len(self.memory.free) == PLACES, "a lease has not ended"


SECONDS = st.sampled_from([1e-5, 1e-4, 1e-3])
TAKE = st.tuples(st.just("take"), st.tuples(SECONDS, st.booleans()))
STEPS = st.lists(
    st.one_of(
        TAKE,
        TAKE,
        TAKE,
        st.tuples(st.just("arrive"), st.integers(1, 3)),
        st.tuples(st.just("work_on_the_cpu"), SECONDS),
        st.tuples(st.sampled_from(["pump", "drop", "keep", "drop_what_was_kept"]), st.none()),
        st.tuples(st.sampled_from(["wait_for_the_device", "arrive_as_an_error"]), st.none()),
        st.tuples(st.just("let_a_copy_fail"), st.integers(1, 6)),
    ),
    min_size=30,
    max_size=60,
)
PLANS = st.builds(Plan, st.integers(1, 3), st.booleans(), st.sampled_from([1e7, 1e8, 1e9]), st.booleans())


def tell(examples: int, **planted: Any) -> None:
    """Play so many stories.

    Shrinking one takes minutes: the run would be taken for a hang, and what is wrong, which a sentence of the device's
    says as well, would not be said at all.
    """
    checks, phases = list(HealthCheck), [Phase.generate]

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=checks, phases=phases)
    @given(PLANS, STEPS)
    def stories(plan: Plan, steps: list[tuple[str, Any]]) -> None:
        story = Story(plan, **planted)
        story.play(steps)
        story.end()

    stories()


@pytest.mark.slow
def test_every_byte_is_in_its_place_whatever_happens():
    tell(150)


class EndsLeasesAtIssue(Moving):
    def begin(self, batch: Any, place: int) -> Any:
        begun = super().begin(batch, place)
        self._under_way.clear()
        return begun


class HasAlwaysRoom(Moving):
    def full(self, waiting: int) -> bool:
        return False


PLANTED = [
    pytest.param({"without": frozenset({"wait"})}, id="the consumer's stream does not wait"),
    pytest.param({"without": frozenset({"record_stream"})}, id="no record_stream"),
    pytest.param({"way": EndsLeasesAtIssue}, id="leases end when copies are begun"),
    pytest.param({"way": HasAlwaysRoom}, id="the device is never full"),
]


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_caught(planted):
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        tell(400, **planted)
