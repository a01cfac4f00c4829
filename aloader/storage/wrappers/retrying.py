"""Another attempt for what may succeed the next time. What is worth one is decided in `retries`; here it is made.

It stands outside of `Limited` and `Hedged`: each attempt then waits for its turn again, and is hedged again.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TypeVar

from aloader.errors import BrokenTransfer, StorageError
from aloader.storage.base import Request, Response, Store
from aloader.storage.wrappers.deadlines import Deadlines
from aloader.storage.wrappers.queueing import QUEUEING, Listener
from aloader.storage.wrappers.retries import (
    ATTEMPTS,
    BUDGET,
    DEADLINE,
    FIRST_DELAY,
    MOST_DELAY,
    Assembly,
    Attempts,
    Budget,
    RetryPolicy,
)
from aloader.storage.wrappers.wrapper import StatefulWrapper, ask, innermost

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryStats:
    """On the running loop: requests made and given up, attempts beyond the first, bodies of which only the rest was
    asked for, and the retries that are left."""

    requests: int = 0
    retries: int = 0
    resumed: int = 0
    failed: int = 0
    budget: float = 0.0


class _Counts:
    """What all requests of one loop share."""

    def __init__(self, policy: RetryPolicy, jitter: Random) -> None:
        self.budget = Budget(policy.budget)
        self.jitter = jitter
        self.deadlines = Deadlines()
        self.requests = self.retries = self.resumed = self.failed = 0


class Retrying(StatefulWrapper[_Counts]):
    """A store that asks again when asking again may help.

    - `Throttled`, `ServerFailed`, `BrokenTransfer` and `StoreUnreachable` are tried again, after a delay that doubles
      from `first_delay` to `most_delay` seconds, any part of it (full jitter); of a store that says how long to wait,
      that long besides, but at most `most_delay` seconds of it, and half of the time that is left.
    - `CredentialsExpired` is tried once more, at once.
    - All else is raised as it is: a missing key does not appear by asking twice.

    A request fails for good with its `attempts`th failure (of an address where nothing has ever answered, with the
    third), or when `deadline` seconds are over, which also ends the attempt that runs. Neither counts what is no
    failure: to be throttled takes no attempts (unless the store has served nobody for so long), and to wait for a turn
    (`Limited`) no time. It also fails with its first failure while the `budget` is used up: the retries that all
    requests of a loop may make without success. Successes fill it again. The error is then of the same type as the last
    one, and tells how many attempts there were.

    A body that broke off is resumed: only the rest is asked for, of the same version, and attempts are counted anew. If
    the object was replaced meanwhile, it is read from the front, once.

    The deadline is for one request: of a large object, for each of its parts. 8 MiB in 60 s are 140 KB/s; where a line
    is slower than that, for all that is in flight, raise it, or let less be in flight.

    `size` is retried too. `list` and `put` are left to the store: a listing goes on page by page, which only the store
    can repeat, and of a put that broke off nobody knows whether it took place.
    """

    def __init__(
        self,
        store: Store,
        attempts: int = ATTEMPTS,
        deadline: float = DEADLINE,
        *,
        first_delay: float = FIRST_DELAY,
        most_delay: float = MOST_DELAY,
        budget: int = BUDGET,
    ) -> None:
        super().__init__(store)
        self.policy = RetryPolicy(attempts, deadline, first_delay, most_delay, budget)

    def make(self, stack: AsyncExitStack) -> _Counts:
        counts = _Counts(self.policy, self.generator())
        stack.callback(counts.deadlines.close)
        return counts

    def stats(self) -> RetryStats:
        counts = self.here
        return RetryStats(counts.requests, counts.retries, counts.resumed, counts.failed, counts.budget.tokens)

    async def fetch(self, request: Request) -> Response:
        counts = self.here
        assembly = Assembly(request)

        async def attempt() -> Response:
            rest = assembly.rest()
            counts.resumed += assembly.resumed
            return assembly.whole(await ask(self.store, rest) if rest is not None else None)

        return await self._persist(counts, request.key, attempt, assembly)

    async def size(self, key: str) -> int:
        return await self._persist(self.here, key, lambda: self.store.size(key), Assembly(Request(key)))

    async def _persist(self, counts: _Counts, key: str, attempt: Callable[[], Awaitable[T]], assembly: Assembly) -> T:
        """Attempts until one succeeds or there is not to be another."""
        counts.requests += 1
        clock = _Clock(self.policy.deadline, counts.deadlines)
        attempts = Attempts(self.policy, counts.budget, clock.now)
        last: BaseException | None = None
        try:
            while True:
                try:
                    answer = await clock.bound(attempt)
                except _TooLate:
                    attempts.made += 1
                    counts.failed += 1
                    raise self._too_late(key, attempts, clock, last) from last
                except Exception as error:
                    last, resumed = error, assembly.resumed
                    if assembly.keep(error):
                        attempts.progressed()
                    delay = attempts.again(error, clock.now, clock.left, resumed, counts.jitter)
                    if delay is None:
                        counts.failed += 1
                        if not isinstance(error, StorageError) or (attempts.made == 1 and not attempts.why_not):
                            raise
                        raise _summed_up(error, attempts, clock.spent, attempts.why_not) from error
                else:
                    attempts.succeeded(clock.now)
                    return answer
                counts.retries += 1
                await asyncio.sleep(delay)
        finally:
            last = None  # it would keep itself alive by its traceback, and all that it has received

    def _too_late(self, key: str, attempts: Attempts, clock: _Clock, last: BaseException | None) -> StorageError:
        if not isinstance(last, StorageError):
            said = f"cannot read {key!r} from {innermost(self.store)!r}: it takes too long"
            last = BrokenTransfer(said, key, stalled=True)
        return _summed_up(last, attempts, clock.spent, f"deadline={self.policy.deadline:g} was over")


class _TooLate(Exception):  # noqa: N818
    """The deadline ended an attempt. Not a `TimeoutError`: the store may raise that itself."""


class _Clock(Listener):
    """A deadline over all attempts, which stands still while an attempt waits for its turn."""

    def __init__(self, deadline: float, deadlines: Deadlines) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._deadline = deadline
        self._deadlines = deadlines
        self._waits = 0
        self._waiting_since = self._waited = 0.0
        self._timeout: asyncio.Timeout | None = None
        self._outside = QUEUEING.get()

    @property
    def now(self) -> float:
        return self._loop.time()

    @property
    def spent(self) -> float:
        return self.now - self._began - self._waited

    @property
    def left(self) -> float:
        return self._deadline - self.spent

    @property
    def due(self) -> float:
        return inf if self._waits else self._began + self._waited + self._deadline

    def end(self) -> None:
        if self._timeout is not None and not self._timeout.expired():  # it may be ending, and wait for a turn to do so
            self._timeout.reschedule(self.now)

    async def bound(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """One attempt, ended with `_TooLate` when the deadline is over."""
        token = QUEUEING.set(self)
        try:
            async with asyncio.timeout(None) as self._timeout:
                self._deadlines.watch(self)
                return await attempt()
        except TimeoutError:
            assert self._timeout is not None
            if self._timeout.expired():
                raise _TooLate from None
            raise
        finally:
            self._deadlines.forget(self)
            if self._waits:  # given up before its turn
                self._waits = 1
                self._goes()
            QUEUEING.reset(token)
            self._timeout = None  # it holds the task, which holds the error, whose traceback holds this

    def waits(self) -> None:
        if self._outside is not None:
            self._outside.waits()
        self._waits += 1
        if self._waits == 1:
            self._waiting_since = self.now

    def goes(self) -> None:
        if self._outside is not None:
            self._outside.goes()
        self._goes()
        if not self._waits and self._timeout is not None:
            self._deadlines.watch(self)  # it is due again

    def _goes(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._waited += self.now - self._waiting_since


def _summed_up(error: StorageError, attempts: Attempts, seconds: float, why_not: str) -> StorageError:
    """The last error, with what was done about it."""
    count = "1 attempt" if attempts.made == 1 else f"{attempts.made} attempts"
    final = copy.copy(error)
    final.args = (f"{error} ({count} in {seconds:.1f} s{why_not and ': '}{why_not})",)
    final.attempts = attempts.made
    return final
