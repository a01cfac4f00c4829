"""Another request where the first takes unusually long. When that is, is decided in `hedges`; here they are raced.

It stands inside of `Retrying` and outside of `Limited`: a request that waits for its turn is not slow, and a second one
takes a turn like any other.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf
from typing import Final

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
        race = _Race(self.store, request, hedges, threshold)
        answer = await race.run()
        if not race.first.failed:
            hedges.first_took(latencies, threshold, race.first.seconds)
        return answer


class _Race:
    """The first request is made by whoever asks, and only those that join it are tasks. Mostly there are none, and then
    a timer is all that hedging costs. An answer of another ends the first as a deadline would: by `asyncio.timeout`."""

    def __init__(self, store: Store, request: Request, hedges: Hedges, threshold: float) -> None:
        self._store = store
        self._request = request
        self._hedges = hedges
        self._threshold = threshold
        self._beaten = asyncio.timeout(None)
        self._others: list[_Leg] = []
        self._tasks: list[asyncio.Task[Response]] = []
        self.first = _Leg(QUEUEING.get(), self._late)

    async def run(self) -> Response:
        """The first good answer, or the first request's error. All that was begun has ended when it returns."""
        self.first.due_after = self._threshold
        try:
            async with self._beaten:
                return await self.first.run(self._store, self._request)
        except Exception:
            if self._tasks:
                answer = await self._answer_of_others()
                if answer is not None:
                    return answer
            raise
        finally:
            if self._tasks:
                await self._end()

    async def _answer_of_others(self) -> Response | None:
        running = set(self._tasks)
        while running:
            done, running = await asyncio.wait(running, return_when=FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and task.exception() is None:
                    return task.result()
        return None

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await _ended(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.exception()  # seen: nobody else asks
        sent = [leg for leg in self._others if leg.sent]
        for _ in range(len(self._others) - len(sent)):
            self._hedges.withdraw()
        if sent:
            self._hedges.raced(won=not self.first.answered and any(leg.answered for leg in sent))

    def _late(self) -> None:
        """The first request has taken so long, and still runs."""
        look_again = self._hedges.decide(self._threshold, self.first.seconds)
        if not look_again:
            leg = _Leg(None)
            task = asyncio.get_running_loop().create_task(leg.run(self._store, self._request))
            task.add_done_callback(self._joined_ended)
            self._others.append(leg)
            self._tasks.append(task)
        if look_again or len(self._tasks) < MOST - 1:
            self.first.look_after(look_again or self._threshold)

    def _joined_ended(self, task: asyncio.Task[Response]) -> None:
        if task.cancelled() or task.exception() is not None:
            return
        if self.first.running and not self._beaten.expired():  # another may have beaten it already, and it still ends
            self._beaten.reschedule(0.0)


async def _ended(tasks: list[asyncio.Task[Response]]) -> None:
    """Wait until all have ended, also if this is cancelled meanwhile: then afterwards it is."""
    cancelled: asyncio.CancelledError | None = None
    running = set(tasks)
    while running:
        try:
            _, running = await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled, running = error, {task for task in running if not task.done()}
    try:
        if cancelled is not None:
            raise cancelled
    finally:
        cancelled = None  # it would keep itself alive by its traceback


class _Leg(Listener):
    """One of the requests: how long it has taken since it was sent."""

    def __init__(self, outside: Listener | None, due: Callable[[], None] | None = None) -> None:
        """`outside` hears of it too if the request has to wait for its turn. `due` is called when it has taken
        `due_after` seconds."""
        self._outside = outside
        self._loop = asyncio.get_running_loop()
        self._due = due
        self._began = self._loop.time()
        self._ended = inf
        self._timer: asyncio.TimerHandle | None = None
        self.due_after = inf
        self.sent = self.answered = self.failed = False

    @property
    def seconds(self) -> float:
        return min(self._ended, self._loop.time()) - self._began

    @property
    def running(self) -> bool:
        return self._ended == inf

    async def run(self, store: Store, request: Request) -> Response:
        token = QUEUEING.set(self)
        self._go()
        try:
            answer = await ask(store, request)
            self.answered = True
            return answer
        except Exception:
            self.failed = True
            raise
        finally:
            self._ended = self._loop.time()
            self._stop()
            QUEUEING.reset(token)

    def look_after(self, seconds: float) -> None:
        """It will be due again."""
        self.due_after = self.seconds + seconds
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
        if self.due_after < inf and self._due is not None:
            self._timer = self._loop.call_at(self._began + self.due_after, self._due)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
