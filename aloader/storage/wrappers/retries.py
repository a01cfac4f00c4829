"""Which errors are worth another attempt, when it is made, and what it still has to ask for. Decisions only: no I/O, no
clock.

*Delays* double, with full jitter: anything between nothing and the whole delay. Without it, requests that failed
together come back together (Brooker, "Exponential backoff and jitter").

*The budget* is what keeps retries from multiplying the load on a store that is down: each costs one token, gets it back
if the request then succeeds, and every success adds a tenth. A store that fails one request in a hundred never notices;
one that fails all of them gets the budget's tokens in retries, and from then on each request once. Throttled requests
cost nothing: to wait is all they do, and how many are sent is for `Limited` to say. But a store that throttles all of
them for as long as one may take is down too.

*How long a store says to wait* is a hint, and often a constant: MinIO says 60 seconds with every 503, as long as all
attempts may take. It is heeded up to the longest delay, and up to half of the time that is left.

*A broken body is resumed*: what has come is kept, and the rest is asked for by range and by version, so that no
object is ever made of two versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from random import Random
from typing import Final

from aloader.errors import (
    BadRange,
    BrokenTransfer,
    CredentialsExpired,
    ObjectChanged,
    ServerFailed,
    StoreUnreachable,
    Throttled,
)
from aloader.options import CONCURRENCY
from aloader.storage.base import Request, Response

ATTEMPTS: Final = 5

#: Seconds over all attempts, and before another one at first and at most.
DEADLINE: Final = 60.0
FIRST_DELAY: Final = 0.05
MOST_DELAY: Final = 10.0

#: Retries without success: more than may be in flight, so that a load balancer that closes all connections at once
#: fails no request.
BUDGET: Final = 2 * CONCURRENCY

#: What a success adds to the budget.
REFILL: Final = 0.1

#: Attempts at an address where nothing has ever answered: it may be starting, but more likely it is wrong.
KNOCKS: Final = 3


class Kind(Enum):
    """What an error says about another attempt."""

    THROTTLED = auto()  #: later
    SERVER = auto()  #: soon
    BROKEN = auto()  #: soon, and only for what is missing
    STALLED = auto()  #: the same: this connection was bad, the next need not be
    UNREACHABLE = auto()  #: soon, but not often unless it has answered before
    EXPIRED = auto()  #: at once, and once: they have been renewed
    CHANGED = auto()  #: at once, and once, from the front, if it was we who asked for the version
    FATAL = auto()  #: the same answer would come again


def classify(error: BaseException) -> Kind:
    """What an error says. Everything unknown is fatal."""
    match error:
        case Throttled():
            return Kind.THROTTLED
        case ServerFailed():
            return Kind.SERVER
        case BrokenTransfer(stalled=stalled):
            return Kind.STALLED if stalled else Kind.BROKEN
        case StoreUnreachable():
            return Kind.UNREACHABLE
        case CredentialsExpired():
            return Kind.EXPIRED
        case ObjectChanged():
            return Kind.CHANGED
        case _:
            return Kind.FATAL


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The numbers of `Retrying`, whose docstring explains them. Times are seconds."""

    attempts: int = ATTEMPTS
    deadline: float = DEADLINE
    first_delay: float = FIRST_DELAY
    most_delay: float = MOST_DELAY
    budget: int = BUDGET

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts= counts the first one too: at least 1, got {self.attempts!r}")
        if not self.deadline > 0:
            raise ValueError(f"deadline= is seconds, more than 0: got {self.deadline!r}")
        if not 0 <= self.first_delay <= self.most_delay:
            raise ValueError(
                f"0 <= first_delay <= most_delay, in seconds: got {self.first_delay!r} and {self.most_delay!r}"
            )
        if self.budget < 0:
            raise ValueError(f"budget= is a number of retries, 0 or more: got {self.budget!r}")


