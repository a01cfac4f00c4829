"""No more requests than the store can take. How many is decided in `limits`; here they wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

from aloader.errors import NotOpen, Throttled
from aloader.options import CONCURRENCY
from aloader.storage.base import Request, Response, Store
from aloader.storage.permits import PERMITS, Permits
from aloader.storage.wrappers.limits import Limit
from aloader.storage.wrappers.queueing import QUEUEING
from aloader.storage.wrappers.wrapper import StatefulWrapper, ask


@dataclass(frozen=True, slots=True)
class LimitStats:
    """On the running loop: how many requests may be in flight, how many a second (infinite until the store throttles),
    how many are in flight and wait, and how many there were and were throttled."""

    limit: int
    rate: float
    in_flight: int
    waiting: int
    requests: int
    throttled: int


class _Gate:
    """Where the requests of one loop wait, first come, first served."""

    def __init__(self, owner: object, concurrency: int, permits: Permits, jitter: Random) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._permits = permits
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.limit = Limit(concurrency, self._loop.time(), jitter)
        self.in_flight = self.requests = self.throttled = 0

    def close(self) -> None:
        """Nobody waits for a store that is closed."""
        if self._timer is not None:
            self._timer.cancel()
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(NotOpen(f"{self._owner!r} was closed while a request waited for its turn"))

    @property
    def waiting(self) -> int:
        return sum(not turn.done() for turn in self._waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn; and tell what came of it."""
        if self._waiting or not self._admit():
            await self._queue()
        began = self._loop.time()
        self.requests += 1
        try:
            yield
        except Throttled as error:
            self._refused(began, error.retry_after)
            raise
        else:
            self.limit.served(self._loop.time())
        finally:
            self._leave()

    async def _queue(self) -> None:
        turn = self._loop.create_future()
        self._waiting.append(turn)
        listener = QUEUEING.get()
        if listener is not None:
            listener.waits()
        try:
            self._admit_waiting()
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()  # the turn had come in the same step: it is the next one's now
            raise
        if listener is not None:
            listener.goes()

    def _admit(self) -> bool:
        """Whether a request may go now; else, if only time is missing, a timer lets those that wait go then."""
        if not self.limit.room(self.in_flight, self._permits.share):
            return False
        delay = self.limit.start(self._loop.time())
        if delay > 0:
            if self._timer is None:
                self._timer = self._loop.call_later(delay, self._due)
            return False
        self.in_flight += 1
        return True

    def _due(self) -> None:
        self._timer = None
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting:
            if not self._waiting[0].done():  # given up, if it is
                if not self._admit():
                    return
                self._waiting[0].set_result(None)
            self._waiting.popleft()

    def _refused(self, began: float, retry_after: float) -> None:
        self.throttled += 1
        self.limit.refused(self._loop.time(), began, retry_after)
        self._permits.throttled()

    def _leave(self) -> None:
        self.in_flight -= 1
        self._admit_waiting()


class Limited(StatefulWrapper[_Gate]):
    """A store that is asked for no more at once than it can take.

    At most `concurrency` requests of a loop are in flight; the others wait, first come, first served. When the store
    throttles (HTTP 429, 503), fewer may be in flight, and from then on the requests per second are bounded too, by a
    little less than what the store lets through; both grow again as it answers. So a store that is asked for too much
    gets, after a moment, what it allows and hardly any request that it refuses. The refused ones are still
    errors here, `Throttled`: put `Retrying` around.

    Several processes that ask the same store need not know of each other; workers of one loader can be given shares of
    `concurrency` by `aloader.storage.permits`.

    `size` and `put` take turns as well, `list` does not.
    """

    def __init__(self, store: Store, concurrency: int = CONCURRENCY) -> None:
        super().__init__(store)
        if concurrency < 1:
            raise ValueError(f"concurrency= is a number of requests, at least 1: got {concurrency!r}")
        self.concurrency = concurrency

    def make(self, stack: AsyncExitStack) -> _Gate:
        gate = _Gate(self, self.concurrency, PERMITS.get() or Permits(), self.generator())
        stack.callback(gate.close)
        return gate

    def stats(self) -> LimitStats:
        gate, limit = self.here, self.here.limit
        return LimitStats(
            int(limit.concurrency), limit.rate, gate.in_flight, gate.waiting, gate.requests, gate.throttled
        )

    async def fetch(self, request: Request) -> Response:
        async with self.here.turn():
            return await ask(self.store, request)

    async def size(self, key: str) -> int:
        async with self.here.turn():
            return await self.store.size(key)

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        async with self.here.turn():
            await self.store.put(key, data)
