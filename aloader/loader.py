"""`DataLoader`: arguments, checks, wiring, lifecycle. What happens per batch is elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeVar, cast

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, Sampler

from aloader import arguments, options
from aloader.controls import Controls
from aloader.device.accelerators import Accelerator
from aloader.errors import LoaderClosed, SampleError
from aloader.options import parse_bytes
from aloader.pool.asynchronous import AsyncBatches
from aloader.pool.blocking import Batches
from aloader.pool.limits import cpus_allowed, default_memory_limit, too_many_workers
from aloader.pool.pool import WorkerPool
from aloader.pool.threads import in_thread, running_loop
from aloader.ranks import Ranks
from aloader.runtime import Runtime
from aloader.sampling.passes import Passes
from aloader.sampling.source import tickets_of
from aloader.state.journal import Journal
from aloader.state.resumable import Resumable
from aloader.stats import LoaderStats
from aloader.worker import debug, stray
from aloader.worker.here import InlineBatches, ThreadedBatches
from aloader.worker.kinds import is_async, is_iterable

T_co = TypeVar("T_co", covariant=True)

_TORCH_HAS_IN_ORDER: Final = "in_order" in inspect.signature(TorchDataLoader.__init__).parameters


class _ReadFromTheFront(IterableDataset[Any]):
    """What torch's checks see of a dataset that only `async for` can read: an iterable one."""

    def __iter__(self) -> Any:
        raise NotImplementedError


