"""How long stores take to answer: distributions of seconds, and what was measured of real ones. Nothing waits here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Final


def check_rate(owner: str, name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{owner}({name}=…) is a share, from 0 to 1: got {value!r}")


def check_not_negative(owner: str, name: str, value: float) -> None:
    if not value >= 0.0:
        raise ValueError(f"{owner}({name}=…) may not be negative: got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds until the first byte: log-normal around `median`, never less than `floor`.

    A share `slow` of the requests is drawn from a log-normal distribution of its own. A new connection costs
    `round_trip` more.
    """

    median: float = 0.0
    sigma: float = 0.0
    floor: float = 0.0
    slow: float = 0.0
    slow_median: float = 0.25
    slow_sigma: float = 0.7
    round_trip: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_not_negative("Latency", name, getattr(self, name))
        check_rate("Latency", "slow", self.slow)

    @classmethod
    def preset(cls, name: str) -> Latency:
        """Of "express", "standard", "cross-region" (S3), "gcs", "nfs", or "none"."""
        found = dict(LATENCIES).get(name)
        if found is None:
            raise ValueError(f"no preset {name!r}: there are {', '.join(repr(known) for known, _ in LATENCIES)}")
        return found

    def draw(self, random: Random) -> float:
        """The seconds of one request. Always two numbers of `random`."""
        which, normal = random.random(), random.gauss(0.0, 1.0)
        median, sigma = (self.slow_median, self.slow_sigma) if which < self.slow else (self.median, self.sigma)
        return max(self.floor, median * math.exp(sigma * normal))

    def times(self, factor: float) -> Latency:
        """With `factor` times as many slow ones."""
        return replace(self, slow=min(1.0, self.slow * factor))

    def scaled(self, factor: float) -> Latency:
        """With every time multiplied by `factor`."""
        times = {name: getattr(self, name) * factor for name in ("median", "floor", "slow_median", "round_trip")}
        return replace(self, **times)


#: First bytes as they were measured, from machines in the same region where nothing else is said. Round trips are
#: those of a new connection with TLS.
LATENCIES: Final = (
    ("none", Latency()),
    ("express", Latency(median=0.0025, sigma=0.57, floor=0.001, round_trip=0.001)),
    ("standard", Latency(median=0.027, sigma=0.62, floor=0.010, slow=0.01, round_trip=0.010)),
    (
        "cross-region",
        Latency(median=0.107, sigma=0.16, floor=0.090, slow=0.01, slow_median=0.33, slow_sigma=0.5, round_trip=0.090),
    ),
    ("gcs", Latency(median=0.2, sigma=0.30, floor=0.030, round_trip=0.030)),
    ("nfs", Latency(median=0.001, sigma=0.5, slow=0.001, slow_median=0.5, slow_sigma=0.0)),
)
