"""How many requests may be in flight, and how many may be sent in a second. Decisions only: no I/O, no clock.

A store that says "slow down" (503) does not say to what. Two bounds are learned from it:

*Requests in flight* grow by one per round trip and shrink by a part when the store throttles: additive increase,
multiplicative decrease. It is the bound that counts where a server refuses what it cannot hold.

*Requests per second* are what object stores limit. In-flight bounds do not help there: a refusal comes back within
a millisecond, and 15 in flight may be 500 requests per second or 15,000. There is no bound until the store throttles;
then it is a little less than what the store has let through in the last moments, which is what it allows. From there
it grows along a cubic: fast to where it was before, slowly around it, faster again if nothing happens (RFC 9438, which
says why several that share a path so end up with equal shares: what all gain is the same, what each loses is in
proportion).

How long answers take is not looked at, as it is between services (TCP Vegas, Netflix' gradient): object stores answer
as fast under load as without, until they refuse; and what slows answers down here is most often this machine.

Both shrink at most once per round trip, and not again within a moment: only by the refusal of a request that was sent
after they last shrank. Nor does every refusal count. Stores refuse one request in a thousand for reasons of their own;
to slow down for each would end at a crawl. Only when more than `TOLERATED` of the last hundreds were refused is it
about their number. That it is counted in requests and not in seconds is what makes a client that sends more also the
one that gives way more often.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Final

#: What both bounds are multiplied with. AIMD halves; a rate that is measured needs less.
DECREASE: Final = 0.85

#: Seconds over which rates are measured, and for which a bound that has shrunk is given the time to show.
WINDOW: Final = 1.0
SPACING: Final = 0.25

#: The part of requests that may be refused without meaning anything, and what one request weighs in it.
TOLERATED: Final = 0.02
WEIGHT: Final = 1 / 400

#: Seconds in which the rate doubles after the first refusal, until the second tells where the bound is.
DOUBLING: Final = 0.5

#: How steep the cubic is, in requests per second per second cubed, from so many requests per second on: there, 2.7
#: seconds lead back to where it was. Below it is less steep, with the root, since many clients that are slow each are
#: steep together.
STEEPNESS: Final = 4.0
STEEP_FROM: Final = 500.0

#: The rate is never less than this; nor, of a store that serves nobody, than so many times the requests that may be in
#: flight: all should hear so within a while.
LEAST_RATE: Final = 1.0
LEAST: Final = 1 / 20

#: What comes through is measured over a while in which the rate may have grown: it is taken for no less than this part
#: of the rate.
LAG: Final = 0.6

#: The rate does not grow to more than so many times what comes through: it is to be tried.
HEADROOM: Final = 2.0

#: Requests that were late by up to so many seconds are sent together: timers are no more precise than this.
SLACK: Final = 0.02

#: Seconds without any request after the bounds have shrunk, at least and at most, so that several clients part.
PAUSE: Final = (0.02, 0.1)

#: Seconds for which nothing is sent if the store says how long to wait, at most: requests that wait for their turn have
#: no deadline.
LONGEST_PAUSE: Final = 10.0


class Meter:
    """Events per second, over the last window."""

    def __init__(self, now: float, window: float = WINDOW) -> None:
        self._window = window
        self._began = self._born = now
        self._count = self._before = 0

    def add(self, now: float) -> None:
        self._turn(now)
        self._count += 1

    def rate(self, now: float) -> float:
        self._turn(now)
        inside = (now - self._began) / self._window
        counted = self._count + self._before * (1 - inside)
        return counted / min(self._window, max(now - self._born, self._window / 8))

    def _turn(self, now: float) -> None:
        passed = int((now - self._began) / self._window)
        if passed:
            self._before = self._count if passed == 1 else 0
            self._count = 0
            self._began += passed * self._window


class Limit:
    """Both bounds."""

    def __init__(self, concurrency: int, now: float, jitter: Random) -> None:
        self.most = concurrency
        self.concurrency = float(concurrency)
        self.rate = inf
        self._jitter = jitter
        self._meter = Meter(now)
        self._refusals = 0.0  # the part of the last requests that were refused
        self._next = now
        self._shrank = -inf
        self._before = inf  # the rate at which the store last throttled: not known with the first refusals
        self._least = 0.0  # the rate that was left

    def room(self, in_flight: int, share: float = 1.0) -> bool:
        """Whether one more may be in flight. One always may."""
        return in_flight < max(1, int(min(self.concurrency, self.most * share)))

    def start(self, now: float) -> float:
        """Seconds until a request may be sent. 0 if it may now: then it counts as sent."""
        if now < self._next:
            return self._next - now
        if self.rate < inf:
            self._next = max(self._next, now - SLACK) + 1 / self.rate
        return 0.0

    def served(self, now: float) -> None:
        """A request has been answered."""
        self._meter.add(now)
        self._refusals -= self._refusals * WEIGHT
        self.concurrency = min(self.most, self.concurrency + 1 / self.concurrency)
        if self.rate < inf:
            self.rate = max(self.rate, min(self._grown(now), HEADROOM * self._meter.rate(now)))

    def refused(self, now: float, began: float, retry_after: float = 0.0) -> bool:
        """A request that was sent at `began` has been throttled. Whether the bounds have shrunk for it."""
        self._refusals += (1 - self._refusals) * WEIGHT
        if self._refusals <= TOLERATED or began < self._shrank or now < self._shrank + SPACING:
            return False
        served = self._meter.rate(now)
        bound = self._allowed(served)
        if served and self.rate < inf:  # of a store that serves nobody, this is not the bound
            self._before = bound
        least = LEAST_RATE if served else LEAST * self.most
        self.rate = self._least = min(self.rate, max(least, bound * DECREASE))
        self.concurrency = max(1.0, self.concurrency * DECREASE)
        self._refusals = 0.0
        self._shrank = now
        self._next = now + max(min(retry_after, LONGEST_PAUSE), self._jitter.uniform(*PAUSE))
        return True

    def _allowed(self, served: float) -> float:
        """What the store seems to allow, if so many came through."""
        if not served:
            return min(self.rate, self.most) / 2
        return served if self.rate == inf else min(self.rate, max(served, self.rate * LAG))

    def _grown(self, now: float) -> float:
        """The rate that may be tried, so long after it shrank."""
        passed = now - self._shrank
        if self._before == inf:
            return self._least * float(2 ** min(passed / DOUBLING, 60))
        steepness = STEEPNESS * min(1.0, self._before / STEEP_FROM) ** 0.5
        back: float = (max(0.0, self._before - self._least) / steepness) ** (1 / 3)
        return float(self._before + steepness * (passed - back) ** 3)
