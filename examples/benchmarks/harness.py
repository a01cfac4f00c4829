"""What the benchmarks share: rounds that alternate between contenders, counting of CPU and memory, tables.

A *contender* is something that yields batches. All contenders of one comparison are open at the same time and take
turns: in each round each of them flows for a while, the order rotates, and ratios are taken within a round, because
machines drift. Nothing here knows what is compared, and nothing asserts a speed.

A *probe* is one contender in a fresh process of its own: for what starting costs, and for memory, where others would be
in the way. The probing process prints JSON lines; this one watches the probe's processes from outside.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy
import psutil
import torch

TICK = 1 / os.sysconf("SC_CLK_TCK")


# -- counting ----------------------------------------------------------------------------------------------------------


def family(pid: int | None = None) -> list[int]:
    """The process and all its descendants."""
    try:
        process = psutil.Process(pid)
        return [process.pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int | None = None) -> float:
    """CPU time of a process and its descendants, those included that have ended and were waited for."""
    total = 0
    for each in family(pid):
        try:
            stat = Path(f"/proc/{each}/stat").read_text()
        except OSError:
            continue
        total += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return total * TICK


def pss_bytes(pid: int | None = None) -> int:
    """Memory of a process and its descendants, what they share counted once."""
    total = 0
    for each in family(pid):
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) << 10
    return total


def descriptors(pid: int | str = "self") -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def shm_bytes() -> int:
    """What is in use of /dev/shm, unlinked files included. Those of other programs too: look at differences."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


# -- one flow ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flow:
    """What went through in one turn of one contender."""

    batches: int
    nbytes: int
    seconds: float
    cpu: float
    descriptors: int = 0
    waits: tuple[float, ...] = ()  # seconds that the consumer waited for each batch

    @property
    def batch_rate(self) -> float:
        return self.batches / self.seconds

    @property
    def byte_rate(self) -> float:
        return self.nbytes / self.seconds

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu / (self.nbytes / 1e9)


#: Looks at a batch and its number, reads all of it, raises if it is not the right one, and says how large it is.
Check = Callable[[Any, int], int]


class Contender(Protocol):
    def open(self) -> None: ...

    def turn(self, seconds: float, warm_up: int) -> Flow: ...

    def close(self) -> None: ...


class Meter:
    """Counts what flows between its making and `done`."""

    def __init__(self) -> None:
        self._cpu = cpu_seconds()
        self._began = time.perf_counter()

    def done(self, batches: int, nbytes: int, waits: Sequence[float] = ()) -> Flow:
        seconds = time.perf_counter() - self._began
        return Flow(batches, nbytes, seconds, cpu_seconds() - self._cpu, descriptors(), tuple(waits))


class Blocking:
    """An iterable that `make` makes, consumed by plain `for`. Batches are numbered through all turns, for the check."""

    def __init__(self, make: Callable[[], Iterable[Any]], check: Check) -> None:
        self._make, self._check = make, check
        self._waits: list[float] = []

    def open(self) -> None:
        self._loader = self._make()
        self._iterator: Iterator[Any] = iter(self._loader)
        self._number = 0

    def turn(self, seconds: float, warm_up: int) -> Flow:
        for _ in range(warm_up):
            self._take()
        self._waits.clear()
        meter, batches, nbytes = Meter(), 0, 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not batches:
            nbytes += self._take()
            batches += 1
        return meter.done(batches, nbytes, self._waits)

    def _take(self) -> int:
        began = time.perf_counter()
        batch = next(self._iterator)
        self._waits.append(time.perf_counter() - began)
        self._number += 1
        return self._check(batch, self._number - 1)

    def close(self) -> None:
        close = getattr(self._loader, "close", None)
        if close:
            close()
        del self._iterator, self._loader


