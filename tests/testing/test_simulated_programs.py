"""Random programs on the simulated accelerator: right ones are right, and one omission is told where it matters."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from aloader.testing import SimulatedAccelerator
from aloader.testing.simulated_kernels import Launch
from aloader.testing.simulated_streams import Event, Stream

N = 200
STREAMS = 3

#: What to do, and numbers for it: a stream, a tensor or slot, and a duration.
STEPS = st.lists(
    st.tuples(st.sampled_from(["copy", "copy", "kernel", "kernel", "drop", "advance"]), *[st.integers(0, 5)] * 3),
    max_size=25,
)
DURATIONS = (1e-7, 3e-6, 1e-5, 4e-5, 2e-4, 1e-3)


@dataclass
class Slot:
    """Page-locked memory that is used for one batch after another."""

    memory: torch.Tensor
    event: Event | None = None


@dataclass
class OnDevice:
    tensor: torch.Tensor
    value: float
    stream: Stream
    event: Event
    copied: int  # the number of the operation


@dataclass
class Program:
    """Runs steps as they should be done, but leaves out the call of this number that orders something."""

    omitted: int | None = None
    sim: SimulatedAccelerator = field(default_factory=SimulatedAccelerator)
    calls: int = 0
    live: list[OnDevice] = field(default_factory=list)
    launches: list[tuple[Launch, float]] = field(default_factory=list)
    unordered: bool = False  # a kernel does not come after the copy that it reads

    def __post_init__(self) -> None:
        sim = self.sim
        sim.open()
        self.streams = [sim.current(), sim.side, *(sim.new_stream(f"more {n}") for n in range(STREAMS - 2))]
        self.slots = [Slot(torch.zeros(N)) for _ in range(2)]
        for slot in self.slots:
            sim.lock(slot.memory.data_ptr(), slot.memory.nbytes)
        self.before: list[set[int]] = []  # of each operation
        self.behind: dict[Stream, set[int]] = {stream: set() for stream in self.streams}  # what comes next
        self.seen: set[int] = set()  # by the host
        self.copied: dict[int, set[int]] = {}  # of each slot: what its event is behind

    def ordering(self) -> bool:
        """Whether the call that comes now is made."""
        self.calls += 1
        return self.calls - 1 != self.omitted

    def operation(self, stream: Stream) -> int:
        number = len(self.before)
        self.behind[stream] |= self.seen
        self.before.append(set(self.behind[stream]))
        self.behind[stream].add(number)
        return number

    def copy(self, stream: Stream, slot: Slot) -> None:
        sim = self.sim
        if slot.event is not None and self.ordering():
            sim.join(slot.event)
            self.seen |= self.copied[id(slot)]
        value = float(len(self.before) + 1)
        slot.memory.fill_(value)
        with sim.on(stream):
            tensor = sim.copy(slot.memory)
        copied = self.operation(stream)
        slot.event = sim.record(stream)
        self.copied[id(slot)] = set(self.behind[stream])
        self.live.append(OnDevice(tensor, value, stream, slot.event, copied))

    def kernel(self, stream: Stream, data: OnDevice, seconds: float) -> None:
        sim = self.sim
        if stream is not data.stream:
            if self.ordering():
                sim.wait(stream, data.event)
                self.behind[stream] |= self.before[data.copied] | {data.copied}
            if self.ordering():
                sim.record_stream(data.tensor, stream)
        with sim.on(stream):
            launch = sim.launch("kernel", seconds, lambda x: (float(x.min()), float(x.max())), [data.tensor])
        number = self.operation(stream)
        self.unordered |= data.copied not in self.before[number]
        self.launches.append((launch, data.value))

    def run(self, steps: list[tuple[str, int, int, int]]) -> None:
        for kind, first, second, third in steps:
            stream = self.streams[first % STREAMS]
            if kind == "copy":
                self.copy(stream, self.slots[second % len(self.slots)])
            elif kind == "advance":
                self.sim.advance(DURATIONS[third])
            elif self.live and kind == "kernel":
                self.kernel(stream, self.live[second % len(self.live)], DURATIONS[third])
            elif self.live:
                self.live.pop(second % len(self.live))
        self.sim.synchronize()

    @property
    def wrong(self) -> int:
        return sum(launch.result != (value, value) for launch, value in self.launches)


@hypothesis_settings(max_examples=40, deadline=None)
@given(STEPS)
def test_programs_that_order_everything_are_right(steps: list[tuple[str, int, int, int]]) -> None:
    program = Program()
    program.run(steps)
    program.sim.check()
    assert program.wrong == 0
    assert program.sim.waits == 0


@hypothesis_settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 10))
def test_one_omission_is_told_where_it_matters(steps: list[tuple[str, int, int, int]], omitted: int) -> None:
    program = Program(omitted)
    program.run(steps)
    told = program.sim.violations
    if program.wrong or program.unordered:
        assert told
    if omitted >= program.calls:
        assert not told
    early = sum(not violation.startswith(("nothing but luck", "source changed")) for violation in told)
    assert early <= program.wrong  # each of these spoils what one kernel reads
