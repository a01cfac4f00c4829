"""The simulated card itself: what becomes of copies and kernels. No calling thread and no lock is known here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aloader.testing.simulated_host import HostMemory, Source
from aloader.testing.simulated_kernels import Launch, Reading, Result
from aloader.testing.simulated_memory import Allocation, Layout, Pool
from aloader.testing.simulated_streams import Engine, Operation, Schedule, Stream


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
        """Device memory for such a tensor."""
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
        if not pinned:
            self.schedule.advance_to(stream.free_at)
        bandwidth = self._speeds.h2d if pinned else self._speeds.pageable
        operation = self._transfer(source, allocation, stream, name, bandwidth)
        if blocking or not pinned:
            self.schedule.advance_to(operation.span.end)
            self.waits += 1
            self.waited += self.schedule.now - began
        return result

    def launch(
        self,
        stream: Stream,
        name: str,
        seconds: float,
        function: Callable[..., Any] | None,
        reads: Sequence[torch.Tensor],
        into: Result | None = None,
    ) -> Launch:
        """A kernel."""
        launch = self._kernel(function, reads, into)
        begin = None if into is None else into.allocation.begin_writing
        launch.operation = self.schedule.give(stream, name, seconds, at_begin=begin, at_end=launch.execute)
        if into is not None:
            into.allocation.ready = launch.operation.span.end
        return launch

    def read(self, tensor: torch.Tensor, stream: Stream) -> Launch:
        """A copy from the device."""
        launch = self._kernel(torch.clone, (tensor,))
        seconds = self._speeds.latency + tensor.nbytes / self._speeds.d2h
        launch.operation = self.schedule.give(
            stream, "read", seconds, at_end=launch.execute, engine=self._engines[1], nbytes=tensor.nbytes
        )
        return launch

    def running(self) -> list[tuple[Operation, Source]]:
        """Copies that have not ended."""
        self._copies = [running for running in self._copies if not running[0].ended]
        return self._copies

    def _kernel(
        self, function: Callable[..., Any] | None, reads: Sequence[torch.Tensor], into: Result | None = None
    ) -> Launch:
        readings = [Reading.of(tensor, self.memory.find(tensor)) for tensor in reads]
        return Launch(function, readings, into, self.violations)

    def _transfer(
        self, tensor: torch.Tensor, into: Allocation, stream: Stream, name: str, bandwidth: float
    ) -> Operation:
        source = Source.of(tensor)

        def arrive() -> None:
            data, wrong = source.now()
            into.block.write(data)
            if wrong is not None:
                self.violations.append(f"{wrong}: {name!r} on stream {stream.name!r}")

        operation = self.schedule.give(
            stream,
            name,
            self._speeds.latency + source.nbytes / bandwidth,
            at_begin=into.begin_writing,
            at_end=arrive,
            engine=self._engines[0],
            nbytes=source.nbytes,
        )
        into.ready = operation.span.end
        block = self.host.pool.find(tensor)
        if block is not None:  # only of its own memory does torch record copies
            block.until = max(block.until, operation.span.end)
        self.running().append((operation, source))
        return operation


def _released(allocation: Allocation) -> float:
    """When a dropped block may be used again: torch records an event on each stream that `record_stream` named."""
    own = allocation.block.key
    return max((stream.free_at for stream in allocation.streams if stream is not own), default=0.0)
