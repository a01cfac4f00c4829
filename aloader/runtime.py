"""What a loader has running: its pool, the workers that are kept, its epochs. Made at first use, dropped with it.

The loader is the arguments; here is what is made of them. Nothing refers to a `Runtime` but its loader, so that
dropping the loader ends everything at once, by reference count.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch

from aloader import options
from aloader.channel import context
from aloader.channel.job import Carried, Job
from aloader.device import pinning
from aloader.engine import DispatcherConfig
from aloader.pool.asynchronous import AsyncBatches, finish
from aloader.pool.crew import Crew, Who
from aloader.pool.epoch import Epoch
from aloader.pool.pool import WorkerPool
from aloader.pool.private import PrivateLoop, PrivateLoopBatches
from aloader.pool.run import Run, snapshot
from aloader.pool.threads import in_thread
from aloader.sampling.source import is_pure, source_of
from aloader.stats import LoaderStats
from aloader.worker import stray
from aloader.worker.here import Maker
from aloader.worker.local import LocalCrew


class Settings(Protocol):
    """A loader's arguments, as far as running it depends on them. They may be changed between epochs."""

    dataset: Any
    batch_size: int | None
    num_workers: int
    collate_fn: Callable[[Any], Any]
    pin_memory: bool
    pin_memory_device: str
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    generator: torch.Generator | None
    persistent_workers: bool
    in_order: bool
    concurrency: int | None
    explicit_prefetch: int | None
    memory_limit: int | str | None
    memory_bytes: int
    is_async: bool

    @property
    def multiprocessing_context(self) -> Any: ...
    @property
    def _auto_collation(self) -> bool: ...
    @property
    def _index_sampler(self) -> Any: ...


class Runtime:
    """See the top of this file."""

    def __init__(self) -> None:
        self._crew: Crew | None = None  # the workers that are kept between epochs
        self._local: LocalCrew | None = None  # the same without processes
        self._last: Run | None = None
        self._numbers = itertools.count(1)
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._private: weakref.WeakSet[PrivateLoopBatches] = weakref.WeakSet()
        self._loops: weakref.WeakSet[PrivateLoop] = weakref.WeakSet()  # also of iterators that have been dropped
        self._pool: WorkerPool | None = None
        self._thread: ThreadPoolExecutor | None = None

    # -- epochs ----------------------------------------------------------------------------------------------------

    def processes(self, loader: Settings) -> Run:
        """The next epoch on worker processes: new ones, or those that are kept."""
        pool, last = self.pool(loader), self._last
        job = carried = None
        if loader.persistent_workers and self._crew is not None and last is not None and last.job is None:
            crew = self._crew
            last.end()
        else:
            if loader.persistent_workers and self._crew is not None and last is not None:
                last.end()  # it has not got as far as to start what would be kept
                self._crew.end(0.0)
            _, seed = begin_sampling(loader)
            job = Job.of(loader.dataset, stray.unguarded(loader.collate_fn), loader.worker_init_fn)
            surroundings = context.capture()
            carried = pool.pickle(job, surroundings)
            crew = pool.crew(_who(loader, seed, surroundings))
            if loader.persistent_workers:
                self._crew = crew
        source = source_of(loader._index_sampler, iter(loader._index_sampler))  # torch, too, asks for it again here
        return self._run(loader, pool, crew, source, loader.num_workers, (job, carried), loader.persistent_workers)

    def here(self, loader: Settings) -> Run:
        """The next epoch of an async dataset on the running loop, on which it is opened once."""
        loop = asyncio.get_running_loop()
        local = self._local
        if local is None or local.loop not in (None, loop):
            self._local = local = _local_crew(loader)
            weakref.finalize(self, local.abandon)
        return self._local_run(loader, local)

    def privately(self, loader: Settings) -> PrivateLoopBatches:
        """The next epoch of an async dataset for plain `for`, on a loop in a thread."""
        crew = _local_crew(loader)
        batches = PrivateLoopBatches(crew, lambda: AsyncBatches(self._local_run(loader, crew), None), loader)
        self._private.add(batches)
        self._loops.add(batches.loop)
        return batches

    def _local_run(self, loader: Settings, crew: LocalCrew) -> Run:
        indices, _ = begin_sampling(loader)
        source = source_of(loader._index_sampler, indices)
        return self._run(loader, None, crew, source, 1, (None, None), True)

    def _run(
        self,
        loader: Settings,
        pool: WorkerPool | None,
        crew: Any,
        source: Any,
        slots: int,
        work: tuple[Job | None, Carried | None],
        kept: bool,
    ) -> Run:
        epoch = Epoch(crew, next(self._numbers), source, _bounds(loader, slots), pinning.pinner(loader.pin_memory))
        self._last = run = Run(pool, crew, epoch, source, work[0], work[1], kept, loader.timeout)
        self._runs.add(run)
        return run

    # -- what they run on ------------------------------------------------------------------------------------------

    def pool(self, loader: Settings) -> WorkerPool:
        """The loader's own pool."""
        if self._pool is None:
            count = operator.index(loader.num_workers)
            self._pool = WorkerPool(count, multiprocessing_context=loader.multiprocessing_context)
            weakref.finalize(self, self._pool.drop)  # pool and crews know each other: no reference count would end them
        return self._pool

    def thread(self) -> ThreadPoolExecutor:
        """The thread that fetches with `num_workers=0` under `async for`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "aloader-fetch")
        return self._thread

    def stats(self) -> LoaderStats:
        """Of the latest epoch."""
        return snapshot(self._last)

    # -- ending ----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End everything, on the loop."""
        if self._private or self._loops:
            await in_thread(self._close_private)
        for run in list(self._runs):
            await finish(run)
        if self._local is not None:
            await self._local.aclose()
        self._end_thread()
        if self._pool is not None:
            await in_thread(self._pool.close)

    def close(self) -> None:
        """End everything, blocking."""
        self._close_private()
        for run in list(self._runs):
            run.end()
        if self._local is not None:
            self._local.abandon()
        self._end_thread()
        if self._pool is not None:
            self._pool.close()

    def _close_private(self) -> None:
        for private in list(self._private):
            private.close()
        for loop in list(self._loops):
            loop.join(2 * options.CLOSE_GRACE)

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)


