"""What a loader has running: its pool, the workers that are kept, its epochs. Made at first use, dropped with it.

The loader is the arguments; here is what is made of them. Nothing refers to a `Runtime` but its loader, so that
dropping the loader ends everything at once, by reference count.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import operator
import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from aloader import options
from aloader.channel import context
from aloader.channel.job import Carried, Job
from aloader.channel.roles import Who
from aloader.channel.tolerance import Tolerance
from aloader.device.accelerators import Accelerator
from aloader.device.residence import Residence
from aloader.device.stage import Way
from aloader.errors import IN_A_FORK, LoaderClosed
from aloader.pool.asynchronous import AsyncBatches, finish
from aloader.pool.crew import Crew
from aloader.pool.epoch import Epoch
from aloader.pool.keeping import Excess, Keeping
from aloader.pool.notices import Notices
from aloader.pool.pool import Installed, WorkerPool
from aloader.pool.private import PrivateLoop, PrivateLoopBatches
from aloader.pool.run import Run, snapshot
from aloader.pool.threads import in_thread
from aloader.settings import (
    Settings,
    accelerator_of,
    bounds_of,
    finisher,
    function_on_error,
    in_threads,
    on_error_of,
    pages_of,
    tolerance_of,
    way_of,
    who_of,
)
from aloader.state.passing import Pass
from aloader.stats import LoaderStats
from aloader.worker import debug, stray
from aloader.worker.emulation import Team
from aloader.worker.faulty import Policy
from aloader.worker.local import LocalCrew
from aloader.worker.maker import Maker


class Runtime:
    """See the top of this file."""

    def __init__(self) -> None:
        self._crew: Crew | None = None  # the workers that are kept between epochs
        self._local: LocalCrew | None = None  # the same without processes
        self._end_local: Callable[[], object] = tuple  # lets go of it
        self._last: Run | None = None
        self._numbers = itertools.count(1)
        self._notices = Notices()
        self._excess: Excess | None = None  # of what the user keeps
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._private: weakref.WeakSet[PrivateLoopBatches] = weakref.WeakSet()
        self._loops: weakref.WeakSet[PrivateLoop] = weakref.WeakSet()  # also of iterators that have been dropped
        self._pool: WorkerPool | None = None
        self._shared = False  # the pool is the user's
        self._crews: weakref.WeakSet[Crew] = weakref.WeakSet()  # on a shared pool
        self._installed = Installed()
        self._thread: ThreadPoolExecutor | None = None
        self._thread_of = 0  # the process that it runs in
        self._tolerance: Tolerance | None = None  # of the latest epoch, where that is no run
        self._team: Team | None = None  # in place of workers, with ALOADER_DEBUG
        self._residence: tuple[Any, Residence | None] = None, None  # on which device, and what was asked for

    # -- epochs ----------------------------------------------------------------------------------------------------

    def processes(self, loader: Settings) -> Run:
        """The next epoch on worker processes: new ones, or those that are kept."""
        pool, last = self.pool(loader), self._last
        job = carried = None
        if self._crew is not None and self._crew.ended:
            self._crew = None  # somebody has shut it down by torch's private name
        if self.kept(loader) is not None and not loader._journal.is_loaded and last is not None:
            crew = self._crew
            assert crew is not None
            last.end()
            one = loader._journal.begin(loader, crew.who)
        else:
            if loader.persistent_workers and self._crew is not None and last is not None:
                last.end()  # it has not got as far as to start what would be kept, or the next pass is not the next one
                self._crew.end(0.0)
            loader.check_worker_number_rationality()  # where workers are made, so not for those that are kept
            one = loader._journal.begin(loader, None)
            collate_fn = stray.unguarded(loader.collate_fn)
            job = Job.of(
                loader.dataset, collate_fn, loader.worker_init_fn, loader.worker_setup, function_on_error(loader)
            )
            surroundings = context.capture()
            carried = pool.pickle(job, surroundings)
            crew = pool.crew(who_of(loader, one.seed, surroundings))
            crew.pages = pages_of(loader, self._accelerator_for(loader), self._notices.warn)
            self._crews.add(crew)
            if loader.persistent_workers:
                self._crew = crew
        slots = crew.who.num_workers  # of workers that are kept: a number set since then is for a new loader
        return self._run(loader, pool, crew, one, slots, (job, carried), loader.persistent_workers)

    def kept(self, loader: Settings) -> Who | None:
        """The workers that would be kept for the next epoch, if any are."""
        crew, last = self._crew, self._last
        if not loader.persistent_workers or crew is None or crew.ended or last is None or last.job is not None:
            return None
        return crew.who

    def here(self, loader: Settings) -> Run:
        """The next epoch of an async dataset on the running loop, on which it is opened once."""
        loop = asyncio.get_running_loop()
        local = self._local
        if local is None or local.loop not in (None, loop):
            if local is not None and local.loop is not None and local.loop.is_closed():
                self._end_local()  # a program may call `asyncio.run` many times
            self._local = local = _local_crew(loader)
            self._end_local = weakref.finalize(self, local.abandon)
        return self._local_run(loader, local)

    def privately(self, loader: Settings) -> PrivateLoopBatches:
        """The next epoch of an async dataset for plain `for`, on a loop in a thread."""
        crew = _local_crew(loader)
        batches = PrivateLoopBatches(crew, lambda: AsyncBatches(self._local_run(loader, crew, late=True), None), loader)
        self._private.add(batches)
        self._loops.add(batches.loop)
        return batches

    def inline(self, loader: Settings) -> tuple[Any, Maker]:
        """The next epoch of an ordinary dataset in this process: what gives its tickets, and what makes batches."""
        one, sampler = loader._journal.begin(loader, None), loader._index_sampler
        passes, dataset, source = loader._passes, loader.dataset, one.source
        source.at_end = lambda: passes.ended(sampler, dataset, source.drawn)
        resume = one.resumes[0] if one.resumes else None
        collate_fn = stray.unguarded(loader.collate_fn)
        number = self.number()
        how = loader._auto_collation, finisher(loader), number
        self._tolerance = tolerance = tolerance_of(loader, number)
        policy, way = Policy(on_error_of(loader), function_on_error(loader)), self._way(loader, one)
        maker = Maker(dataset, collate_fn, *how, one.record, loader.ranks, one.key, policy, tolerance, way)
        if loader.is_iterable:
            maker.read(loader.drop_last, resume)
        else:
            maker.tell(resume)
        return source, maker

    def debugged(self, loader: Settings, loop: asyncio.AbstractEventLoop | None = None) -> debug.Epoch:
        """The next epoch in the caller's own steps (on this loop, if any), drawn and seeded as the other ways are."""
        count, before = operator.index(loader.num_workers), self._team
        if before is None:
            logging.getLogger("aloader").warning(debug.IS_ON)
        kept = before is not None and before.loop is loop and (loader.persistent_workers or not count)
        kept = kept and not loader._journal.is_loaded
        seeded = who_of(loader, before.base_seed, b"") if kept and count and before is not None else None
        one = loader._journal.begin(loader, seeded)
        if before is None or not kept:
            collate_fn = stray.unguarded(loader.collate_fn)
            on_error = function_on_error(loader)
            job = Job.of(loader.dataset, collate_fn, loader.worker_init_fn, loader.worker_setup, on_error)
            forks = getattr(loader.multiprocessing_context, "get_start_method", str)() == "fork"
            self._team = Team.of(job, count, one.seed, loop, ranks=loader.ranks, forks=forks)
        assert self._team is not None
        ahead = bounds_of(loader, count).narrow_window if count else 0
        keep = loader.persistent_workers or not count
        number = self.number()
        kind = loader.is_iterable, loader.drop_last, loader.ranks.rank, one.key, number
        self._tolerance = tolerance_of(loader, number)
        faults = on_error_of(loader), loader.is_async or in_threads(loader), self._tolerance, self._way(loader, one)
        plan = debug.Plan(one.source, ahead, loader._auto_collation, finisher(loader), loader, keep, *kind, *faults)
        return debug.Epoch(self._team, plan, one.record, one.first_slot, one.resumes)

    def _local_run(self, loader: Settings, crew: LocalCrew, *, late: bool = False) -> Run:
        one = loader._journal.begin(loader, None)
        crew.begin_from(one.resumes[0] if one.resumes else None)
        return self._run(loader, None, crew, one, 1, (None, None), True, late)

    def _run(
        self,
        loader: Settings,
        pool: WorkerPool | None,
        crew: Any,
        one: Pass,
        slots: int,
        work: tuple[Job | None, Carried | None],
        kept: bool,
        late: bool = False,
    ) -> Run:
        source, record = one.source, one.record
        bounds = bounds_of(loader, slots, record.first, one.first_slot)
        number, finish = self.number(), finisher(loader)
        tolerance, self._tolerance = tolerance_of(loader, number), None
        way = self._way(loader, one)
        stage = None if way is None else (way, loader.device_prefetch, late)
        epoch = Epoch(crew, number, source, bounds, finish, self._notices.warn, one.key, record, tolerance, stage)
        passes, sampler, dataset = loader._passes, loader._index_sampler, loader.dataset  # not the loader: a cycle
        epoch.at_end = lambda: passes.ended(sampler, dataset, source.drawn if source.exhausted else None)
        run = Run(pool, crew, epoch, source, work[0], work[1], kept, loader.timeout, self._installed)
        if pool is not None:
            self._excess = self._excess or Excess(loader.memory_bytes)
            run.keeping = Keeping(crew, epoch, self._excess, self._notices.warn)
        self._last = run
        self._runs.add(run)
        return run

    def broadcast(self, call: bytes) -> None:
        """Have every worker call a method of its dataset."""
        crews = {id(run.crew): run.crew for run in self._runs if run.pool is not None}
        if self._crew is not None:
            crews[id(self._crew)] = self._crew
        for crew in crews.values():
            crew.broadcast(call)

    def restart_worker(self, slot: int) -> bool:
        """Kill the process of a worker of the latest epoch. False if there is none."""
        run = self._last
        return run is not None and run.pool is not None and not run.ended and run.crew.kill(slot)

    def number(self) -> int:
        """The next epoch's number."""
        return next(self._numbers)

    def _way(self, loader: Settings, one: Pass) -> Way | None:
        return way_of(loader, self._residence_for(loader), one.seed, one.epoch, one.key)

    def _accelerator_for(self, loader: Settings) -> Accelerator | None:
        residence = self._residence_for(loader)
        return None if residence is None else residence.accelerator

    def _residence_for(self, loader: Settings) -> Residence | None:
        """One for all epochs, and one accelerator: it has a stream of its own."""
        asked, found = loader.device, accelerator_of(loader)
        if found is None:
            self._residence = None, None
        elif self._residence[0] != (asked, found.device):
            self._residence = (asked, found.device), Residence(found)
        return self._residence[1]

    # -- what they run on ------------------------------------------------------------------------------------------

    def pool(self, loader: Settings) -> WorkerPool:
        """The loader's own pool, or the one that it shares."""
        if self._pool is None:
            self._shared = loader.pool is not None
            if loader.pool is not None:
                self._pool = loader.pool
                weakref.finalize(self, _leave, self._crews, self._installed)
            else:
                count = operator.index(loader.num_workers)
                self._pool = WorkerPool(count, multiprocessing_context=loader.multiprocessing_context)
                self._pool.seats.count = None  # several epochs may run at once, each with all its workers
                # Pool and crews know each other: no reference count would end them.
                weakref.finalize(self, self._pool.drop)
        if self._pool.closed:
            gone = "the pool of this loader has been closed; make a new one, and a loader on it"
            raise LoaderClosed(IN_A_FORK if self._pool.elsewhere else gone)
        return self._pool

    def thread(self) -> ThreadPoolExecutor:
        """The thread that fetches with `num_workers=0` under `async for`."""
        if self._thread is None or self._thread_of != os.getpid():  # a fork has no threads
            self._thread, self._thread_of = ThreadPoolExecutor(1, "aloader-fetch"), os.getpid()
        return self._thread

    def stats(self) -> LoaderStats:
        """Of the latest epoch."""
        stats, tolerance = snapshot(self._last), self._tolerance
        return stats if tolerance is None else replace(stats, samples_failed=tolerance.failed)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _in_debugger(self) -> bool:
        """Whether the user is in a worker's debugger: then nothing is ended under his hands, unless by Ctrl-C."""
        if self._pool is not None and not self._pool.closed:
            self._pool.read_reports()  # a worker may have died in it
        return any(not run.ended and run.crew.undisturbed == 0 for run in self._runs)

    async def aclose(self, *, interrupted: bool = False) -> None:
        """End everything, on the loop."""
        while not interrupted and self._in_debugger():  # noqa: ASYNC110  (a page of memory)
            await asyncio.sleep(options.DEBUGGER_POLL)
        if self._team is not None:
            await self._team.aclose()
        if self._private or self._loops:
            await in_thread(self._close_private)
        for run in list(self._runs):
            await finish(run)
        if self._local is not None:
            await self._local.aclose()
        self._end_thread()
        if self._pool is not None and not self._shared:
            await in_thread(self._pool.close)
        elif self._pool is not None:
            _leave(self._crews, self._installed)

    def close(self, *, interrupted: bool = False) -> None:
        """End everything, blocking."""
        while not interrupted and self._in_debugger():
            time.sleep(options.DEBUGGER_POLL)
        if self._team is not None:
            self._team.close()
        self._close_private()
        for run in list(self._runs):
            run.end()
        if self._local is not None:
            self._local.abandon()
        self._end_thread()
        if self._pool is not None and not self._shared:
            self._pool.close()
        elif self._pool is not None:
            _leave(self._crews, self._installed)

    def _close_private(self) -> None:
        for private in list(self._private):
            private.close()
        for loop in list(self._loops):
            loop.join(2 * options.CLOSE_GRACE)

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)


def _leave(crews: weakref.WeakSet[Crew], installed: Installed) -> None:
    """End what a loader has on a pool that goes on."""
    installed.end()
    for crew in list(crews):
        crew.end()
        crew.detach()


def _local_crew(loader: Settings) -> LocalCrew:
    collate_fn, seeded = stray.unguarded(loader.collate_fn), loader.seed is not None
    who, on_error = who_of(loader, 0, b""), function_on_error(loader)
    return LocalCrew(who, loader.dataset, collate_fn, seeded=seeded, on_error=on_error)
