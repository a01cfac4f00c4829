"""An epoch on its way: what must be done before batches flow, and after. The steps; the drivers decide when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from aloader import options
from aloader.channel.job import Carried, Job
from aloader.channel.roles import Watcher
from aloader.errors import IN_A_FORK, LoaderTimeout
from aloader.pool.crew import Crew
from aloader.pool.epoch import Epoch
from aloader.pool.inquiry import Late
from aloader.pool.keeping import Keeping
from aloader.pool.pool import Installed, WorkerPool
from aloader.pool.vigil import Caught, Watch
from aloader.stats import LoaderStats


class PreparedSource(Protocol):
    """A source of tickets, and what has to happen before the first one."""

    heavy: bool

    def prepare(self) -> None: ...
    def draw(self) -> Any: ...


@dataclass(slots=True, weakref_slot=True, eq=False)
class Run:
    """`job` is None where the crew's workers run already. `batch_timeout` is in seconds, 0 for none."""

    pool: WorkerPool | None  # None: no processes
    crew: Crew
    epoch: Epoch
    source: PreparedSource
    job: Job | None
    carried: Carried | None
    persistent: bool
    batch_timeout: float
    installed: Installed | None = None
    ended: bool = False
    on_end: Callable[[], object] | None = None  # lets whoever waits notice
    watch: Watch | None = None  # over samples that take too long, if that is asked for
    keeping: Keeping | None = None  # of batches that the user keeps: where they lie in memory of workers

    @property
    def heavy(self) -> bool:
        """Whether `prepare` takes longer than a loop may be held up."""
        stage = self.epoch.stage
        return self.job is not None or self.source.heavy or (stage is not None and not stage.way.opened)

    @property
    def taken(self) -> tuple[int, Any, int | None, int, tuple[Any, ...]]:
        """Of the batch that was given last: seq, indices, worker (None: no process), epoch, and what failed in it."""
        assert self.epoch.taken is not None, "a batch has been given"
        seq, indices, slot = self.epoch.taken
        left_out = () if self.epoch.outcomes is None else self.epoch.outcomes.left_out
        return seq, indices, slot if self.pool is not None else None, self.epoch.number, left_out

    @property
    def closed(self) -> bool:
        """Whether nothing more can come: ended, or its processes belong to the parent of this fork."""
        return self.ended or (self.pool is not None and self.pool.closed)

    @property
    def why_closed(self) -> str:
        """What to say to those who use it all the same."""
        if self.pool is not None and self.pool.elsewhere:
            return IN_A_FORK
        return "this iterator has been closed; iterate the loader again"

    def prepare(self) -> None:
        """Whatever takes time. May run in a thread."""
        job, pool, stage = self.job, self.pool, self.epoch.stage
        if stage is not None:
            stage.way.open()
        if job is not None and pool is not None:
            pool.open()
        self.source.prepare()
        if job is not None and pool is not None and self.installed is not None:
            pool.install(self.crew, job, self.carried, self.installed)
            self.job = self.carried = None

    def begin(self, watcher: Watcher) -> None:
        """Launch what is missing, and listen."""
        if self.ended:
            return
        if self.pool is not None and self.crew.who.sample_timeout:
            self.watch = Watch(self.crew, self.epoch, self.crew.who.sample_timeout)
        if self.pool is not None:
            self.pool.read_reports()  # who has gone while nobody iterated is not missed in this epoch
        self.crew.attach(watcher, self.epoch)
        self.epoch.staff()
        self.crew.flush()

    def end(self, grace: float = options.CLOSE_GRACE) -> None:
        """Nobody wants more. Workers that are not kept are told to stop; waits for nobody. Idempotent."""
        if self.ended:
            return
        self.ended = True
        self.epoch.close()
        if self.persistent:
            self.crew.epoch_over(self.epoch.number)
            self.crew.detach(self.epoch)
        else:
            self.crew.end(grace)
        if self.on_end is not None:
            self.on_end()

    def patience(self, waited: float) -> float | None:
        """Seconds that a consumer who has waited for `waited` goes on waiting; None: without end; 0: it is late.

        The time that workers take to start does not count, within reason; nor what the user spends in their debugger.
        """
        if not self.batch_timeout:
            return None
        waited = min(waited, self.crew.undisturbed)
        if self.crew.ready:
            return max(0.0, self.batch_timeout - waited)
        return max(0.0, min(self.batch_timeout, self.batch_timeout + options.STARTING_GRACE - waited))

    def step(self, now: float) -> None:
        """The consumer comes for a batch."""
        if self.keeping is not None and now >= self.keeping.next:
            self.keeping.look(now)

    def caught(self) -> Caught | None:
        """The workers that are stuck in a sample, if any are. For a consumer that waits."""
        return None if self.watch is None else self.watch.look()

    def attention(self, patience: float | None) -> float | None:
        """For how long such a consumer may wait at once, of `patience`: somebody has to look at the workers."""
        if self.watch is None:
            return patience
        return self.watch.pace if patience is None else min(patience, self.watch.pace)

    def inquire(self) -> Late:
        """No batch has come in time: ask the worker that it is waited for where it is stuck."""
        return Late(self.crew, self.epoch)

    def late(self, inquiry: Late) -> LoaderTimeout:
        """The error for a batch that has not come in time: torch's words first."""
        return inquiry.error(f"DataLoader timed out after {self.batch_timeout} seconds")


def snapshot(run: Run | None) -> LoaderStats:
    """What a loader's latest run has done and holds."""
    if run is None:
        return LoaderStats()
    counts, held = run.epoch.counts, run.epoch.statistics
    stage = run.epoch.stage
    memory = [worker.mappings for worker in run.crew.workers.values() if hasattr(worker, "mappings")]
    return LoaderStats(
        epoch=run.epoch.number,
        batches=counts.delivered,
        errors=counts.failed,
        samples_failed=counts.samples_failed,
        workers=run.crew.who.num_workers if run.pool is not None else 0,
        workers_lost=counts.lost,
        payload_bytes=counts.nbytes,
        fetch_seconds=counts.fetch_seconds,
        collate_seconds=counts.collate_seconds,
        wait_seconds=counts.wait_seconds,
        user_seconds=counts.user_seconds,
        arena_bytes=sum(mappings.nbytes for mappings in memory),
        leased_bytes=sum(mappings.leased_bytes for mappings in memory),
        tickets_in_flight=sum(held.held) + held.queued,
        batches_ready=held.landed + held.unconsumed,
        device_bytes=0 if stage is None else stage.way.copied_bytes,
        locked_bytes=getattr(getattr(run.crew, "pages", None), "locked_bytes", 0),
    )