class DataLoader(Controls, Resumable, TorchDataLoader[T_co]):
    """Batches of a dataset, with `async for` or `for`. Every argument of torch's loader, with its meaning; and:

    concurrency: samples in flight of the whole loader, shared out to its workers, for a dataset with
        `async def __getitem__` (default 256, with 4 to 64 for each worker). For an ordinary dataset with workers: fetch
        so many at once in threads (default: one after the other, inline), where random numbers that are to come out
        the same have to be drawn from `aloader.sample_rng()`: the global generators are all threads' together.
    memory_limit: bytes, or text such as "8GiB", that batches may take that are fetched and not consumed yet, over all
        workers (default: a quarter of the memory). What the program keeps is not counted.
    worker_setup: a function without arguments that runs in the workers before the dataset is loaded: once for all of
        them in the process that they are forked from, or in each with a `multiprocessing_context`. For what a worker
        does not take over by itself. Not run without workers.

    seed: a number that everything random follows from. Each sample's random numbers are a function of seed, epoch and
        index then: the same for any number of workers, any timing, and after a restart. See `aloader.sample_rng`.

    pool: a `WorkerPool` to take the workers from, which other loaders use too. Without `num_workers`, this loader has
        a share of it: its processes divided by the number of loaders on it when an epoch begins. Give `num_workers`
        where random augmentation has to come out the same: torch ties it to the number of workers.

    distributed: True where several processes train together, each with its share of the samples: rank and world size
        are torch.distributed's where that is set up, else torchrun's, from the environment. Or `(rank, world_size)`.
        An iterable dataset shares itself out: for it, this is only what `aloader.shard_info()` answers. Excludes
        `sampler` and `batch_sampler`.

    on_error: what becomes of a sample that fails. "raise" (default): its error is raised in the batch's place. "skip":
        another sample of the same batch fills its place, so that neither sizes nor numbers of batches change. "drop":
        its batch is smaller, or left out where nothing is left of it. Or a function that is given the `SampleError` and
        returns a sample to take instead. With "skip" and "drop", None in a sample's place counts as one that failed.
    max_errors: how many samples of an epoch may fail before their error is raised all the same: a number, or a fraction
        (a float below 1) of the epoch's samples. Default: any number.
    sample_timeout: seconds that one sample may take (default: any time). One that takes longer has failed with a
        `SampleTimeout`, with the stack it is stuck in: of an async dataset at once; of an ordinary one, its worker is
        replaced and the sample tried once more before. Needs workers or an async dataset.
    max_worker_restarts: how often in an epoch a worker that died is replaced, with nothing lost (default 3). Beyond, or
        with 0, `WorkerLost` is raised in the place of the batches that it had.
    max_batches_per_worker: a worker's process is replaced by a new one after so many batches (default: never), for
        libraries that leak memory.

    device: where batches are handed out: "cuda", "cuda:1", "cpu", a `torch.device`. Copied ahead on a stream of their
        own, from page-locked memory that the workers write; the consumer's current stream waits for the copy, the CPU
        does not. Needs no `pin_memory`. Tensors are moved, and whatever has a `.to()`; the rest is left as it is.
    device_prefetch: how many batches are copied (or pinned) ahead (default 2).
    device_transform: a function that is given each batch on the device, on that stream, and returns what is handed out
        (normalising, augmentation). Runs in the consumer's thread without grad mode; what it draws from torch's default
        generators, `random` and numpy's global one is a function of seed, epoch, rank and the batch's place.
    pin_memory: True, as torch: one copy into torch's page-locked memory. "arena": no copy, page-locked views of the
        workers' memory, which have to be kept until every copy that was begun from them is done.

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
        pin_memory: bool | str = False,
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
        pool: WorkerPool | None = None,
        worker_setup: Callable[[], object] | None = None,
        seed: int | None = None,
        distributed: bool | tuple[int, int] = False,
        on_error: str | Callable[[SampleError], Any] = "raise",
        max_errors: int | float | None = None,
        sample_timeout: float | None = None,
        max_worker_restarts: int = options.MAX_WORKER_RESTARTS,
        max_batches_per_worker: int | None = None,
        device: str | int | torch.device | Accelerator | None = None,
        device_prefetch: int = options.DEVICE_PREFETCH,
        device_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        arguments.check_num_workers(num_workers)
        arguments.check_pool(pool, multiprocessing_context)
        arguments.check_worker_setup(worker_setup)
        arguments.check_seed(seed)
        arguments.check_distributed(distributed, sampler, batch_sampler)
        arguments.check_faults(on_error, max_errors, sample_timeout, max_worker_restarts, max_batches_per_worker)
        arguments.check_device(device, device_prefetch, device_transform, pin_memory)
        prefetch_factor = arguments.asked(prefetch_factor)
        elastic = pool is not None and (num_workers == 0 or isinstance(num_workers, arguments.Unasked))
        if pool is not None and elastic:
            num_workers = arguments.Unasked(pool.num_workers)
        asynchronous = is_async(dataset)
        light = num_workers == 0 and asynchronous  # an async dataset on the user's own loop takes more arguments
        iterable = is_iterable(dataset)
        if sampler is None and batch_sampler is None and not iterable:
            sampler = arguments.own_sampler(dataset, shuffle, seed, distributed)
            shuffle = None if sampler is not None else shuffle
        super().__init__(
            _ReadFromTheFront() if iterable and not isinstance(dataset, IterableDataset) else dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,  # type: ignore[arg-type]
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
        self.__dict__["dataset"] = dataset  # one that is iterable, and not torch's, was known to torch under its name
        arguments.check_dataset(self)
        arguments.check_more(self, light, prefetch_factor, concurrency)
        arguments.check_lives(self, light, sample_timeout, max_batches_per_worker)
        if light:
            self.prefetch_factor = prefetch_factor
        elif prefetch_factor is None and self.prefetch_factor is not None:
            self.prefetch_factor = arguments.Unasked(self.prefetch_factor)
        if asynchronous:
            self.collate_fn = stray.guarded(self.collate_fn, dataset)
        self.in_order = in_order
        self.worker_setup = worker_setup
        self.concurrency = concurrency
        self.memory_limit = memory_limit
        self.pool = pool
        self.seed = seed
        self.distributed = distributed
        self.on_error = on_error
        self.max_errors = max_errors
        self.sample_timeout = sample_timeout
        self.max_worker_restarts = max_worker_restarts
        self.max_batches_per_worker = max_batches_per_worker
        self.device = device
        self.device_prefetch = device_prefetch
        self.device_transform = device_transform
        self._elastic = elastic
        if pool is not None:
            pool.loaders.add(self)
        self.memory_bytes = default_memory_limit() if memory_limit is None else parse_bytes(memory_limit)
        self.explicit_prefetch = prefetch_factor
        self.is_async = asynchronous
        self.is_iterable = iterable
        self._runtime: Runtime | None = None
        self._stats = LoaderStats()
        self._closed = False
        self._passes = Passes()
        self._journal = Journal()

    # -- iterating -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """A new epoch, for plain `for`. With `persistent_workers`, the one iterator begins anew, as torch's does."""
        runtime = self._open_runtime()
        if debug.is_on():
            return debug.Batches(runtime.debugged(self))
        if self.num_workers == 0:
            if self.is_async:
                return runtime.privately(self)
            return InlineBatches(*runtime.inline(self), self)
        run, kept = runtime.processes(self), cast("Any", self._iterator)
        if self.persistent_workers and isinstance(kept, Batches):
            kept.restart(run)
            return kept
        batches = Batches(run, runtime, len_of=self._index_sampler)  # keeps what runs alive, and not the loader
        if self.persistent_workers:
            self._iterator = batches  # type: ignore[assignment]
        return batches

    def __aiter__(self) -> AsyncBatches | ThreadedBatches | debug.AsyncBatches:
        """A new epoch, for `async for`, on the running loop."""
        running_loop()
        runtime = self._open_runtime()
        if debug.is_on():
            return debug.AsyncBatches(runtime.debugged(self, asyncio.get_running_loop()))
        if self.num_workers == 0:
            if self.is_async:
                return AsyncBatches(runtime.here(self), runtime)
            return ThreadedBatches(*runtime.inline(self), runtime.thread(), self)
        return AsyncBatches(runtime.processes(self), runtime)

    def check_worker_number_rationality(self) -> None:
        """Torch's warning where there are more workers than CPUs, and one where a container's quota allows fewer."""
        super().check_worker_number_rationality()
        more = too_many_workers(self.num_workers, cpus_allowed()) if self.num_workers else None
        if more is not None:
            warnings.warn(more, stacklevel=3)

    def __len__(self) -> int:
        """Batches of an epoch, in this rank; of an iterable dataset, what its length promises."""
        return super().__len__() if self.is_iterable else tickets_of(self._index_sampler)

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the loader has been closed."""
        return self._closed

    async def start(self) -> Self:
        """Start the template of the workers ahead of the first epoch: importing torch takes it a second."""
        runtime = self._open_runtime()
        if self.num_workers > 0 and not debug.is_on():
            await in_thread(runtime.pool(self).open)
        return self

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException as error:  # cancelled, say: nobody else would end what has been started
            await self.__aexit__(type(error))
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        runtime = self._close()
        if runtime is not None:
            await runtime.aclose(interrupted=kind is not None and not issubclass(kind, Exception))

    def __enter__(self) -> Self:
        runtime = self._open_runtime()
        try:
            if self.num_workers > 0 and not debug.is_on():
                runtime.pool(self).open()
        except BaseException as error:  # Ctrl-C, say
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        runtime = self._close()
        if runtime is not None:
            runtime.close(interrupted=kind is not None and not issubclass(kind, Exception))

    async def aclose(self) -> None:
        """End the epochs that are under way and every process, and wait for them. Idempotent.

        A worker that does not come to an end by itself is killed after 0.3 s, but not under its debugger.
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

    @property
    def ranks(self) -> Ranks:
        """This process's place among those that load together: rank and world size."""
        return arguments.ranks_of(self.distributed)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_runtime": None, "_iterator": None, "_journal": Journal()}

    def __repr__(self) -> str:
        epoch = self.stats().epoch
        state = "closed" if self._closed else f"epoch {epoch}" if epoch else "not started"
        return (
            f"<aloader.DataLoader of {type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, {state}>"
        )
