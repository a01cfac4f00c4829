"""Kernels of the simulated accelerator: what they read and write, what was wrong with it, and what came out.

A kernel reads from its begin to its end, but its function runs once, at the end. So what had not arrived at the begin
is shown to it as poison, and what others have begun to write by the end as they have left it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aloader.testing.simulated_memory import Allocation, Layout, Pool, poison
from aloader.testing.simulated_streams import Operation


def over(kind: type, tree: Any, function: Callable[[Any], Any]) -> Any:
    """The same dicts, lists and tuples, with the function's results for what is of a kind."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {key: over(kind, value, function) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        values = [over(kind, value, function) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return tree


@dataclass(frozen=True, slots=True)
class Reading:
    """A tensor that a kernel reads: on device memory by its address, without keeping it; else itself."""

    allocation: Allocation | None
    layout: Layout
    tensor: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor, memory: Pool) -> Reading:
        allocation, layout = memory.find(tensor), Layout.of(tensor)
        if allocation is None:
            return cls(None, layout, tensor.detach())
        offset = (tensor.data_ptr() - allocation.block.address) // tensor.element_size()
        return cls(allocation, Layout(layout.dtype, layout.shape, layout.stride, offset), None)

    def view(self, operation: Operation) -> tuple[torch.Tensor, str | None]:
        """What this kernel sees, and what is wrong with it."""
        if self.allocation is None:
            assert self.tensor is not None
            return self.tensor, None
        block, filled = self.allocation.block, self.allocation.filled
        if block.written > self.allocation.number:
            return self.layout.on(block.memory), f"memory used again under a running kernel: {operation}"
        if filled is not None and filled.span.end > operation.span.begin:
            return self.layout.on(bytearray(poison(block.nbytes))), f"read before its copy had finished: {operation}"
        if filled is not None and not operation.after(filled):
            return self.layout.on(block.memory), f"nothing but luck orders {operation} behind {filled}, which it reads"
        return self.layout.on(block.memory), None


class Filling:
    """An operation fills an allocation: who read what was in its block before should have been done."""

    def __init__(self, allocation: Allocation, operation: Operation, violations: list[str]) -> None:
        self._allocation, self._operation, self._violations = allocation, operation, violations
        self._readers = tuple(allocation.block.readers.values())
        allocation.filled = operation
        allocation.block.readers = {}

    def begin(self) -> None:
        """From now on, the block holds nothing. Readers that still run will see that for themselves."""
        block = self._allocation.block
        block.poison(self._allocation.nbytes)
        block.written = self._allocation.number
        for reader in self._readers:
            if reader.ended and not self._operation.after(reader):
                self._violations.append(f"nothing but luck orders {self._operation} behind {reader}, which read there")


class Launch:
    """A kernel that a stream has been given."""

    def __init__(
        self, operation: Operation, function: Callable[..., Any] | None, reads: Any, violations: list[str]
    ) -> None:
        self.operation = operation
        self._function = function
        self._reads = reads
        self._violations = violations
        self._result: Any = None
        self._error: BaseException | None = None
        over(Reading, reads, self._note)
        operation.at_end = self._execute

    @property
    def executed(self) -> bool:
        """Whether the host's clock has come to its end."""
        return self.operation.ended

    @property
    def result(self) -> Any:
        """What its function has returned. Raises what that has raised; RuntimeError where it has not run yet."""
        if not self.executed:
            raise RuntimeError(f"{self.operation} has not been executed yet: `join` or `synchronize` first")
        if self._error is not None:
            raise self._error
        return self._result

    def _note(self, reading: Reading) -> None:
        if reading.allocation is not None:
            reading.allocation.block.readers[self.operation.stream] = self.operation

    def _view(self, reading: Reading) -> torch.Tensor:
        view, wrong = reading.view(self.operation)
        if wrong is not None:
            self._violations.append(wrong)
        return view

    def _execute(self) -> None:
        views = over(Reading, self._reads, self._view)
        try:
            if self._function is not None:
                self._result = self._function(*views)
        except Exception as error:
            here = error.__traceback__
            self._error = error.with_traceback(here.tb_next if here else None)  # this frame would be a cycle
            self._violations.append(f"{self.operation} failed: {error!r}")
        finally:
            self._function = self._reads = None
