"""`loader.with_info()`: batches with what is known of them. Whoever does not ask pays nothing: an epoch notes what it
knows of the batch that it gave last, and this looks there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from aloader.stats import BatchInfo


class Informed:
    """Pairs of batch and `BatchInfo`, by `for` and by `async for`; each begins a new epoch of the loader."""

    def __init__(self, blocking: Callable[[], Any], asynchronous: Callable[[], Any]) -> None:
        self._blocking = blocking
        self._asynchronous = asynchronous

    def __iter__(self) -> InformedBatches:
        return InformedBatches(self._blocking())

    def __aiter__(self) -> AsyncInformedBatches:
        return AsyncInformedBatches(self._asynchronous())


class InformedBatches:
    """The iterator of `for`."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Any, BatchInfo]:
        began = time.perf_counter()
        batch = next(self._batches)
        return batch, _info(self._batches.taken, time.perf_counter() - began)

    def __len__(self) -> int:
        return len(self._batches)


class AsyncInformedBatches:
    """The iterator of `async for`. Cancelling it loses no batch: nothing is awaited after one has been taken."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Any, BatchInfo]:
        began = time.perf_counter()
        batch = await anext(self._batches)
        return batch, _info(self._batches.taken, time.perf_counter() - began)

    async def aclose(self) -> None:
        """End the epoch."""
        await self._batches.aclose()


def _info(taken: tuple[int, Any, int | None, int, tuple[Any, ...]], waited: float) -> BatchInfo:
    seq, indices, worker, epoch, left_out = taken
    return BatchInfo(seq, indices, worker, waited, epoch, left_out)
