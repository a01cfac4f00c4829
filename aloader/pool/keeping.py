"""A program that keeps more of its batches than `memory_limit`: it is told so once, and who holds what.

The memory under a batch goes back to its worker when the last tensor on it has gone. What the program keeps is its own
affair, and does not count as the loader's; but it is easily kept without being meant (a list of outputs, a closure, a
graph), and then every batch takes new memory. Looked at in the consumer's steps, once a second at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from aloader import options
from aloader.pool.holders import Holder, Span, holders

#: So many batches are in anybody's hands: the one before, and the one that is being worked on.
_IN_HAND: Final = 2
_MOST_NAMED: Final = 3


class Kept(NamedTuple):
    """A leaf that the program keeps: its bytes, the batch (epoch and seq), and when that arrived."""

    nbytes: int
    batch: tuple[int, int]
    arrived: float


class Excess:
    """Whether a loader's user has kept too much for too long. Says so once in the loader's life."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.told = False
        self._since = math.inf

    def look(self, kept: Iterable[Kept], now: float) -> bool:
        """Whether to tell now."""
        leaves = list(kept)
        too_much = sum(leaf.nbytes for leaf in leaves) > self.limit
        if self.told or not too_much or len({leaf.batch for leaf in leaves}) <= _IN_HAND:
            self._since = math.inf
            return False
        self._since = min(self._since, now)
        self.told = now - self._since >= options.KEEPING_GRACE
        return self.told


class Keeping:
    """Looks at what is kept of a crew's batches while one of its epochs is under way."""

    def __init__(self, crew: Any, epoch: Any, excess: Excess, warn: Callable[[str], None]) -> None:
        self._crew = crew
        self._epoch = epoch
        self._excess = excess
        self._warn = warn
        self.next = 0.0 if not excess.told else math.inf  # when to look again, on the drivers' clock

    def look(self, now: float) -> None:
        """Count, and tell what there is to tell."""
        self.next = now + options.KEEPING_PACE
        memory, clock = [worker.mappings for worker in self._crew.latest.values()], time.monotonic()
        if sum(mappings.nbytes for mappings in memory) <= self._excess.limit:
            self._excess.look((), clock)  # without counting what may be many thousand leaves
            return
        leases = [lease for mappings in memory for lease in mappings.held()]
        leases = [lease for lease in leases if self._epoch.ticket(*lease.batch[:2]) is None]
        kept = [Kept(lease.place.nbytes, lease.batch[:2], lease.batch[2]) for lease in leases]
        if not self._excess.look(kept, clock):
            return
        self.next = math.inf
        owners = [owner for lease in leases if (owner := lease()) is not None]
        spans = [Span(owner.__array_interface__["data"][0], owner.nbytes) for owner in owners]
        del owners
        self._warn(in_words(kept, holders(spans), self._excess.limit, clock))


def in_words(kept: list[Kept], named: list[Holder], limit: int, now: float) -> str:
    """What is kept, and by whom."""
    batches = {leaf.batch for leaf in kept}
    nbytes, oldest = sum(leaf.nbytes for leaf in kept), now - min(leaf.arrived for leaf in kept)
    text = (
        f"the program keeps {_megabytes(nbytes)} of batches that it was given: {len(kept)} tensors of {len(batches)} "
        f"batches, the oldest for {oldest:.0f} s. That is more than memory_limit ({_megabytes(limit)}) and not counted "
        "by it: their memory cannot be used again, and each further batch takes more."
    )
    lines = [text, *(f"  {one.name}: {_megabytes(one.nbytes)} (such as {one.largest})" for one in named[:_MOST_NAMED])]
    missing = nbytes - sum(one.nbytes for one in named)
    if not named or missing > nbytes // 4:
        lines.append(
            f"  {_megabytes(missing)} by none of the variables that were looked at: a closure, or the graph of an "
            "output or loss that is kept, which keeps what it was computed from?"
        )
    lines.append("Keep a .clone() of the part that is needed, or .detach(), .item(); or give memory_limit= more.")
    return "\n".join(lines)


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
