"""Runs one scenario in this process, and says what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from aloader import DataLoader, SampleWarning, WorkerLost, WorkerPool, WorkerWarning
from aloader.testing import SimulatedAccelerator

from .consumer import Thrown, Watch, awaiting, blocking, cut_off, wait_after
from .data import Corrupt, Field, arguments, dataset, listed, rows
from .injector import Injector
from .leftovers import Inventory, descendants, end_all
from .oracle import Expected, Kept, expected_of, losses
from .scenario import PLENTY, SEATS, Scenario

#: Seconds that a scenario may take: a few are usual, on a machine that does nothing else. Beyond, it hangs.
DEADLINE = 40.0


@dataclass(slots=True)
class Outcome:
    """What came of one scenario. Numbers of several add up, the slowest apart."""

    seed: int
    complaints: list[str] = field(default_factory=list)
    seconds: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)

    @property
    def survived(self) -> bool:
        return not self.complaints

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Ground:
    """What scenarios of one process share: a pool (whose template takes a second to start), and a temporary folder."""

    def __init__(self, excluded: Iterable[int] = (), temp: Path | None = None) -> None:
        self.excluded = tuple(excluded)
        self.pool = WorkerPool(SEATS)
        self.temp = temp or Path(tempfile.mkdtemp(prefix="chaos"))
        tempfile.tempdir = str(self.temp)
        self._warm = False
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the first one leaves a pipe that all share
            runner.run(asyncio.sleep(0))

    def warm(self) -> WorkerPool:
        """The pool, with its template and a stage: what is there before a scenario and after it.

        What the scenario before has killed, and nobody has missed yet, is replaced here.
        """
        for _ in range(10):
            if self._is_whole():
                return self.pool
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with contextlib.suppress(WorkerLost):
                    list(DataLoader(range(2), num_workers=1, pool=self.pool))
        raise RuntimeError("the pool's template does not come up")

    def _is_whole(self) -> bool:
        """Whether there are the template and a stage, and no worker."""
        wanted, deadline = [1, 2], time.monotonic() + 1.0
        while self._warm and time.monotonic() < deadline:
            self.settle()
            depths = sorted(one.depth for one in descendants(os.getpid(), self.excluded))
            if depths == wanted or not depths:
                return depths == wanted
            time.sleep(0.002)  # sleep: nobody says when a worker has gone
        self._warm = True
        return False

    def settle(self) -> None:
        """Let the pool hear of what has gone."""
        if self._warm:
            self.pool.read_reports()

    def close(self) -> None:
        tempfile.tempdir = None
        self.pool.close()
        self.temp.rmdir()


def run(scenario: Scenario, ground: Ground, progress: Callable[[int], object] = lambda taken: None) -> Outcome:
    """Run it. An exception that nobody expected is a complaint, too; a hang ends the process, with every stack."""
    outcome, began = Outcome(scenario.seed), time.perf_counter()
    inventory = Inventory(ground.temp, ground.excluded)
    with _quiet(outcome.complaints):
        injector = Injector(scenario.strikes, scenario.workers, ground.excluded)
        pool = ground.warm() if not scenario.parent else None
        watch = Watch(scenario, [], injector, progress)
        with _deadline(scenario, watch):
            before = inventory.take()
            watch.kept = Kept(4 if scenario.habit == "keeps" else 0)
            try:
                watch.expected = expectations(scenario, pool)
                _consume(scenario, pool if scenario.seats else None, watch)
            except Exception as error:
                outcome.complaints.append(f"unexpected {type(error).__name__}: {error}")
            watch.look_again()
            outcome.complaints += watch.complaints
            _sum_up(outcome, scenario, watch)
            outcome.complaints += inventory.left(before, ground.settle)
    outcome.seconds = time.perf_counter() - began
    return outcome


def make(scenario: Scenario, pool: WorkerPool | None, card: SimulatedAccelerator | None = None) -> Any:
    """A scenario's loader."""
    more: dict[str, Any] = {"pool": pool} if pool is not None and scenario.workers else {}
    more |= {"device": card} if card is not None else {}
    return DataLoader(dataset(scenario), **arguments(scenario), **more)


def expectations(scenario: Scenario, pool: WorkerPool | None) -> list[Expected]:
    """What each epoch should give. What is shuffled or drawn is read from a run that nobody disturbs, on this pool."""
    usual = listed(scenario) if scenario.order == "listed" else list(range(scenario.samples))
    if scenario.order != "shuffled" and not any(draws_known(scenario, epoch) for epoch in range(scenario.epochs)):
        return [expected_of(scenario, usual) for _ in range(scenario.epochs)]
    return [
        expected_of(scenario, order, drawn if draws_known(scenario, epoch) else None)
        for epoch, (order, drawn) in enumerate(_undisturbed(scenario, pool))
    ]


