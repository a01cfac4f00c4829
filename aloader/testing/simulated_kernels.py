"""Kernels of the simulated accelerator: what they read, what was wrong with it, and what came out.

A kernel reads from its begin to its end, but its function runs once, at the end. So what had not arrived at the begin
is shown to it as poison, and what others have begun to write by the end as they have left it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aloader.testing.simulated_memory import Allocation, Layout, poison
from aloader.testing.simulated_streams import Operation


@dataclass(frozen=True, slots=True)
class Reading:
    """A tensor that a kernel reads: on device memory by its address, without keeping it; else itself."""

    allocation: Allocation | None
    layout: Layout
    tensor: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor, allocation: Allocation | None) -> Reading:
        layout = Layout.of(tensor)
        if allocation is None:
            return cls(None, layout, tensor)
        offset = (tensor.data_ptr() - allocation.block.address) // tensor.element_size()
        return cls(allocation, Layout(layout.dtype, layout.shape, layout.stride, offset), None)

    def view(self, begin: float) -> tuple[torch.Tensor, str | None]:
        """What a kernel that began then sees, and what is wrong with it."""
        allocation = self.allocation
        if allocation is None:
            assert self.tensor is not None
            return self.tensor.detach(), None
        block = allocation.block
        if block.written > allocation.number:
            return self.layout.on(block.memory), "memory used again under a running kernel"
        if allocation.ready > begin:
            return self.layout.on(bytearray(poison(block.nbytes))), "read before its copy had finished"
        return self.layout.on(block.memory), None


@dataclass(frozen=True, slots=True)
class Result:
    """Device memory that a kernel fills."""

    allocation: Allocation
    layout: Layout

    def write(self, value: torch.Tensor) -> None:
        self.layout.on(self.allocation.block.memory).copy_(value.detach())


class Launch:
    """A kernel that a stream has been given."""

    operation: Operation

    def __init__(
        self, function: Callable[..., Any] | None, reads: Sequence[Reading], writes: Result | None, wrong: list[str]
    ) -> None:
        self._function = function
        self._reads = tuple(reads)
        self._writes = writes
        self._violations = wrong
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def executed(self) -> bool:
        """Whether the host's clock has come to its end."""
        return self.operation.ended

    @property
    def result(self) -> Any:
        """What its function has returned. Raises what that has raised; RuntimeError where it has not run yet."""
        if not self.executed:
            raise RuntimeError(f"{self.operation.span.name!r} has not been executed yet: `join` or `synchronize` first")
        if self._error is not None:
            raise self._error
        return self._result

    def execute(self) -> None:
        """Its end has come."""
        span, views = self.operation.span, []
        for reading in self._reads:
            view, wrong = reading.view(span.begin)
            views.append(view)
            if wrong is not None:
                self._violations.append(f"{wrong}: {span.name!r} on stream {span.stream!r}")
        try:
            if self._function is not None:
                self._result = self._function(*views)
            if self._writes is not None:
                self._writes.write(self._result)
        except Exception as error:
            self._error = error
            self._violations.append(f"{span.name!r} failed on stream {span.stream!r}: {error!r}")
        finally:
            self._function, self._reads = None, ()