def begin_sampling(loader: Settings) -> tuple[Any, int]:
    """A sampler's iterator and the base seed, drawn in torch's order. Warns as torch does of pinning."""
    if loader.pin_memory:
        pinning.warn(loader.pin_memory_device, stacklevel=5)
    indices = iter(loader._index_sampler)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
    return indices, seed


def maker(loader: Settings) -> Maker:
    """What makes the batches of an ordinary dataset in this process."""
    return Maker(loader.dataset, loader.collate_fn, loader._auto_collation, pinning.pinner(loader.pin_memory))


def _local_crew(loader: Settings) -> LocalCrew:
    return LocalCrew(_who(loader, 0, b""), loader.dataset, stray.unguarded(loader.collate_fn))


def _who(loader: Settings, seed: int, surroundings: bytes) -> Who:
    slots = max(1, loader.num_workers)  # without processes, one slot that is always filled
    return Who(0, slots, seed, _share(loader), _in_threads(loader), loader._auto_collation, surroundings)


def _in_threads(loader: Settings) -> bool:
    return not loader.is_async and loader.concurrency is not None


def _share(loader: Settings) -> int:
    """Samples that one worker may have in flight."""
    if loader.concurrency is not None:
        return max(1, loader.concurrency // max(1, loader.num_workers))
    total = options.CONCURRENCY // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return options.share_of(total, loader.num_workers) if loader.num_workers else max(1, total)


def _bounds(loader: Settings, slots: int) -> DispatcherConfig:
    """The bounds of an epoch: torch's, unless many samples are fetched at once."""
    credit = loader.explicit_prefetch or options.PREFETCH_FACTOR
    if loader.explicit_prefetch is None and (loader.is_async or _in_threads(loader)):
        credit = options.async_credit(_share(loader), loader.batch_size or 1)
    narrow = credit * slots
    wide = 2 * narrow if is_pure(loader._index_sampler) else narrow
    own_bounds = loader.explicit_prefetch is not None or loader.memory_limit is not None or loader.is_async
    lean = None if own_bounds else options.LEAN_BYTES
    restarts = options.MAX_WORKER_RESTARTS + slots  # the loss of the template takes every worker, and is one fault
    return DispatcherConfig(
        slots, credit, wide, narrow, loader.memory_bytes, loader.in_order, lean, max_restarts=restarts
    )
