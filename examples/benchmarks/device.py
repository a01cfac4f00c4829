"""How well do batches get to the GPU: how fast, how long is it idle, and what does the program's CPU do for it?

    python examples/benchmarks/device.py [--quick] [--rounds 5] [--seconds 3] [--step 10] [--json FILE]

**Method.** All contenders are open at once, with persistent workers, and take turns; the order rotates, and ratios are
taken within a round. Batches are stamped uint8 images, and each is checked on the device. In *flow* the program does
nothing else; in *step* it computes for so many milliseconds with each batch, by products of matrices, on its own
stream. The device's events around each step say how long it took, and from the first to the last how long it could
have. The rest is *idle*, which is where copies are that nothing hides, and where the loader is late. *CPU* is that of
the main process, all threads.

- *torch*: `DataLoader(pin_memory=True)`, and `.to("cuda", non_blocking=True)`.
- *torch, one ahead*: the same with a prefetcher as training programs have it: the next batch on a stream beside.
- *SPDL*: torch's loader, and `spdl.io`'s transfer in a thread (where it is installed).
- *aloader device=*: `device="cuda"`. *aloader pin_memory* (True) and *aloader arena*: with `.to(non_blocking=True)`.

Without a GPU there is nothing to measure. Then the same ways of copying are played through on the simulated
accelerator, for copies that are shorter than a step, equally long, and longer. That is a *schedule*, in virtual time,
with a loader that is never late and CPU work that costs 5 µs a call: it says what can overlap and who waits for whom.

**Result.** Not measured yet: no figures of a GPU. The schedule, of 40 steps:

    copy, against a step of 10 ms       idle  host waits  batches on the device
    shorter: not pinned, .to()           54%         99%                      1
    shorter: pinned, .to(non_blocking)   23%          0%                      1
    shorter: pinned, one ahead            0%          0%                     40
    shorter: aloader device=              0%         93%                      3
    equal: not pinned, .to()             80%        100%                      1
    equal: pinned, .to(non_blocking)     49%          0%                      1
    equal: pinned, one ahead              0%          0%                     40
    equal: aloader device=                0%         93%                      3
    longer: not pinned, .to()            85%        100%                      1
    longer: pinned, .to(non_blocking)    59%          0%                      1
    longer: pinned, one ahead            33%          0%                     40
    longer: aloader device=              33%         93%                      3

A host that never waits runs ahead as far as the device's queue of work allows, here to the end: what is copied on a
stream beside then lies on the device all at once. (A program that reads its loss at each step waits there instead.)
`device=` hides the same copies with three batches: the host waits for the device when it is that far ahead. That a
third of the time is idle where copies take half as long again as steps is what no order of them can change.
"""

from __future__ import annotations

import argparse
import importlib
import json
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
import transport
from harness import Flow, Spread

import aloader
from aloader import options
from aloader.device.moving import Moving
from aloader.device.stage import Stage
from aloader.testing import SimulatedAccelerator

WARM_UP = 12


# -- ways to the device ------------------------------------------------------------------------------------------------
# Each is a generator of batches on the device, and closes its loader when it is closed.


def torch_loader(settings: dict[str, Any], pin: bool) -> Any:
    return torch.utils.data.DataLoader(transport.Images(torch.uint8), pin_memory=pin, **settings)


def torch_to(settings: dict[str, Any]) -> Iterator[torch.Tensor]:
    for batch in torch_loader(settings, pin=True):
        yield batch.to("cuda", non_blocking=True)


def torch_one_ahead(settings: dict[str, Any]) -> Iterator[torch.Tensor]:
    side, before = torch.cuda.Stream(), None
    for batch in torch_loader(settings, pin=True):
        with torch.cuda.stream(side):
            there = batch.to("cuda", non_blocking=True)
            copied = side.record_event()
        if before is not None:
            yield before
        current = torch.cuda.current_stream()
        current.wait_event(copied)
        there.record_stream(current)
        before = there


def spdl_transfer() -> Callable[[Any], Any] | None:
    """Its function, by its newer or its older name."""
    try:
        module = importlib.import_module("spdl.io")
    except ImportError:
        return None
    return getattr(module, "transfer_tensor_h2d", None) or getattr(module, "transfer_tensor", None)


def spdl(settings: dict[str, Any]) -> Iterator[torch.Tensor]:
    transfer, over = spdl_transfer(), threading.Event()
    ready: queue.Queue[Any] = queue.Queue(2)
    assert transfer is not None

    def work() -> None:
        for batch in torch_loader(settings, pin=False):
            ready.put(transfer(batch))
            if over.is_set():
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while True:
            yield ready.get()
    finally:
        over.set()
        while thread.is_alive():
            while not ready.empty():
                ready.get()
            thread.join(0.01)


def aloader_device(settings: dict[str, Any]) -> Iterator[torch.Tensor]:
    with aloader.DataLoader(transport.Images(torch.uint8), device="cuda", **settings) as loader:
        yield from loader


