"""`DataLoader`: arguments, checks, wiring, lifecycle. What happens per batch is elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import operator
import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar, cast

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe, Sampler, SequentialSampler

from aloader import options
from aloader.channel import context
from aloader.channel.job import Job
from aloader.engine import DispatcherConfig
from aloader.errors import LoaderClosed
from aloader.pool.asynchronous import AsyncBatches, finish
from aloader.pool.blocking import Batches
from aloader.pool.crew import Crew, Who
from aloader.pool.epoch import Epoch
from aloader.pool.limits import default_memory_limit, parse_bytes
from aloader.pool.pool import NO_WORKERS, WorkerPool
from aloader.pool.private import PrivateLoopBatches
from aloader.pool.run import Run, snapshot
from aloader.pool.threads import in_thread
from aloader.sampling.source import is_pure, source_of
from aloader.stats import LoaderStats
from aloader.worker.fetch import is_async
from aloader.worker.here import InlineBatches, Maker, ThreadedBatches
from aloader.worker.local import LocalCrew

T_co = TypeVar("T_co", covariant=True)

_TORCH_HAS_IN_ORDER: Final = "in_order" in inspect.signature(TorchDataLoader.__init__).parameters


class DataLoader(TorchDataLoader[T_co]):
    """Batches of a dataset, with `async for` or `for`. Every argument of torch's loader, with its meaning; and:

    concurrency: samples in flight of the whole loader, for a dataset with `async def __getitem__` (default 256, shared
        out to the workers, 4 to 64 each). For an ordinary dataset: fetch so many at once in threads (default: inline).
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
        self._check_num_workers(num_workers)
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
        self._check_dataset(dataset)
        self._check_more(light, prefetch_factor, timeout, concurrency)
        if light:
            self.prefetch_factor = prefetch_factor
        self.in_order = in_order
        self.concurrency = concurrency
        self.memory_limit = memory_limit
        self._limit = default_memory_limit() if memory_limit is None else parse_bytes(memory_limit)
        self._explicit_prefetch = prefetch_factor
        self._async_dataset = asynchronous
        self._runtime: _Runtime | None = None
        self._closed = False
        self._epochs = 0

    # -- checks ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_num_workers(num_workers: Any) -> None:
        try:
            count = operator.index(num_workers)
        except TypeError:
            raise TypeError(
                f"num_workers option should be an integer, but got num_workers={num_workers!r}"
            ) from None
        if count > 0 and not WorkerPool.available():
            raise RuntimeError(NO_WORKERS)

    def _check_dataset(self, dataset: Any) -> None:
        if isinstance(dataset, IterDataPipe | MapDataPipe):
            raise NotImplementedError("DataPipes are not supported: give the loader a Dataset, or use torch's loader")
        iterable = isinstance(dataset, IterableDataset) or (
            hasattr(type(dataset), "__aiter__") and not hasattr(type(dataset), "__getitem__")
        )
        if iterable:
            raise NotImplementedError(
                f"iterable-style datasets are not supported yet, and {type(dataset).__name__} is one: "
                "give it __getitem__ and __len__, or use torch's own loader for it"
            )
        own_order = type(self.sampler) is not SequentialSampler or self.batch_size is None
        if not hasattr(type(dataset), "__len__") and not own_order:
            raise TypeError(
                f"object of type {type(dataset).__name__!r} has no len(): give the dataset __len__, "
                "or the loader a sampler or batch_sampler that says which samples there are"
            )

    def _check_more(self, light: bool, prefetch_factor: int | None, timeout: float, concurrency: Any) -> None:
        if concurrency is not None and not isinstance(concurrency, int):
            raise TypeError(f"concurrency option should be an integer, but got concurrency={concurrency!r}")
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency option should be positive, but got concurrency={concurrency!r}")
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError(
                "prefetch_factor option should be non-negative"
                if prefetch_factor < 0
                else "prefetch_factor option should be positive: with 0 no worker would ever get a batch to make"
            )
        if timeout > 0 and self.num_workers == 0 and not light:
            raise ValueError("timeout option needs num_workers > 0: in this process, nothing can be timed out")

    # -- iterating -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """A new epoch, for plain `for`. With `persistent_workers`, the one iterator begins anew, as torch's does."""
        runtime = self._open_runtime()
        if self.num_workers == 0 and not self._async_dataset:
            return InlineBatches(self._begin_sampling()[0], self._maker(), runtime)
        if self.num_workers == 0:
            crew = self._local_crew()
            return PrivateLoopBatches(crew, lambda: AsyncBatches(self._local_run(crew), self), self)
        self.check_worker_number_rationality()
        run = self._new_run(runtime)
        kept: Any = self._iterator
        if self.persistent_workers and isinstance(kept, Batches):
            kept.restart(run)
            return kept
        batches = Batches(run, None if self.persistent_workers else self, len_of=self._index_sampler)
        if self.persistent_workers:
            self._iterator = batches  # type: ignore[assignment]
        return batches

    def __aiter__(self) -> AsyncBatches | ThreadedBatches:
        """A new epoch, for `async for`, on the running loop."""
        runtime = self._open_runtime()
        if self.num_workers == 0 and not self._async_dataset:
            return ThreadedBatches(self._begin_sampling()[0], self._maker(), runtime.thread(), self)
        if self.num_workers == 0:
            loop = asyncio.get_running_loop()
            if runtime.local is None or runtime.local.loop not in (None, loop):
                runtime.local = self._local_crew()
            return AsyncBatches(self._local_run(runtime.local), self)
        self.check_worker_number_rationality()
        return AsyncBatches(self._new_run(runtime), self)

    def _begin_sampling(self) -> tuple[Any, int]:
        """The sampler's iterator and the base seed, drawn in torch's order."""
        if self.pin_memory:
            self._warn_of_pinning()
        indices = iter(self._index_sampler)
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        return indices, seed

    def _new_run(self, runtime: _Runtime) -> Run:
        """The next epoch on worker processes: new ones, or those that are kept."""
        pool = runtime.pool(self)
        job = carried = None
        kept = runtime.crew if self.persistent_workers else None
        if kept is not None:
            crew = kept
            if runtime.last is not None:
                runtime.last.end()
        else:
            _, seed = self._begin_sampling()
            job = Job.of(self.dataset, self.collate_fn, self.worker_init_fn)
            surroundings = context.capture()
            carried = pool.pickle(job, surroundings)
            crew = pool.crew(self._who(seed, surroundings))
            if self.persistent_workers:
                runtime.crew = crew
        source = source_of(self._index_sampler, iter(self._index_sampler))
        epoch = Epoch(crew, self._next_epoch(), source, self._config(self.num_workers), self._finish())
        run = Run(pool, crew, epoch, source, job, carried, self.persistent_workers, self.timeout)
        runtime.last = run
        return run

    def _local_crew(self) -> LocalCrew:
        return LocalCrew(self._who(0, b""), self.dataset, self.collate_fn)

    def _local_run(self, crew: LocalCrew) -> Run:
        """The next epoch of an async dataset on the running loop."""
        indices, _ = self._begin_sampling()
        source = source_of(self._index_sampler, indices)
        epoch = Epoch(crew, self._next_epoch(), source, self._config(1), self._finish())  # type: ignore[arg-type]
        run = Run(None, crew, epoch, source, None, None, True, self.timeout)  # type: ignore[arg-type]
        self._open_runtime().last = run
        return run

    def _who(self, seed: int, surroundings: bytes) -> Who:
        count = max(1, self.num_workers)  # without processes, one slot that is always filled
        threads = not self._async_dataset and self.concurrency is not None
        return Who(0, count, seed, self._share(), threads, self._auto_collation, surroundings)

    def _share(self) -> int:
        """Samples that one worker may have in flight."""
        if self.concurrency is not None and not self._async_dataset:
            return max(1, -(-self.concurrency // max(1, self.num_workers)))
        total = self.concurrency
        if total is None:
            total = options.CONCURRENCY // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
        if self.num_workers == 0:
            return max(1, total)
        return options.share_of(total, self.num_workers)

    def _config(self, slots: int) -> DispatcherConfig:
        """The bounds of an epoch."""
        credit = self._explicit_prefetch or options.PREFETCH_FACTOR
        if self._explicit_prefetch is None and (self._async_dataset or self.concurrency is not None):
            credit = options.async_credit(self._share(), self.batch_size or 1)
        narrow = credit * slots
        wide = 2 * narrow if is_pure(self._index_sampler) else narrow
        return DispatcherConfig(slots, credit, wide, narrow, self._limit, self.in_order)

    def _maker(self) -> Maker:
        return Maker(self.dataset, self.collate_fn, self._auto_collation, self._finish())

    def _next_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    # -- pinning ---------------------------------------------------------------------------------------------------

    def _warn_of_pinning(self) -> None:
        if self.pin_memory_device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device,"
                f"ignore pin_memory_device='{self.pin_memory_device}'.",
                stacklevel=4,
            )
        if not _accelerator():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=4,
            )

    def _finish(self) -> Callable[[Any], Any] | None:
        """What is done with a batch in this process: pinned, by torch's own rules, where there is an accelerator."""
        if not self.pin_memory or _accelerator() in ("", "mps"):
            return None
        from torch.utils.data._utils.pin_memory import pin_memory

        return cast("Callable[[Any], Any]", pin_memory)

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
        self._closed = True
        runtime, self._runtime = self._runtime, None
        self._iterator = None
        if runtime is not None:
            await runtime.aclose()

    def close(self) -> None:
        """As `aclose`, for programs without a loop; blocks for as long."""
        self._closed = True
        runtime, self._runtime = self._runtime, None
        self._iterator = None
        if runtime is not None:
            runtime.close()

    def _open_runtime(self) -> _Runtime:
        if self._closed:
            raise LoaderClosed("the loader has been closed; make a new one")
        if self._runtime is None:
            self._runtime = _Runtime()
        return self._runtime

    def stats(self) -> LoaderStats:
        """What the latest epoch has done so far, and what the loader holds now. Cheap; callable at any time."""
        run = None if self._runtime is None else self._runtime.last
        return snapshot(run, self._epochs)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_runtime": None, "_iterator": None}

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"epoch {self._epochs}" if self._epochs else "not started"
        return (
            f"<aloader.DataLoader of {type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, {state}>"
        )


