"""Another request where the first takes unusually long. When that is, is decided in `hedges`; here they are raced.

It stands inside of `Retrying` and outside of `Limited`: a request that waits for its turn is not slow, and a second one
takes a turn like any other.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import FIRST_COMPLETED
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from aloader.storage.base import Request, Response, Store
from aloader.storage.wrappers.hedges import Hedges
from aloader.storage.wrappers.queueing import QUEUEING, Listener
from aloader.storage.wrappers.wrapper import StatefulWrapper, ask

#: With 0.95 and a budget of 0.05, every token is spoken for, and late requests wait for tokens. Of batches of 64 x 100
#: KiB from a simulated S3, the slowest in a hundred took 1.8 times the usual time (2.5 with the worst of 8 seeds) for
#: 4.8 % more requests; with 0.96, 1.7 times (1.85) for 3.9 %.
QUANTILE: Final = 0.96

#: Requests for the same bytes side by side. With 2, and 0.95, it was 2.05 times (3.1): the second may be slow too.
MOST: Final = 3

Outcome = Response | Exception


@dataclass(frozen=True, slots=True)
class HedgeStats:
    """On the running loop: requests, second ones that were sent, and how many of these had their answer first."""

    asked: int
    hedged: int
    won: int


class Hedged(StatefulWrapper[Hedges]):
    """A store that sends a second, identical request when the first has taken longer than the `quantile` of those of
    its size did lately; and a third when both have, for as long again. The first good answer counts, and the other
    requests are cancelled.

    At most `budget` of these are sent per request, over any longer time; hardly any while the store is slow as a
    whole, or when they are seldom faster. For the first few dozen requests of each size there are none.

    If one fails, the others are waited for; if all do, it is the first one's error.
    """

    def __init__(self, store: Store, quantile: float = QUANTILE, budget: float = 0.05) -> None:
        super().__init__(store)
        if not 0 < quantile < 1:
            raise ValueError(f"quantile= is between 0 and 1, such as 0.96: got {quantile!r}")
        if not 0 <= budget <= 1:
            raise ValueError(f"budget= is second requests per request, from 0 to 1: got {budget!r}")
        self.quantile = quantile
        self.budget = budget

    def make(self, stack: AsyncExitStack) -> Hedges:
        return Hedges(self.quantile, self.budget)

    def stats(self) -> HedgeStats:
        hedges = self.here
        return HedgeStats(hedges.asked, hedges.hedged, hedges.won)

    async def fetch(self, request: Request) -> Response:
        hedges = self.here
        latencies, threshold = hedges.ask(request.end(sys.maxsize) - request.start)
        legs = [_Leg(QUEUEING.get())]
        if threshold == inf:
            outcome = await legs[0].run(self.store, request)
        else:
            outcome = await _race(self.store, request, legs, hedges, threshold)
        if isinstance(outcome, Exception):
            try:
                raise outcome
            finally:
                del outcome  # it would keep itself alive by its traceback, and all that it has received
        if not legs[0].failed:
            hedges.first_took(latencies, threshold, legs[0].seconds)
        return outcome


async def _race(store: Store, request: Request, legs: list[_Leg], hedges: Hedges, threshold: float) -> Outcome:
    """The first good answer, or the first leg's error. All that was begun has ended when it returns."""
    first = legs[0]
    async with asyncio.TaskGroup() as group:  # never fails: an error is an outcome
        tasks = [group.create_task(first.run(store, request, threshold))]
        running: set[asyncio.Future[Any]] = {*tasks}
        while running and not any(leg.answered for leg in legs):
            may_join = first.running and len(legs) < MOST
            done, _ = await asyncio.wait({*running, first.due} if may_join else running, return_when=FIRST_COMPLETED)
            running -= done
            if first.due not in done or not first.running:
                continue
            look_again = hedges.decide(threshold, first.seconds)
            if not look_again:
                legs.append(_Leg(None))
                tasks.append(group.create_task(legs[-1].run(store, request)))
                running.add(tasks[-1])
            first.look_after(look_again or threshold)
        for task in tasks:
            task.cancel()
    for leg in legs[1:]:
        if not leg.sent:
            hedges.withdraw()
    best = next((place for place, leg in enumerate(legs) if leg.answered), 0)
    if any(leg.sent for leg in legs[1:]):
        hedges.raced(won=best > 0)
    return tasks[best].result()


class _Leg(Listener):
    """One of the requests: how long it has taken since it was sent."""

    def __init__(self, outside: Listener | None) -> None:
        """`outside` hears of it too if the request has to wait for its turn."""
        self._outside = outside
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._ended = inf
        self._due_after = inf
        self._timer: asyncio.TimerHandle | None = None
        self.due: asyncio.Future[None] = self._loop.create_future()
        self.sent = False
        self.answered = False
        self.failed = False

    @property
    def seconds(self) -> float:
        return min(self._ended, self._loop.time()) - self._began

    @property
    def running(self) -> bool:
        return self._ended == inf

    async def run(self, store: Store, request: Request, due_after: float = inf) -> Outcome:
        """The answer or the error. `due` is done when it has taken so many seconds."""
        token = QUEUEING.set(self)
        self._due_after = due_after
        self._go()
        try:
            answer = await ask(store, request)
            self.answered = True
            return answer
        except Exception as error:
            self.failed = True
            return error
        finally:
            self._ended = self._loop.time()
            self._stop()
            QUEUEING.reset(token)

    def look_after(self, seconds: float) -> None:
        """It will be due again."""
        self.due = self._loop.create_future()
        self._due_after = self.seconds + seconds
        self._set()

    def waits(self) -> None:
        self.sent = False
        self._stop()
        if self._outside is not None:
            self._outside.waits()

    def goes(self) -> None:
        self._go()
        if self._outside is not None:
            self._outside.goes()

    def _go(self) -> None:
        """It is sent now."""
        self.sent = True
        self._began = self._loop.time()
        self._set()

    def _set(self) -> None:
        if self._due_after < inf:
            self._timer = self._loop.call_at(self._began + self._due_after, self._is_due)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _is_due(self) -> None:
        if not self.due.done():
            self.due.set_result(None)
