"""`DataLoader`: arguments, checks, wiring, lifecycle. What happens per batch is elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeVar, cast

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Sampler

from aloader import arguments
from aloader.errors import LoaderClosed
from aloader.pool.asynchronous import AsyncBatches
from aloader.pool.blocking import Batches
from aloader.pool.limits import default_memory_limit, parse_bytes
from aloader.pool.threads import in_thread
from aloader.runtime import Runtime, begin_sampling, maker
from aloader.stats import LoaderStats
from aloader.worker import stray
from aloader.worker.fetch import is_async
from aloader.worker.here import InlineBatches, ThreadedBatches

T_co = TypeVar("T_co", covariant=True)

_TORCH_HAS_IN_ORDER: Final = "in_order" in inspect.signature(TorchDataLoader.__init__).parameters


class DataLoader(TorchDataLoader[T_co]):
    """Batches of a dataset, with `async for` or `for`. Every argument of torch's loader, with its meaning; and:

    concurrency: samples in flight of the whole loader, shared out to its workers, for a dataset with
        `async def __getitem__` (default 256, with 4 to 64 for each worker). For an ordinary dataset with workers: fetch
        so many at once in threads (default: one after the other, inline).
    memory_limit: bytes, or text such as "8GiB", that batches may take that are fetched and not consumed yet, over all
        workers (default: a quarter of the memory). What the program keeps is not counted.

    `prefetch_factor` bounds how many batches a worker may hold; for an async dataset it defaults to what keeps its
    concurrency filled. Nothing is started by the constructor. Use `async with` or `with`, `aclose()` or `close()` to
    end the workers at a certain point; a loader that is dropped ends them, too.

    Errors: what the dataset raises is raised in the batch's place with its original type, and the next batch can still
    be had. `WorkerLost` for a worker that died, `LoaderClosed` after closing, `LoaderBusy` for two tasks in one
    iterator; ValueError and TypeError for arguments, with torch's words.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        concurrency: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        arguments.check_num_workers(num_workers)
        prefetch_factor = arguments.asked(prefetch_factor)
        asynchronous = is_async(dataset)
        light = num_workers == 0 and asynchronous  # an async dataset on the user's own loop takes more arguments
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=None if light else prefetch_factor,
            persistent_workers=False if light else persistent_workers,
            pin_memory_device=pin_memory_device,
            **({"in_order": in_order} if _TORCH_HAS_IN_ORDER else {}),
        )
        arguments.check_dataset(self)
        arguments.check_more(self, light, prefetch_factor, concurrency)
        if light:
            self.prefetch_factor = prefetch_factor
        elif prefetch_factor is None and self.prefetch_factor is not None:
            self.prefetch_factor = arguments.Unasked(self.prefetch_factor)
        if asynchronous:
            self.collate_fn = stray.guarded(self.collate_fn, dataset)
        self.in_order = in_order
        self.concurrency = concurrency
        self.memory_limit = memory_limit
        self.memory_bytes = default_memory_limit() if memory_limit is None else parse_bytes(memory_limit)
        self.explicit_prefetch = prefetch_factor
        self.is_async = asynchronous
        self._runtime: Runtime | None = None
        self._stats = LoaderStats()
        self._closed = False

    # -- iterating -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """A new epoch, for plain `for`. With `persistent_workers`, the one iterator begins anew, as torch's does."""
        runtime = self._open_runtime()
        if self.num_workers == 0:
            if self.is_async:
                return runtime.privately(self)
            return InlineBatches(begin_sampling(self)[0], maker(self), self)
        self.check_worker_number_rationality()
        run, kept = runtime.processes(self), cast("Any", self._iterator)
        if self.persistent_workers and isinstance(kept, Batches):
            kept.restart(run)
            return kept
        batches = Batches(run, runtime, len_of=self._index_sampler)  # keeps what runs alive, and not the loader
        if self.persistent_workers:
            self._iterator = batches  # type: ignore[assignment]
        return batches

    def __aiter__(self) -> AsyncBatches | ThreadedBatches:
        """A new epoch, for `async for`, on the running loop."""
        runtime = self._open_runtime()
        if self.num_workers == 0:
            if self.is_async:
                return AsyncBatches(runtime.here(self), runtime)
            return ThreadedBatches(begin_sampling(self)[0], maker(self), runtime.thread(), self)
        self.check_worker_number_rationality()
        return AsyncBatches(runtime.processes(self), runtime)

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the loader has been closed."""
        return self._closed

    async def start(self) -> Self:
        """Start the template of the workers ahead of the first epoch: importing torch takes it a second."""
        runtime = self._open_runtime()
        if self.num_workers > 0:
            await in_thread(runtime.pool(self).open)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        runtime = self._open_runtime()
        if self.num_workers > 0:
            runtime.pool(self).open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def aclose(self) -> None:
        """End the epochs that are under way and every process, and wait for them. Idempotent.

        A worker that does not come to an end by itself is killed after 0.3 s.
        """
        runtime = self._close()
        if runtime is not None:
            await runtime.aclose()

    def close(self) -> None:
        """As `aclose`, for programs without a loop; blocks for as long."""
        runtime = self._close()
        if runtime is not None:
            runtime.close()

    def _close(self) -> Runtime | None:
        self._stats = self.stats()
        self._closed = True
        runtime, self._runtime = self._runtime, None
        self._iterator = None
        return runtime

    def _open_runtime(self) -> Runtime:
        if self._closed:
            raise LoaderClosed("the loader has been closed; make a new one")
        if self._runtime is None:
            self._runtime = Runtime()
        return self._runtime

    def stats(self) -> LoaderStats:
        """What the latest epoch has done so far, and what the loader holds now. Cheap; callable at any time."""
        return self._stats if self._runtime is None else self._runtime.stats()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_runtime": None, "_iterator": None}

    def __repr__(self) -> str:
        epoch = self.stats().epoch
        state = "closed" if self._closed else f"epoch {epoch}" if epoch else "not started"
        return (
            f"<aloader.DataLoader of {type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, {state}>"
        )
