"""What `gpu_questions.py` asks with: stamped batches, work for the device, a process for each question."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import torch

from aloader import DataLoader
from aloader.device.accelerators import Accelerator

MIB, GIB = 1 << 20, 1 << 30
WORKERS = min(8, len(os.sched_getaffinity(0)))


class Answer(NamedTuple):
    """`good` is None where nothing was promised."""

    good: bool | None
    text: str
    figures: dict[str, Any] | None = None

    @property
    def verdict(self) -> str:
        return "figure" if self.good is None else "PASS" if self.good else "FAIL"


# -- means -------------------------------------------------------------------------------------------------------------


def accelerator() -> Accelerator:
    from aloader.device.choosing import accelerator_for

    found = accelerator_for("cuda")
    found.open()
    return found


def mapped(nbytes: int) -> torch.Tensor:
    """Shared memory without a name, as arenas are, which nobody has touched."""
    descriptor = os.memfd_create("questions")
    os.ftruncate(descriptor, nbytes)
    memory = mmap.mmap(descriptor, nbytes)
    os.close(descriptor)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Stamped:
    """Batch i: int32, every element i. The loader's batches are whole samples."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count, self.nbytes = count, nbytes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.nbytes // 4,), index, dtype=torch.int32)


def stamped(count: int, nbytes: int, **arguments: Any) -> DataLoader[Any]:
    """In the order of their numbers."""
    arguments = {"num_workers": WORKERS, "memory_limit": "8GiB", **arguments}
    return DataLoader(Stamped(count, nbytes), batch_size=None, **arguments)


class Wrong:
    """Counts elements that are not what they should be, on the device."""

    def __init__(self) -> None:
        self.count = torch.zeros((), dtype=torch.int64, device="cuda")

    def look(self, batch: torch.Tensor, stamp: int) -> None:
        self.count += (batch != stamp).sum()

    def __int__(self) -> int:
        return int(self.count.item())


class Busy:
    """Work for the device's current stream."""

    def __init__(self) -> None:
        self._factor = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
        self._product = torch.empty_like(self._factor)
        self._launch(3)
        self._each = seconds_of(lambda: self._launch(10)) / 10

    def __call__(self, seconds: float) -> None:
        self._launch(max(1, round(seconds / self._each)))

    def _launch(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self._factor, self._factor, out=self._product)


def seconds_of(act: Callable[[], object]) -> float:
    """What it takes on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    act()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


# -- asking ------------------------------------------------------------------------------------------------------------


def _answering(question: Callable[[], Any], pipe: Any) -> None:
    try:
        pipe.send(question())
    except BaseException as error:
        traceback.print_exc()
        pipe.send(Answer(False, f"{type(error).__name__}: {error}"))


def asked(question: Callable[[], Any], seconds: float, grace: float = 5.0) -> Any:
    """What the function returns, called in a process of its own that has so many seconds."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answering, args=(question, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(seconds) else Answer(False, f"no answer within {seconds:.0f} s")
    except EOFError:
        process.join(grace)
        return Answer(False, f"its process has ended with status {process.exitcode}")
    finally:
        process.join(grace)
        _end(process.pid)
        process.join(5.0)  # one that the driver does not let go of is left behind


def _end(pid: int | None) -> None:
    """Kill a process and what it has started, as far as they are still there."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                each.kill()
