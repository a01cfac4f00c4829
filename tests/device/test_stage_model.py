"""The device stage under anything that may happen to it, against a device that shows every mistake as wrong bytes.

A worker's memory is given out again, and overwritten, in the moment in which a lease ends; device memory by torch's
rules; and every kernel of the program looks at all bytes of its batch when the device comes to it.
"""

from __future__ import annotations

import gc
import mmap
import threading
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aloader.channel.leaves import CODES, tensor_on
from aloader.device.moving import Moving
from aloader.device.stage import Stage
from aloader.testing import SimulatedAccelerator
from tests.device.kit import Steps

ROW = 1024
SHAPE = (4, ROW)
NBYTES = 4 * ROW * 4


class Memory:
    """As a worker's arena: places of one batch each; what is let go is written to at once."""

    def __init__(self, sim: SimulatedAccelerator, places: int, *, locked: bool) -> None:
        self.map = mmap.mmap(-1, places * NBYTES)
        self.free = list(range(places))
        self.leases: dict[weakref.ref[Any], int] = {}
        if locked:
            sim.lock(np.frombuffer(self.map, np.uint8).ctypes.data, len(self.map))

    def write(self, number: int) -> np.ndarray:
        place = self.free.pop()
        owner = np.frombuffer(self.map, np.uint8, NBYTES, place * NBYTES)
        owner.view(np.int32).reshape(SHAPE)[:] = number * 4 + np.arange(4)[:, None]
        self.leases[weakref.ref(owner, self._let_go)] = place
        return owner

    def _let_go(self, lease: weakref.ref[Any]) -> None:
        place = self.leases.pop(lease)
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


def failing(batch: Any) -> Any:
    raise ValueError("this batch cannot be transformed")


class Machine(RuleBasedStateMachine):
    planted: frozenset[str] = frozenset()

    @initialize(
        ahead=st.integers(1, 3), locked=st.booleans(), h2d=st.sampled_from([1e7, 1e8, 1e9]), transforms=st.booleans()
    )
    def begin(self, ahead: int, locked: bool, h2d: float, transforms: bool) -> None:
        self.sim = sim = SimulatedAccelerator(h2d=h2d, without=self.planted & {"wait", "record_stream"})
        sim.open()
        self.memory = Memory(sim, 8, locked=locked)
        self.bad: set[int] = set()
        self.way = self.make_way(sim, ahead, self.transform if transforms else None)
        self.stage = Stage(self.way, ahead, lambda outcome: outcome.batch.unpack(), lambda seq: seq)
        self.ahead = ahead
        self.transforms = transforms
        self.queue: deque[Any] = deque()
        self.seq = 0
        self.hand: Any = None
        self.kept: list[Any] = []
        self.extra = 0  # that were kept and have been dropped since the device was last idle
        self.steps = Steps(sim)
        self.expected: list[list[int]] = []
        self.failures = 0
        self.closed = False

    def make_way(self, sim: SimulatedAccelerator, ahead: int, transform: Any) -> Moving:
        return Moving(sim, ahead, transform)

    def transform(self, batch: Any) -> Any:
        """Computes on the side stream, into memory of its own."""
        x, labels = batch
        return [self.sim.apply(torch.clone, x, seconds=2e-5), labels]

    # -- what comes ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.memory.free and not self.closed)
    @rule()
    def arrives(self) -> None:
        self.queue.append(SimpleNamespace(seq=self.seq, batch=Arrived(self.memory.write(self.seq), self.seq)))
        self.seq += 1
        self.stage.advance(self.queue)

    @precondition(lambda self: not self.closed)
    @rule()
    def arrives_as_an_error(self) -> None:
        self.queue.append(SimpleNamespace(seq=self.seq, error=ValueError("its sample")))
        self.seq += 1
        self.stage.advance(self.queue)

    @precondition(lambda self: not self.closed)
    @rule()
    def next_copy_fails(self) -> None:
        self.sim.fail_copies = {self.sim.copies + 1}

    @precondition(lambda self: not self.closed)
    @rule()
    def is_pumped(self) -> None:
        self.stage.advance(self.queue)

    # -- what the program does -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.queue and not self.closed)
    @rule(seconds=st.sampled_from([1e-5, 1e-4, 1e-3]), own_stream=st.booleans())
    def takes(self, seconds: float, own_stream: bool) -> None:
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

    @rule()
    def drops(self) -> None:
        self.hand = None

    @precondition(lambda self: self.hand is not None and len(self.kept) < 4)
    @rule()
    def keeps(self) -> None:
        self.kept.append(self.hand)

    @rule()
    def drops_what_it_kept(self) -> None:
        self.extra += len(self.kept)
        self.kept.clear()

    @rule(seconds=st.sampled_from([1e-5, 1e-4, 1e-3]))
    def works_on_the_cpu(self, seconds: float) -> None:
        self.sim.advance(seconds)

    @rule()
    def waits_for_the_device(self) -> None:
        self.sim.synchronize()
        self.extra = 0

    @precondition(lambda self: self.seq > 3)
    @rule()
    def closes(self) -> None:
        self.stage.close()
        self.queue.clear()
        self.closed = True

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def no_rule_is_broken(self) -> None:
        if hasattr(self, "sim"):
            self.sim.check()

    @invariant()
    def device_memory_is_bounded(self) -> None:
        if hasattr(self, "sim"):
            batches = self.ahead + 1 + len(self.kept) + self.extra
            most = batches * (NBYTES + 1024) + (NBYTES if self.transforms else 0)  # and what is being transformed
            assert self.sim.resident_bytes <= most

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.hand = None
        self.kept.clear()
        self.queue.clear()
        self.stage.close()
        assert self.steps.seen() == self.expected
        for thread in threading.enumerate():
            if thread.name.startswith("aloader"):
                thread.join(10)
        self.sim.synchronize()
        gc.collect()
        self.sim.check()
        assert len(self.memory.free) == 8, "a lease has not ended"


def run(machine: type[Machine], examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=checks, database=None
        ),
    )


@pytest.mark.slow
def test_the_stage_keeps_every_byte_in_its_place_whatever_happens():
    run(Machine, 60)


class EndsLeasesAtIssue(Moving):
    def begin(self, batch: Any, place: int) -> Any:
        begun = super().begin(batch, place)
        self._under_way.clear()
        return begun


class NeverWaits(Machine):
    planted = frozenset({"wait"})


class NeverRecords(Machine):
    planted = frozenset({"record_stream"})


class EndsLeasesEarly(Machine):
    def make_way(self, sim: SimulatedAccelerator, ahead: int, transform: Any) -> Moving:
        return EndsLeasesAtIssue(sim, ahead, transform)


class NeverFull(Machine):
    def make_way(self, sim: SimulatedAccelerator, ahead: int, transform: Any) -> Moving:
        way = super().make_way(sim, ahead, transform)
        way.full = lambda: False  # type: ignore[method-assign]
        return way


@pytest.mark.slow
@pytest.mark.parametrize("planted", [NeverWaits, NeverRecords, EndsLeasesEarly, NeverFull])
def test_a_planted_bug_is_caught(planted):
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        run(planted, 300)
