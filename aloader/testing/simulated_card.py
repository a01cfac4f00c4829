"""The simulated card itself: what becomes of copies and kernels. No calling thread and no lock is known here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aloader.testing.simulated_host import HostMemory, Source
from aloader.testing.simulated_kernels import Filling, Launch, Reading, over
from aloader.testing.simulated_memory import Allocation, Layout, Pool
from aloader.testing.simulated_streams import Engine, Event, Operation, Schedule, Stream


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bandwidths in bytes a second; latency in seconds."""

    h2d: float
    d2h: float
    pageable: float
    latency: float


class Card:
    """Memory, streams and copy engines, and the host's clock."""

    def __init__(self, speeds: Speeds, refuse_locks: str | None, lock_limit: int | None) -> None:
        self.schedule = Schedule()
        self.violations: list[str] = []
        self.memory = Pool(_released)
        self.host = HostMemory(self.violations, refuse_locks, lock_limit)
        self.waits = 0
        self.waited = 0.0
        self._speeds = speeds
        self._engines = (Engine(), Engine())  # to the device, and from it
        self._copies: list[tuple[Operation, Source]] = []

    def collect(self) -> None:
        """Take note of what has been dropped since the last call."""
        self.memory.collect(self.schedule.now)
        self.host.pool.collect(self.schedule.now)

    def allocate(self, like: torch.Tensor, stream: Stream) -> tuple[Allocation, torch.Tensor]:
        """Device memory for such a tensor, and a tensor on it."""
        allocation, owner = self.memory.allocate(like.nbytes, stream, self.schedule.now)
        return allocation, Layout.of(like).on(owner)

    def copy(self, tensor: torch.Tensor, stream: Stream, name: str, *, blocking: bool) -> torch.Tensor:
        """A copy to the device. The host waits where it must."""
        if self.memory.find(tensor) is not None:
            return tensor
        if not tensor.numel():
            return torch.empty_like(tensor)
        like = torch.empty_like(tensor, device="meta")
        source = tensor.detach() if like.stride() == tensor.stride() else tensor.detach().contiguous()
        self.host.check(source)
        pinned, began = self.host.is_pinned(source), self.schedule.now
        allocation, result = self.allocate(like, stream)
        seconds = self._speeds.latency + source.nbytes / (self._speeds.h2d if pinned else self._speeds.pageable)
        operation = self.schedule.give(stream, name, seconds, self._engines[0], source.nbytes)
        self._fill(allocation, source, operation)
        if blocking or not pinned:
            self.join(operation)
            self.waits += 1
            self.waited += self.schedule.now - began
        return result

    def launch(
        self, stream: Stream, name: str, seconds: float, function: Callable[..., Any] | None, reads: Any
    ) -> Launch:
        """A kernel. `reads`: a list or tuple."""
        operation = self.schedule.give(stream, name, seconds)
        return Launch(operation, function, self._readings(reads), self.violations)

    def compute(
        self, stream: Stream, name: str, seconds: float, function: Callable[..., torch.Tensor], reads: Any
    ) -> torch.Tensor:
        """A kernel whose result is in device memory."""
        like = function(*over(torch.Tensor, reads, torch.zeros_like))
        allocation, result = self.allocate(torch.empty_like(like, device="meta"), stream)
        layout = Layout.of(result)

        def work(*views: Any) -> None:
            layout.on(allocation.block.memory).copy_(function(*views).detach())

        operation = self.schedule.give(stream, name, seconds)
        Launch(operation, work, self._readings(reads), self.violations)
        operation.at_begin = Filling(allocation, operation, self.violations).begin
        return result

    def read(self, tree: Any, stream: Stream) -> Any:
        """A copy from the device, for which the host waits."""
        sizes: list[int] = []
        over(torch.Tensor, tree, lambda tensor: sizes.append(tensor.nbytes))
        seconds = self._speeds.latency + sum(sizes) / self._speeds.d2h
        operation = self.schedule.give(stream, "read", seconds, self._engines[1], sum(sizes))
        launch = Launch(operation, _cloned, self._readings((tree,)), self.violations)
        self.join(operation)
        return launch.result

    def join(self, operation: Operation) -> None:
        """The host waits for it."""
        self.schedule.join(Event(operation.span.end, operation.behind))

    def running(self) -> list[tuple[Operation, Source]]:
        """Copies that have not ended."""
        self._copies = [running for running in self._copies if not running[0].ended]
        return self._copies

    def _readings(self, tree: Any) -> Any:
        return over(torch.Tensor, tree, lambda tensor: Reading.of(tensor, self.memory))

    def _fill(self, into: Allocation, tensor: torch.Tensor, operation: Operation) -> None:
        source = Source.of(tensor)

        def arrive() -> None:
            wrong = source.arrive(into.block)
            if wrong is not None:
                self.violations.append(f"{wrong}: {operation}")

        operation.at_begin = Filling(into, operation, self.violations).begin
        operation.at_end = arrive
        block = self.host.pool.find(tensor)
        if block is not None:  # only of its own memory does torch record copies
            block.until = max(block.until, operation.span.end)
        self.running().append((operation, source))


def _cloned(tree: Any) -> Any:
    return over(torch.Tensor, tree, torch.clone)


def _released(allocation: Allocation) -> float:
    """When a dropped block may be used again: torch records an event on each stream that `record_stream` named.

    It looks at these events itself before it hands the block out, so nobody else need order what comes then.
    """
    block, streams = allocation.block, [stream for stream in allocation.streams if stream is not allocation.block.key]
    for stream in streams:
        block.readers.pop(stream, None)
    return max((stream.free_at for stream in streams), default=0.0)