class Awaiting:
    """The same for `async for`, on an event loop of its own that stands still between turns."""

    def __init__(self, make: Callable[[], Any], check: Check, loop_factory: Callable[[], Any] | None = None) -> None:
        self._make, self._check, self._loop_factory = make, check, loop_factory
        self._waits: list[float] = []

    def open(self) -> None:
        self._runner = asyncio.Runner(loop_factory=self._loop_factory)
        self._number = 0
        self._runner.run(self._open())

    async def _open(self) -> None:
        self._loader = self._make()
        self._iterator: AsyncIterator[Any] = aiter(self._loader)

    def turn(self, seconds: float, warm_up: int) -> Flow:
        return self._runner.run(self._turn(seconds, warm_up))

    async def _turn(self, seconds: float, warm_up: int) -> Flow:
        for _ in range(warm_up):
            await self._take()
        self._waits.clear()
        meter, batches, nbytes = Meter(), 0, 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not batches:
            nbytes += await self._take()
            batches += 1
        return meter.done(batches, nbytes, self._waits)

    async def _take(self) -> int:
        began = time.perf_counter()
        batch = await anext(self._iterator)
        self._waits.append(time.perf_counter() - began)
        self._number += 1
        return self._check(batch, self._number - 1)

    def close(self) -> None:
        self._runner.run(self._loader.aclose())
        del self._iterator, self._loader
        self._runner.close()


# -- rounds ------------------------------------------------------------------------------------------------------------


def rounds(
    contenders: dict[str, Contender], count: int, seconds: float, warm_up: int, say: Callable[[str], None]
) -> dict[str, list[Flow]]:
    """`count` turns of each, alternating; the one who begins changes from round to round."""
    flows: dict[str, list[Flow]] = {name: [] for name in contenders}
    opened: list[Contender] = []
    try:
        for contender in contenders.values():
            contender.open()
            opened.append(contender)
        names = list(contenders)
        for number in range(count):
            say(f"round {number + 1} of {count}")
            first = number % len(names)
            for name in names[first:] + names[:first]:
                flows[name].append(contenders[name].turn(seconds, warm_up))
    finally:
        for contender in opened:
            contender.close()
    return flows


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def ratio(flows: list[Flow], base: list[Flow]) -> Spread:
    """How many times faster, paired by round."""
    return Spread.of([mine.batch_rate / theirs.batch_rate for mine, theirs in zip(flows, base, strict=True)])


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


# -- probes ------------------------------------------------------------------------------------------------------------


@dataclass
class Peaks:
    """The most that was seen of a process and its descendants, and its lines of JSON put together."""

    pss: int = 0
    shm: int = 0
    descriptors: int = 0
    said: dict[str, Any] = field(default_factory=dict)


def probe(program: str, arguments: Sequence[str], watch: bool = False, interval: float = 0.02) -> Peaks:
    """Runs a program of this folder and collects what it says on its standard output, in lines of JSON.

    Watching walks page tables, which slows down what is watched: times come from probes that are not watched.
    """
    peaks = Peaks()
    shm_before = shm_bytes()
    command = [sys.executable, program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peaks, shm_before, over, interval))
        if watch:
            watcher.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                peaks.said.update(json.loads(line))
        over.set()
        if watch:
            watcher.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {process.returncode}")
    return peaks


def _watch(pid: int, peaks: Peaks, shm_before: int, over: threading.Event, interval: float) -> None:
    while not over.wait(interval):
        peaks.pss = max(peaks.pss, pss_bytes(pid))
        peaks.shm = max(peaks.shm, shm_bytes() - shm_before)
        peaks.descriptors = max(peaks.descriptors, descriptors(pid))


# -- printing ----------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need; the first to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    def aligned(first: str, *others: str) -> str:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        return "  ".join([first.ljust(widths[0]), *cells]).rstrip()

    return "\n".join(aligned(*line) for line in lines)


def say(text: str) -> None:
    """Progress, on standard error; rewritten in place on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def quiet() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What figures depend on, and nothing that names a machine."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.release().split("-")[0],
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "load_before": os.getloadavg()[0],
    }


def as_json(flows: dict[str, list[Flow]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [{**asdict(flow), "waits": len(flow.waits)} for flow in turns] for name, turns in flows.items()}
