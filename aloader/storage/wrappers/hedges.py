"""When a request has taken so long that a second one is worth sending. Decisions only: no I/O, no clock.

One request in twenty takes three times as long as most, and a batch waits for its slowest. A second request for the
same bytes most likely takes as long as most do (Dean and Barroso, "The Tail at Scale", 2013). Three things keep this
from doing harm:

*A threshold that is observed.* The quantile of how long requests took lately, of the same size. A first request that
was given up since the second won counts with the time it had by then: it is above the threshold in any case, which is
all that the quantile depends on.

*A budget.* Each request brings a part of a token, and each second request costs one. With the same number for both, the
quantile and the budget, all tokens would be spent on requests that are only a little slow, and none would be left for
one that is stalled. So some are kept back for those that have taken several times the threshold.

*An end.* If the store as a whole has become slow, every request is above what was observed, and second ones add to
its load. And where a large object takes long because it is large, they never win. Both are noticed, and then only
one in some ten that would be sent is: enough to notice when it is over.
"""

from __future__ import annotations

from math import inf, log2
from typing import Final

#: Observations before there is a threshold, and how much the next one counts for against all those before.
FIRST: Final = 32
WEIGHT: Final = 1 / 1000

#: Tokens at most, and how many of them are kept for requests that have taken so many times the threshold.
BURST: Final = 24.0
RESERVE: Final = 4.0
URGENT: Final = 3.0

#: What one request counts for in the part of requests that were above the threshold, and one second request in the
#: part of these that won.
SLOW_WEIGHT: Final = 1 / 200
WON_WEIGHT: Final = 1 / 50

#: It is off while the part above the threshold is this many times what the quantile promises, or fewer than this win.
TOO_MANY: Final = 3.0
TOO_FEW: Final = 0.1

#: Of the second requests that would be sent, one in so many is while it is off.
PROBE: Final = 10

#: The histogram: buckets per doubling, from 0.1 ms on.
FINENESS: Final = 8
SHORTEST: Final = 1e-4
BUCKETS: Final = FINENESS * 24


class Latencies:
    """A quantile of the seconds that requests took lately: a histogram with logarithmic buckets, whose older counts
    weigh less and less."""

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._buckets = [0.0] * BUCKETS
        self._sum = 0.0
        self._next = 1.0  # the weight of the next observation: it grows, which is the same as if all others shrank
        self._threshold = inf
        self._stale = 0
        self.observed = 0

    def add(self, seconds: float) -> None:
        place = int(FINENESS * log2(max(seconds, SHORTEST) / SHORTEST))
        self._buckets[min(place, BUCKETS - 1)] += self._next
        self._sum += self._next
        self._next *= 1 + WEIGHT
        self.observed += 1
        self._stale += 1
        if self._next > 1e100:
            self._rescale()

    @property
    def threshold(self) -> float:
        """Seconds; infinite as long as too little is known."""
        if self.observed < FIRST:
            return inf
        if self._threshold == inf or self._stale >= 16:  # going through the buckets costs more than adding
            self._threshold, self._stale = self._find(), 0
        return self._threshold

    def _find(self) -> float:
        left = self._sum * self._quantile
        for place, count in enumerate(self._buckets):
            if count >= left:
                return SHORTEST * float(2 ** ((place + left / count) / FINENESS))
            left -= count
        return SHORTEST * float(2 ** (BUCKETS / FINENESS))

    def _rescale(self) -> None:
        self._buckets = [count / self._next for count in self._buckets]
        self._sum, self._next = sum(self._buckets), 1.0


class Hedges:
    """Which requests of one loop are sent a second time, and what came of it."""

    def __init__(self, quantile: float, budget: float) -> None:
        self._quantile = quantile
        self._budget = budget
        self._classes: dict[int, Latencies] = {}
        self._tokens = 0.0
        self._slow = 1 - quantile  # the part of the last requests that were above the threshold
        self._winning = 1.0  # the part of the last second requests that won
        self._skipped = 0
        self.asked = self.hedged = self.won = 0

    def ask(self, nbytes: int) -> tuple[Latencies, float]:
        """A request for so many bytes at most is being sent. Where to enter how long it took, and after how many
        seconds it should be looked at; infinite if never."""
        self.asked += 1
        self._tokens = min(BURST, self._tokens + self._budget)
        size_class = nbytes.bit_length() // 2
        latencies = self._classes.get(size_class)
        if latencies is None:
            latencies = self._classes[size_class] = Latencies(self._quantile)
        return latencies, latencies.threshold

    @property
    def off(self) -> bool:
        """Whether the store is slow as a whole, or second requests are of no use."""
        return self._slow > TOO_MANY * (1 - self._quantile) or self._winning < TOO_FEW

    def decide(self, threshold: float, waited: float) -> float:
        """Of a request that has taken `waited` seconds, the threshold or more: 0 if a second one is to be sent now,
        else the seconds after which to look again."""
        urgent = waited >= URGENT * threshold * (1 - 1e-9)
        if self._tokens >= 1 + (0 if urgent else RESERVE):
            self._skipped += 1
            if not self.off or self._skipped >= PROBE:
                self._skipped = 0
                self._tokens -= 1
                self.hedged += 1
                return 0.0
            return max(waited, threshold)
        return threshold / 2

    def withdraw(self) -> None:
        """The second request was not sent after all: it was still waiting for its turn."""
        self._tokens += 1
        self.hedged -= 1

    def first_took(self, latencies: Latencies, threshold: float, seconds: float) -> None:
        """The first request took so long; or was given up then, since the second had won."""
        latencies.add(seconds)
        if threshold < inf:
            self._slow += ((seconds >= threshold) - self._slow) * SLOW_WEIGHT

    def raced(self, won: bool) -> None:
        """Whether a second request, or a third, had its answer before the first."""
        self.won += won
        self._winning += (won - self._winning) * WON_WEIGHT
