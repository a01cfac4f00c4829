"""Consumers: they iterate a scenario's loader, with `for` or `async for`, in its habit, and tell a watch what they
see."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from aloader.testing import SimulatedAccelerator

from .data import rows
from .injector import Injector
from .oracle import EpochOracle, Expected, Kept, Tally
from .scenario import Scenario

PATIENCE = 5.0  #: seconds for threads that unlock memory


class Thrown(Exception):
    """What a consumer throws in the midst of an epoch."""


@dataclass(slots=True)
class Watch:
    """Looks at what a consumer sees, and tells the oracle and the injector."""

    scenario: Scenario
    expected: list[Expected]
    injector: Injector
    progress: Callable[[int], object] = lambda taken: None
    tally: Tally = field(default_factory=Tally)
    habits: Counter[str] = field(default_factory=Counter)  # how often it has broken off, thrown, cancelled
    complaints: list[str] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # from when to when it waited for a batch
    task: asyncio.Task[None] | None = None  # that was cut off
    iterator: Any = None  # the latest: whoever finds the consumer stuck asks it why
    ended_early: bool = False
    kept: Kept = field(default_factory=lambda: Kept(0))
    card: SimulatedAccelerator | None = None  # what batches are handed out on
    _epoch: int = -1
    _taken: int = 0
    _oracle: EpochOracle | None = None

    def begins(self, epoch: int) -> None:
        """An epoch is about to begin."""
        self._end()
        self._epoch, self._taken = epoch, 0
        self._oracle = EpochOracle(self.expected[epoch], self.tally)
        self.injector.begins(epoch)
        self.progress(0)

    def got(self, batch: Any, since: float) -> bool:
        """A batch has come. Whether the consumer is to go on with this epoch."""
        self.waits.append((since, time.perf_counter()))
        assert self._oracle is not None
        batch = batch if self.card is None else self.card.read(batch)
        samples = rows(batch)
        self._oracle.got(samples)
        self.kept.keep(batch, samples)
        return self._went_on()

    def failed(self, error: Exception) -> bool:
        """An error has come in a batch's place."""
        assert self._oracle is not None
        self._oracle.failed(error)
        return self._went_on()

    def _went_on(self) -> bool:
        self._taken += 1
        self.injector.took(self._epoch, self._taken)
        self.progress(self._taken)
        assert self._oracle is not None
        if self._taken > 2 * len(self._oracle.expected.batches) + 10:
            self._oracle.complaints.append("the epoch does not end")
            return False
        habit = self.scenario.habit
        if habit in ("breaks", "throws") and self._taken == self.scenario.at and self._epoch == 0:
            self.habits[habit] += 1
            if habit == "throws":
                raise Thrown
            return False
        return True

    def ended(self) -> None:
        """The epoch has come to its end."""
        assert self._oracle is not None
        self._oracle.ended()
        self.ended_early |= self._oracle.ended_early
        self.injector.idle(self._epoch)

    def look_again(self) -> None:
        """At what was kept; and close the books. Nothing is kept any more."""
        self._end()
        self.complaints += self.kept.changed()
        self.kept.drop()
        if self.card is not None:
            gc.collect()  # asyncio leaves what a consumer throws in a cycle, and with it the batch that it had
            self.complaints += self.card.violations + self._locked(self.card)

    def _locked(self, card: SimulatedAccelerator) -> list[str]:
        """What is page-locked still; threads unlock what goes."""
        patience = time.monotonic() + PATIENCE
        while card.locked and time.monotonic() < patience:
            time.sleep(0.001)  # sleep: nobody says when the last of it has been unlocked
        return [f"left behind: {nbytes} page-locked bytes" for nbytes in card.locked.values()]

    def _end(self) -> None:
        if self._oracle is not None:
            self.complaints += [f"epoch {self._epoch}: {text}" for text in self._oracle.complaints]
            self._oracle = None


def blocking(loader: Any, watch: Watch) -> None:
    """With plain `for`; closes the loader."""
    scenario = watch.scenario
    pauses = cycle(scenario.pauses)
    with loader:
        for epoch in range(scenario.epochs):
            watch.begins(epoch)
            watch.iterator = batches = iter(loader)
            goes_on = True
            while goes_on:
                since = time.perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    watch.ended()
                    break
                except Exception as error:
                    goes_on = watch.failed(error)
                else:
                    goes_on = watch.got(batch, since)
                    del batch
                time.sleep(next(pauses))  # sleep: what it does with a batch
            watch.iterator = batches = None


async def awaiting(loader: Any, watch: Watch) -> None:
    """With `async for`; closes the loader."""
    before = asyncio.all_tasks()
    try:
        async with loader:
            for epoch in range(watch.scenario.epochs):
                watch.begins(epoch)
                await _epoch(loader, watch)
    finally:
        watch.complaints += await _tasks_left(before)


async def cut_off(consuming: Coroutine[Any, Any, None], seconds: float, watch: Watch) -> None:
    """Cancel it after so many seconds, wherever it is then. As in a server, its task is kept, and with it what it knew:
    nothing is closed by being forgotten."""
    watch.task = asyncio.create_task(consuming)
    await asyncio.wait([watch.task], timeout=seconds)
    watch.task.cancel()
    await asyncio.wait([watch.task])
    if watch.task.cancelled():
        watch.habits["cut off"] += 1
    else:
        watch.task.result()


async def _epoch(loader: Any, watch: Watch) -> None:
    pauses = cycle(watch.scenario.pauses)
    impatient = watch.scenario.habit == "cancels"
    watch.iterator = batches = aiter(loader)
    goes_on = True
    while goes_on:
        since = time.perf_counter()
        try:
            batch = await (_impatiently(batches, pauses, watch) if impatient else anext(batches))
        except StopAsyncIteration:
            watch.ended()
            break
        except Exception as error:
            goes_on = watch.failed(error)
        else:
            goes_on = watch.got(batch, since)
            del batch
        if not impatient:
            await asyncio.sleep(next(pauses))  # sleep: what it does with a batch
    watch.iterator = None


async def _impatiently(batches: Any, pauses: Iterator[float], watch: Watch) -> Any:
    """The next batch, of a consumer that asks, gives up after a while, and asks again."""
    while True:
        asking = asyncio.ensure_future(_next(batches))
        try:
            await asyncio.wait([asking], timeout=next(pauses))
        finally:
            asking.cancel()
        try:
            return await asking
        except asyncio.CancelledError:
            watch.habits["cancels"] += 1


async def _next(batches: Any) -> Any:
    try:
        return await anext(batches)
    except StopAsyncIteration:
        raise _Over from None  # a task cannot end with the original


class _Over(StopAsyncIteration):
    pass


async def _tasks_left(before: set[asyncio.Task[Any]]) -> list[str]:
    for _ in range(100):
        left = asyncio.all_tasks() - before
        if not left:
            return []
        await asyncio.sleep(0.005)  # sleep: nobody says when the last of them has gone
    return [f"left behind: task {task.get_name()}" for task in left]


def wait_after(moments: list[float], waits: list[tuple[float, float]]) -> float:
    """The longest that a consumer had waited for the first batch that came after one of these moments."""
    found = [next(((began, ended) for began, ended in waits if ended > moment), None) for moment in moments]
    return max((ended - max(began, moment) for (began, ended), moment in _pairs(found, moments)), default=0.0)


def _pairs(
    found: list[tuple[float, float] | None], moments: list[float]
) -> Iterator[tuple[tuple[float, float], float]]:
    return ((wait, moment) for wait, moment in zip(found, moments, strict=True) if wait is not None)
