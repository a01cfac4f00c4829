"""What a store may do to a request: how long it takes, and what goes wrong. Nothing happens here.

`Latency` and `Faults` say how often; `Plans` decides what happens to each request. A plan follows from the seed, the
object, the range and how often that was asked for before, never from the order in which requests come: so a run can be
repeated, with any number of tasks. What has to do with time (a limit to requests per second, credentials that expire)
is decided by `Bucket` and `Faults.expires`, which are told the time.

Clocks, sleeping and I/O may not enter: see `faulty` for a store and `faultserver` for a server that act on plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from hashlib import blake2b
from random import Random
from typing import Any, Final, NamedTuple, Self

from aloader.options import KIB, MIB
from aloader.testing.latency import Latency as Latency
from aloader.testing.latency import check_not_negative, check_rate


class Fault(StrEnum):
    """What can go wrong with a request. At most one does."""

    STALLED = "stalled"  # nothing comes for a while, before the first byte or in the midst of the body
    SERVER_ERROR = "server_error"  # 500 InternalError or 503 ServiceUnavailable
    SLOW_DOWN = "slow_down"  # 503 SlowDown
    RESET = "reset"  # the connection is reset in the midst of the body
    TRUNCATED = "truncated"  # the connection is closed in the midst of the body
    WRONG_LENGTH = "wrong_length"  # a few bytes too few or too many, with a Content-Length that agrees with them
    FLIPPED = "flipped"  # one bit of the body is another
    EXPIRED = "expired"  # 403 ExpiredToken
    REFUSED = "refused"  # no connection comes about
    LORIS = "loris"  # the body comes at `LORIS_RATE`
    NOT_FOUND = "not_found"  # 404 NoSuchKey, although the object is there
    NOT_SATISFIABLE = "not_satisfiable"  # 416 InvalidRange, although the range is right
    MOVED = "moved"  # 301 PermanentRedirect to another region


#: Faults with a rate of their own, in the order in which they share out a drawn number. `EXPIRED` goes by time.
DRAWN: Final = tuple(fault for fault in Fault if fault is not Fault.EXPIRED)

#: Bytes per second of a slow-loris answer.
LORIS_RATE: Final = float(KIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How a store misbehaves. Without arguments it does not.

    **Rates** are shares of the requests, from 0 to 1, together at most 1; see `Fault` for what each means.

    **Times.** `latency`; `stall` is the shortest and the longest stall in seconds; `bandwidth` is bytes per second of
    one connection (0: no limit), of which each answer gets between 1 - `bandwidth_spread` and 1 + `bandwidth_spread`.

    **By the clock.** `throttle` is requests per second (0: any number) that a bucket of `burst` tokens lets through;
    the others are told to slow down. Credentials that are in use `expired_at` seconds after the start are refused from
    then on for `expired_for` seconds, or until other ones are used.
    """

    latency: Latency = field(default=Latency())
    stalled: float = 0.0
    server_error: float = 0.0
    slow_down: float = 0.0
    reset: float = 0.0
    truncated: float = 0.0
    wrong_length: float = 0.0
    flipped: float = 0.0
    refused: float = 0.0
    loris: float = 0.0
    not_found: float = 0.0
    not_satisfiable: float = 0.0
    moved: float = 0.0
    stall: tuple[float, float] = (2.0, 10.0)
    bandwidth: float = 0.0
    bandwidth_spread: float = 0.3
    throttle: float = 0.0
    burst: int = 100
    expired_at: float | None = None
    expired_for: float = math.inf

    def __post_init__(self) -> None:
        for fault in DRAWN:
            check_rate("Faults", fault, getattr(self, fault))
        if self.total > 1.0 + 1e-9:
            raise ValueError(f"the rates of Faults are shares of the requests: together at most 1, got {self.total:g}")
        for name in ("bandwidth", "throttle"):
            check_not_negative("Faults", name, getattr(self, name))
        check_rate("Faults", "bandwidth_spread", self.bandwidth_spread)

    def __repr__(self) -> str:
        """Only what is not at its default."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return f"Faults({', '.join(f'{each.name}={value!r}' for each, value in values if value != each.default)})"

    @classmethod
    def preset(cls, name: str) -> Faults:
        """What is to be expected of "express", "standard", "cross-region", "gcs", "nfs", or "none": the latencies of
        that name, and of object stores some faults, each with one request of a thousand at most."""
        latency = Latency.preset(name)
        if name in ("none", "nfs"):
            return cls(latency=latency)
        return cls(
            latency=latency, stalled=0.001, server_error=0.001, reset=0.0005, bandwidth=55.0 * MIB, throttle=5500.0
        )

    @property
    def total(self) -> float:
        """The share of requests that something goes wrong with, but for what the clock decides."""
        return math.fsum(getattr(self, name) for name in DRAWN)

    def times(self, factor: float) -> Self:
        """With faults and slow requests `factor` times as often; together still at most all requests."""
        most = factor if self.total * factor <= 1.0 else 1.0 / self.total
        rates: dict[str, Any] = {name.value: getattr(self, name) * most for name in DRAWN}
        return replace(self, latency=self.latency.times(factor), **rates)

    def scaled(self, factor: float) -> Self:
        """With all times multiplied by `factor`: with 0.01, everything goes a hundred times faster, limits included."""
        return replace(
            self,
            latency=self.latency.scaled(factor),
            stall=(self.stall[0] * factor, self.stall[1] * factor),
            bandwidth=self.bandwidth / factor,
            throttle=self.throttle / factor,
            expired_at=None if self.expired_at is None else self.expired_at * factor,
            expired_for=self.expired_for * factor,
        )

    def expires(self, now: float) -> bool:
        """Whether the credentials that were there at the start are refused, `now` seconds after it."""
        return self.expired_at is not None and self.expired_at <= now < self.expired_at + self.expired_for


class Plan(NamedTuple):
    """What happens to one request."""

    delay: float = 0.0  # seconds until the first byte
    fault: Fault | None = None
    at: float = 1.0  # where in the body it happens, as a share of its length
    pause: float = 0.0  # seconds of nothing there; a stall before the first byte is part of `delay`
    rate: float = 0.0  # bytes per second of the body; 0: as fast as it goes
    odd: int = 0  # of what kind there is more than one: which bit is flipped, 500 or 503, by how many bytes

    @property
    def wrong_by(self) -> int:
        """Bytes too few (below 0) or too many, of `WRONG_LENGTH`."""
        return (self.odd % 4 + 1) * (-1 if self.odd < 4 else 1)

    def spoilt(self, data: bytes | memoryview) -> bytes | memoryview:
        """The body as it comes."""
        match self.fault:
            case Fault.FLIPPED if len(data):
                changed = bytearray(data)
                changed[min(int(len(data) * self.at), len(data) - 1)] ^= 1 << self.odd
                return bytes(changed)
            case Fault.WRONG_LENGTH if self.wrong_by < 0:
                return data[: self.wrong_by]
            case Fault.WRONG_LENGTH:
                return bytes(data) + bytes(self.wrong_by)
            case _:
                return data


NOTHING: Final = Plan()


class Plans:
    """Decides what happens to each request. Counts how often each was made."""

    def __init__(self, faults: Faults, seed: int = 0) -> None:
        self.faults = faults
        self._seed = seed
        self._times: Counter[tuple[str, int, int | None]] = Counter()
        still = not (faults.total or faults.bandwidth or faults.latency.slow)
        self._calm = still and faults.latency.median == faults.latency.floor == 0.0

    def next(self, key: str, start: int = 0, stop: int | None = None) -> Plan:
        """The plan for the next request for these bytes."""
        if self._calm:
            return NOTHING
        asked = (key, start, stop)
        self._times[asked] = number = self._times[asked] + 1
        return plan(self.faults, _generator(self._seed, *asked, number))


def plan(faults: Faults, random: Random) -> Plan:
    """What happens to a request, by a generator of its own. Always as many numbers of it, in the same order."""
    delay = faults.latency.draw(random)
    drawn, at, stall, share = random.random(), random.random(), random.random(), random.random()
    odd = random.getrandbits(3)
    rate = faults.bandwidth * (1.0 + faults.bandwidth_spread * (2.0 * share - 1.0))
    fault = next((fault for fault, limit in _cumulated(faults) if drawn < limit), None) if faults.total else None
    pause = 0.0
    if fault is Fault.STALLED:
        shortest, longest = faults.stall
        pause = shortest + (longest - shortest) * stall
        if odd < 4:
            delay, pause, at = delay + pause, 0.0, 1.0
    elif fault is Fault.LORIS:
        rate = LORIS_RATE
    return Plan(delay, fault, at, pause, rate, odd)


class Bucket:
    """Tokens that come back at `rate` per second, `burst` of them at most. `rate` 0: there are always some."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = self._left = float(burst)
        self._then = 0.0

    def take(self, now: float) -> bool:
        """Whether there was one left."""
        if not self._rate:
            return True
        self._left = min(self._burst, self._left + max(0.0, now - self._then) * self._rate)
        self._then = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def _cumulated(faults: Faults) -> Iterator[tuple[Fault, float]]:
    limit = 0.0
    for fault in DRAWN:
        limit += getattr(faults, fault)
        yield fault, limit


def _generator(seed: int, key: str, start: int, stop: int | None, number: int) -> Random:
    text = f"{seed} {start} {stop} {number} {key}"
    return Random(int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()))