class Budget:
    """The retries that all requests of one loop may still make, and what is known of the store from them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = float(capacity)
        self.tokens = float(capacity)
        self.reached = False  # whether anything has ever answered
        self.served = -inf  # when the store last did what was asked

    def take(self) -> bool:
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def success(self, now: float, taken: int) -> None:
        """A request has succeeded that took so many tokens."""
        self.reached = True
        self.served = now
        self.tokens = min(self.capacity, self.tokens + taken + REFILL)


class Attempts:
    """One request's attempts: how many there were, and whether there is to be another."""

    def __init__(self, policy: RetryPolicy, budget: Budget, now: float) -> None:
        self.policy = policy
        self.budget = budget
        self.began = now
        self.made = 0
        self.taken = 0
        self.why_not = ""  # why there is not to be another, where the error alone does not tell
        self._failed = 0
        self._once: set[Kind] = set()

    def again(self, error: BaseException, now: float, left: float, resumed: bool, jitter: Random) -> float | None:
        """Seconds until the next attempt, after one that failed with `error`. None if this was the last: it is not
        worth trying, there were enough of them, the budget is empty, or `left`, the time, would be over by then.
        `resumed`: it asked only for the rest of a body."""
        self.made += 1
        kind = Kind.CHANGED if resumed and isinstance(error, BadRange) else classify(error)  # it ends before now
        self.budget.reached |= kind is not Kind.UNREACHABLE
        if kind is Kind.FATAL or self.policy.attempts == 1 or (kind is Kind.CHANGED and not resumed):
            return None
        if kind is Kind.EXPIRED or kind is Kind.CHANGED:
            return self._at_once(kind)
        delay = jitter.uniform(0, min(self.policy.most_delay, self.policy.first_delay * 2.0 ** min(self.made - 1, 60)))
        if isinstance(error, Throttled):  # it has not failed: only time bounds it
            delay += min(error.retry_after, self.policy.most_delay, left / 2)  # a hint must not use the deadline up
            if now - max(self.began, self.budget.served) >= self.policy.deadline:
                self.why_not = f"the store has served nothing for {self.policy.deadline:g} s"
                return None
        elif not self._may_fail_again(kind):
            return None
        if delay < left:
            return delay
        self.why_not = "the next would be too late"
        return None

    def progressed(self) -> None:
        """The last attempt brought some bytes that are kept: it did not fail altogether, and is not counted as if."""
        self._failed = -1

    def succeeded(self, now: float) -> None:
        self.made += 1
        self.budget.success(now, self.taken)

    def _at_once(self, kind: Kind) -> float | None:
        if kind in self._once:
            return None
        self._once.add(kind)
        return 0.0

    def _may_fail_again(self, kind: Kind) -> bool:
        self._failed += 1
        most = self.policy.attempts
        if kind is Kind.UNREACHABLE and not self.budget.reached:
            most = min(most, KNOCKS)
        if self._failed >= most:
            return False
        if not self.budget.take():
            self.why_not = "no more, since too many requests to this store fail"
            return False
        self.taken += 1
        return True


class Assembly:
    """What has come of a request, and what is still to be asked for."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._pieces: list[bytes] = []
        self._got = 0
        self._end = -1  # where the answer will end: known from the first that broke
        self._size = -1
        self._version = ""

    @property
    def resumed(self) -> bool:
        """Whether the next attempt asks only for the rest."""
        return bool(self._pieces)

    def rest(self) -> Request | None:
        """What to ask for next; None if all is there."""
        if not self._pieces:
            return self.request
        begin = self.request.start + self._got
        return Request(self.request.key, begin, self._end, self._version) if begin < self._end else None

    def keep(self, error: BaseException) -> bool:
        """An attempt has failed: keep what had come by then, if one can tell what it is a part of. Whether there was
        any."""
        if isinstance(error, ObjectChanged | BadRange):
            self._pieces, self._got = [], 0
        if not (isinstance(error, BrokenTransfer) and error.received and error.version and error.size >= 0):
            return False
        if not self._pieces:
            self._version, self._size = error.version, error.size
            self._end = self.request.end(error.size)
        if error.version != self._version:
            return False
        received = error.received[: self._end - self.request.start - self._got]
        self._pieces.append(received)
        self._got += len(received)
        return True

    def whole(self, answer: Response | None) -> Response:
        """The answer to the request, now that the rest has come (None: there was none)."""
        if not self._pieces:
            assert answer is not None
            return answer
        if answer is None:
            return Response(b"".join(self._pieces), self._size, self._version)
        if answer.version != self._version:
            raise ObjectChanged(
                f"{self.request.key!r} was replaced while it was read, between byte {self.request.start} and byte "
                f"{self._end}: its version was {self._version!r} and is {answer.version!r}",
                self.request.key,
            )
        return answer._replace(data=b"".join([*self._pieces, answer.data]))