def aloader_pin(settings: dict[str, Any]) -> Iterator[torch.Tensor]:
    with aloader.DataLoader(transport.Images(torch.uint8), pin_memory=True, **settings) as loader:
        for batch in loader:
            yield batch.to("cuda", non_blocking=True)


def aloader_arena(settings: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Batches are kept until their copies are done: that is the program's duty here."""
    under_way: deque[tuple[Any, torch.Tensor]] = deque()
    with aloader.DataLoader(transport.Images(torch.uint8), pin_memory="arena", **settings) as loader:
        try:
            for batch in loader:
                there = batch.to("cuda", non_blocking=True)
                under_way.append((torch.cuda.current_stream().record_event(), batch))
                while under_way and under_way[0][0].query():
                    under_way.popleft()
                yield there
        finally:
            torch.cuda.synchronize()


WAYS: dict[str, Callable[[dict[str, Any]], Iterator[torch.Tensor]]] = {
    "torch": torch_to,
    "torch, one ahead": torch_one_ahead,
    "SPDL": spdl,
    "aloader device=": aloader_device,
    "aloader pin_memory": aloader_pin,
    "aloader arena": aloader_arena,
}


# -- what the device does with them ------------------------------------------------------------------------------------


class Step:
    """Computing for so many milliseconds, on the current stream, between two marks."""

    def __init__(self, milliseconds: float) -> None:
        self._factor = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
        self._product = torch.empty_like(self._factor)
        self._count = 0
        if milliseconds:
            self._run(10)
            begin, end = self._run(50)
            end.synchronize()
            self._count = max(1, round(milliseconds * 50 / begin.elapsed_time(end)))

    def __call__(self) -> tuple[Any, Any]:
        return self._run(self._count)

    def _run(self, count: int) -> tuple[Any, Any]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            torch.mm(self._factor, self._factor, out=self._product)
        end.record()
        return begin, end


class Fed:
    """A contender: batches of one way, a step with each, and the check of each."""

    def __init__(self, way: Callable[[dict[str, Any]], Iterator[torch.Tensor]], settings: dict[str, Any]) -> None:
        self._way, self._settings = way, settings
        self.step: Step
        self.idle: list[float] = []

    def open(self) -> None:
        self._batches = self._way(self._settings)
        self._number = 0
        self._wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def turn(self, seconds: float, warm_up: int) -> Flow:
        for _ in range(warm_up):
            self._one()
        torch.cuda.synchronize()
        marks, nbytes = [], 0
        cpu, began = time.process_time(), time.perf_counter()
        while time.perf_counter() < began + seconds or not marks:
            size, mark = self._one()
            nbytes += size
            marks.append(mark)
        torch.cuda.synchronize()
        flow = Flow(len(marks), nbytes, time.perf_counter() - began, time.process_time() - cpu)
        if self._wrong.item():
            raise AssertionError(f"{self._way.__name__}: {self._wrong.item()} samples are not what they should be")
        busy = sum(begin.elapsed_time(end) for begin, end in marks)
        self.idle.append(1 - busy / max(marks[0][0].elapsed_time(marks[-1][1]), 1e-9))
        return flow

    def _one(self) -> tuple[int, tuple[Any, Any]]:
        batch = next(self._batches)
        mark = self.step()
        size = len(batch)
        heads = batch.view(size, -1)[:, :4].contiguous().view(torch.int32).view(-1)
        first = self._number * size
        expected = torch.arange(first, first + size, device="cuda") % transport.DISTINCT
        self._wrong += (heads != expected).sum()
        self._number += 1
        return batch.nbytes, mark

    def close(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]


def measure(given: argparse.Namespace) -> dict[str, Any]:
    ways = {name: way for name, way in WAYS.items() if way is not spdl or spdl_transfer() is not None}
    settings = {"batch_size": given.batch, "num_workers": given.workers, "persistent_workers": True}
    found: dict[str, Any] = {}
    for case, milliseconds in (("flow", 0.0), ("step", given.step)):
        step, contenders = Step(milliseconds), {name: Fed(way, settings) for name, way in ways.items()}
        for contender in contenders.values():
            contender.step = step
        flows = harness.rounds(
            contenders,
            given.rounds,
            given.seconds,
            WARM_UP,
            lambda text: harness.say(f"{case}: {text}"),  # noqa: B023
        )
        harness.quiet()
        print(f"\n{case}: {milliseconds:.0f} ms of computing for each batch of {given.batch} images")
        print(report(flows, {name: each.idle for name, each in contenders.items()}, bool(milliseconds)), flush=True)
        found[case] = harness.as_json(flows)
        found["idle"] = {name: each.idle for name, each in contenders.items()}
    return found


def report(flows: dict[str, list[Flow]], idle: dict[str, list[float]], steps: bool) -> str:
    rows = [
        [
            name,
            f"{harness.median(turn.byte_rate for turn in turns) / 1e9:.2f}",
            str(harness.ratio(turns, flows["torch"])),
            str(Spread.of([100 * share for share in idle[name]])) if steps else "",
            f"{harness.median(turn.cpu / turn.batches for turn in turns) * 1e3:.2f}",
        ]
        for name, turns in flows.items()
    ]
    return harness.table(["", "GB/s", "÷ torch", "idle, %", "CPU ms/batch"], rows)


# -- the schedule, simulated -------------------------------------------------------------------------------------------


STEPS, SIZE = 40, 1 << 14


@dataclass(frozen=True, slots=True)
class Played:
    """Shares of the time from the first step's begin to the last one's end, and batches that lay on the device."""

    idle: float
    waited: float
    most: float


Compute = Callable[[torch.Tensor], None]


def play_to(sim: SimulatedAccelerator, compute: Compute) -> None:
    """Pinned, and copied on the program's own stream."""
    for number in range(STEPS):
        compute(sim.to(sim.pin(batch_of(number)), non_blocking=True))


def play_one_ahead(sim: SimulatedAccelerator, compute: Compute) -> None:
    """The next one is copied on a stream beside, while this one is used."""
    before = None
    for number in range(STEPS):
        with sim.on(sim.side):
            there = sim.to(sim.pin(batch_of(number)), non_blocking=True)
            copied = sim.record(sim.side)
        if before is not None:
            compute(before)
        sim.wait(sim.current(), copied)
        sim.record_stream(there, sim.current())
        before = there
    assert before is not None
    compute(before)


def play_pageable(sim: SimulatedAccelerator, compute: Compute) -> None:
    """Not pinned: the host waits for its stream, and for the copy."""
    for number in range(STEPS):
        compute(sim.to(batch_of(number), non_blocking=True))


def play_device(sim: SimulatedAccelerator, compute: Compute) -> None:
    """What `device=` does: the loader's own stage, behind a queue in which every batch lies already."""
    ahead = options.DEVICE_PREFETCH
    stage = Stage(Moving(sim, ahead), ahead, lambda one: sim.pin(batch_of(one.batch)), lambda seq: seq)
    queue = deque(Arrived(number, number) for number in range(STEPS))
    while queue:
        stage.settle(queue)
        compute(stage.take(queue.popleft()))
    stage.close()


def batch_of(number: int) -> torch.Tensor:
    return torch.full((SIZE,), number, dtype=torch.uint8)


class Arrived(NamedTuple):
    """What lies in an epoch's queue."""

    seq: int
    batch: int


PLAYS: dict[str, Callable[[SimulatedAccelerator, Compute], None]] = {
    "not pinned, .to()": play_pageable,
    "pinned, .to(non_blocking)": play_to,
    "pinned, one ahead": play_one_ahead,
    "aloader device=": play_device,
}


def played(play: Callable[[SimulatedAccelerator, Compute], None], copy: float, step: float) -> Played:
    """One way through all the steps, which take so many seconds each, in virtual time."""
    sim = SimulatedAccelerator(h2d=SIZE / copy, pageable=SIZE / copy / 4, latency=0.0)
    sim.open()
    given = 0.0

    def compute(batch: torch.Tensor) -> None:
        nonlocal given
        sim.launch("step", step, reads=[batch])
        given = sim.now

    play(sim, compute)
    sim.check()
    steps = [span for span in sim.trace if span.name == "step"]
    whole = steps[-1].end - steps[0].begin
    return Played(1 - STEPS * step / whole, given / steps[-1].end, sim.peak_bytes / SIZE)


def schedule() -> str:
    rows = []
    for title, copy in (("shorter", 0.003), ("equal", 0.010), ("longer", 0.015)):
        for name, play in PLAYS.items():
            found = played(play, copy, 0.010)
            rows.append([f"{title}: {name}", f"{found.idle:.0%}", f"{found.waited:.0%}", f"{found.most:.0f}"])
    return harness.table(["copy, against a step of 10 ms", "idle", "host waits", "batches on the device"], rows)


# -- the whole ---------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, help="turns of each contender (5; quick: 3)")
    parser.add_argument("--seconds", type=float, help="length of a turn (3; quick: 0.7)")
    parser.add_argument("--batch", type=int, default=128, help="images of 150 KB in a batch")
    parser.add_argument("--step", type=float, default=10.0, help="milliseconds of computing for each")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="a first look, not to be quoted")
    parser.add_argument("--json", metavar="FILE", help="every figure of every round")
    given = parser.parse_args()
    given.rounds = given.rounds or (3 if given.quick else 5)
    given.seconds = given.seconds or (0.7 if given.quick else 3.0)
    return given


def main() -> None:
    given = arguments()
    if not torch.cuda.is_available():
        print("no accelerator here: nothing is measured. What follows is a simulated schedule, in virtual time.\n")
        print(schedule())
        return
    facts = harness.machine() | {"card": torch.cuda.get_device_name(0)}
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    found = measure(given)
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": facts, **found}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
