"""When a request that makes no progress is given up. Pure: the time is an argument.

Two things are given up: an answer of which nothing comes for `read_timeout` seconds, and one that comes, but slower
than `min_rate` bytes a second over `stall_after` seconds ("slow loris"; a connection over a broken path does the same).
The second rule holds from the first byte of the answer on: a server may think for as long as it does not dribble.

Somebody looks from time to time: whether anything has come is known only between two looks, so that what is called
silence here is never longer than what it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

#: Looks in the shorter of the two times, and the least time between them, in seconds.
LOOKS: Final = 4
SHORTEST: Final = 0.01


class Verdict(Enum):
    """What a look has found."""

    GOING = "going"
    SILENT = "silent"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is too long: seconds, and bytes a second."""

    read_timeout: float
    min_rate: float
    stall_after: float

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return max(SHORTEST, min(self.read_timeout, self.stall_after) / LOOKS)


class Progress:
    """How one request goes. `received` counts the bytes of its answer."""

    __slots__ = ("_changed", "_received", "_since", "_since_received")

    def __init__(self, now: float) -> None:
        self._received = 0
        self._changed = now  # no byte has come since
        self._since = now  # the rate is measured from here
        self._since_received = 0

    def look(self, now: float, received: int, patience: Patience) -> Verdict:
        """What to think of it now."""
        if received != self._received:
            if self._received == 0:
                self._since = now
                self._since_received = received
            self._received, self._changed = received, now
        elif now - self._changed >= patience.read_timeout:
            return Verdict.SILENT
        if received and now - self._since >= patience.stall_after:
            if received - self._since_received < patience.min_rate * (now - self._since):
                return Verdict.SLOW
            self._since, self._since_received = now, received
        return Verdict.GOING

    def excuse(self, seconds: float) -> None:
        """The event loop stood still for so long: whatever has come could not be taken."""
        self._changed += seconds
        self._since += seconds