class _Runtime:
    """What a loader has running. Dropped with the loader, and everything ends with it."""

    def __init__(self) -> None:
        self.crew: Crew | None = None  # the workers that are kept between epochs
        self.local: LocalCrew | None = None  # the same without processes
        self.last: Run | None = None
        self._pool: WorkerPool | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.closed = False

    def pool(self, loader: DataLoader[Any]) -> WorkerPool:
        """The loader's own pool."""
        if self._pool is None:
            self._pool = WorkerPool(
                operator.index(loader.num_workers), multiprocessing_context=loader.multiprocessing_context
            )
        return self._pool

    def thread(self) -> ThreadPoolExecutor:
        """The thread that fetches with `num_workers=0` under `async for`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "aloader-fetch")
        return self._thread

    async def aclose(self) -> None:
        """End everything, on the loop."""
        self.closed = True
        if self.last is not None:
            await finish(self.last)
        if self.local is not None:
            await self.local.aclose()
        self._end_thread()
        if self._pool is not None:
            await in_thread(self._pool.close)

    def close(self) -> None:
        """End everything, blocking."""
        self.closed = True
        if self.last is not None:
            self.last.end()
        if self.local is not None:
            self.local.end()
        self._end_thread()
        if self._pool is not None:
            self._pool.close()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)


def _accelerator() -> str:
    """The kind of the current accelerator, "" where there is none."""
    module = getattr(torch, "accelerator", None)
    if module is not None:
        return str(module.current_accelerator().type) if module.is_available() else ""
    return "cuda" if torch.cuda.is_available() else ""