def draws_known(scenario: Scenario, epoch: int) -> bool:
    """Whether what samples draw at random does not depend on timing."""
    if scenario.kind == "together" and (scenario.poison or scenario.corrupt or len(scenario.strikes) > 1):
        return False  # what a batch is drawn for is fetched one by one if workers have died at it, or samples are bad
    if scenario.loader_seed is not None:
        return True
    if scenario.poison or scenario.on_error != "raise":
        return False  # what was tried again, or in another's place, has drawn more
    if scenario.kind in ("async", "store"):
        return True
    ordinary = scenario.kind in ("plain", "together", "stream") and scenario.workers > 0
    return ordinary and scenario.in_order and (epoch == 0 or not scenario.persistent)


def _undisturbed(scenario: Scenario, pool: WorkerPool | None) -> Iterator[tuple[list[int], dict[int, float]]]:
    """Each epoch's order, and what each sample drew."""
    calm = scenario.undisturbed()
    with make(calm, pool) as loader:
        for _ in range(calm.epochs):
            places: dict[int, list[int]] = {}  # those of failed batches, too
            drawn: dict[int, float] = {}
            batches = iter(loader)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                except Corrupt:
                    pass
                else:
                    drawn |= {row[Field.INDEX]: row[Field.DRAWN] for row in rows(batch)}
                seq, indices, *_ = batches.taken
                places[seq] = indices or []
            order = [index for seq in sorted(places) for index in places[seq]]
            yield order, drawn


def _consume(scenario: Scenario, pool: WorkerPool | None, watch: Watch) -> None:
    watch.card = SimulatedAccelerator(h2d=1e9, poll_cost=5e-4) if scenario.on_device else None
    loader = make(scenario, pool, watch.card)
    with watch.injector, contextlib.suppress(Thrown):
        if not scenario.awaits:
            blocking(loader, watch)
        else:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop if scenario.uvloop else None) as runner:
                runner.get_loop().set_exception_handler(lambda _, said: watch.complaints.append(f"on the loop: {said}"))
                seconds = scenario.cut_off
                consuming = awaiting(loader, watch)
                runner.run(consuming if seconds is None else cut_off(consuming, seconds, watch))
    watch.iterator = None


def _sum_up(outcome: Outcome, scenario: Scenario, watch: Watch) -> None:
    tally, struck = watch.tally, watch.injector.struck
    kills = sum(struck.killed_in.values())
    restarts = scenario.arguments.get("max_worker_restarts", PLENTY)
    complaint = losses(tally.lost, kills, restarts, early=watch.ended_early)
    if complaint:
        outcome.complaints.append(complaint)
    outcome.numbers = {
        "batches": tally.batches,
        "samples": tally.samples,
        "bytes": tally.nbytes + watch.kept.nbytes,
        "workers killed": struck.kills,
        "templates killed": struck.templates,
        "workers stopped": struck.stops,
        "strikes that missed": struck.missed,
        "store faults": sum(tally.store_faults.values()),
        "cancellations": watch.habits["cancels"],
        "cut off for good": watch.habits["cut off"],
        "epochs broken off": watch.habits["breaks"] + watch.habits["throws"],
        "batches lost, as allowed": tally.lost,
    }
    outcome.slowest = {
        "after a worker's death": wait_after(struck.moments, watch.waits),
        "after a template's death": wait_after(struck.template_moments, watch.waits),
    }


@contextlib.contextmanager
def _quiet(complaints: list[str]) -> Iterator[None]:
    """Warnings are complaints, `WorkerWarning` apart, and so is what threads and finalizers raise."""
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = partial(_unraisable, complaints)
    threading.excepthook = lambda raised: complaints.append(f"in a thread: {raised.exc_value!r}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs: meant
            yield
            gc.collect()
        for warning in caught:
            if not issubclass(warning.category, WorkerWarning | SampleWarning):
                complaints.append(f"{warning.category.__name__}: {warning.message}")
    finally:
        sys.unraisablehook, threading.excepthook = hooks


def _unraisable(complaints: list[str], raised: Any) -> None:
    """Ctrl-C may come while Python runs a finalizer, where it cannot be raised: nobody's fault."""
    if not isinstance(raised.exc_value, KeyboardInterrupt):
        complaints.append(f"unraisable: {raised.exc_value!r} in {raised.object!r}")


@contextlib.contextmanager
def _deadline(scenario: Scenario, watch: Watch) -> Iterator[None]:
    """A scenario that hangs ends the process, after everybody has said where they stand."""
    timer = threading.Timer(DEADLINE, _hang, (scenario, watch))
    timer.name = "chaos deadline"
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _hang(scenario: Scenario, watch: Watch) -> None:
    print(f"\nseed {scenario.seed} hangs: {scenario}", file=sys.stderr)
    faulthandler.dump_traceback(all_threads=True)
    with contextlib.suppress(Exception):
        epoch = watch.iterator.run.epoch
        print(f"{epoch.late()}\n{epoch.awaited}\n{epoch.statistics}\n{watch.injector.struck}", file=sys.stderr)
    sys.stderr.flush()
    end_all(os.getpid())
    os._exit(3)
