"""Who waits for whom on the way to a GPU: the picture in docs/howto/gpu.md, out of a simulated accelerator's trace.

    python examples/device_timeline.py                               as text
    python examples/device_timeline.py docs/howto/gpu-timeline.svg   the picture

Six batches, each copied in 4 ms and computed with in 6 ms; the program's own CPU work takes 1 ms for each. First a
program that copies by `.to("cuda", non_blocking=True)` on its own stream, then what `device=` does: the loader's own
stage, behind a queue in which every batch lies already. Time is virtual, so it is the same picture each time, on every
machine. It is a schedule, and no measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from aloader import options
from aloader.device.moving import Moving
from aloader.device.stage import Stage
from aloader.testing import SimulatedAccelerator
from aloader.testing.simulated_streams import Span
from aloader.testing.timeline import as_svg, as_text

BATCHES, NBYTES = 6, 1 << 17
COPY, STEP, OWN = 0.004, 0.006, 0.001  # seconds


class Arrived(NamedTuple):
    """What lies in an epoch's queue."""

    seq: int
    batch: torch.Tensor


def arrived(sim: SimulatedAccelerator) -> deque[Arrived]:
    return deque(Arrived(seq, sim.pin(torch.full((NBYTES,), seq, dtype=torch.uint8))) for seq in range(BATCHES))


def by_the_program(sim: SimulatedAccelerator) -> Iterator[torch.Tensor]:
    for one in arrived(sim):
        yield sim.to(one.batch, non_blocking=True)


def by_the_loader(sim: SimulatedAccelerator) -> Iterator[torch.Tensor]:
    ahead = options.DEVICE_PREFETCH
    stage, queue = Stage(Moving(sim, ahead), ahead, lambda one: one.batch, lambda seq: seq), arrived(sim)
    while queue:
        stage.settle(queue)
        yield stage.take(queue.popleft())
    stage.close()


def trained(sim: SimulatedAccelerator, batches: Iterator[torch.Tensor]) -> list[Span]:
    """A step with each batch. What the device has done, and what the CPU has: its own work, behind each launch."""
    cpu = []
    for number, batch in enumerate(batches):
        sim.launch(f"step {number}", STEP, reads=[batch])
        began = sim.now
        sim.advance(OWN)
        cpu.append(Span("CPU", str(number), began, sim.now))
    sim.check()
    return [*sim.trace, *cpu]


def numbered(spans: list[Span], title: str) -> list[Span]:
    """Rows that belong together by their names, and copies with their numbers."""
    rows = {"CPU": f"{title} CPU", "compute": f"{title} GPU", "side": f"{title} copy"}
    zero, copies, found = min(span.begin for span in spans), 0, []
    for span in sorted(spans, key=lambda span: span.begin):
        name = span.name
        if span.nbytes:
            name, copies = f"copy {copies}", copies + 1
        found.append(replace(span, stream=rows[span.stream], name=name, begin=span.begin - zero, end=span.end - zero))
    return found


def both() -> list[Span]:
    found: list[Span] = []
    ways: dict[str, Any] = {".to()": by_the_program, "device=": by_the_loader}
    for title, way in ways.items():
        sim = SimulatedAccelerator(h2d=NBYTES / COPY, latency=0.0)
        sim.open()
        found += numbered(trained(sim, way(sim)), title)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="an SVG file to write")
    file = parser.parse_args().file
    if file is None:
        print(as_text(both()), end="")
    else:
        file.write_text(as_svg(both()))


if __name__ == "__main__":
    sys.exit(main())
