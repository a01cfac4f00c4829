"""Which positions of an order are one rank's, and in which batches: arithmetic on numbers, and nothing else.

Ranks share an order in strides: of R ranks, rank r has the positions p + r, p + r + R, … from a position p that all of
them know. So when each has had k batches of b samples, exactly the first k × b × R positions after p are gone, and any
other number of ranks can go on from there.

Where the order does not come out even, all ranks have the same number of batches all the same, in one of three ways:

- `pad`: some ranks have one sample more, from the beginning of the order, as with torch's `DistributedSampler`.
- `drop`: what is left over, less than one sample for each rank, is left out.
- `even`: nothing is repeated or left out: the last batch of some ranks has one sample more than that of the others, so
  that it may have one more than the batch size. Only where there are fewer samples than ranks, the ranks without one
  have one from the beginning of the order, since a rank without a batch would keep the others waiting.
  Without batches, ranks have the samples that are theirs: some one more than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

Ends: TypeAlias = Literal["pad", "drop", "even"]

ENDS: Final = ("pad", "drop", "even")


@dataclass(frozen=True)
class Share:
    """One rank's part of what an order of `total` has from position `start` on. `batch_size` None: sample by sample."""

    total: int
    start: int = 0
    rank: int = 0
    world_size: int = 1
    ends: Ends = "pad"
    batch_size: int | None = None
    drop_last: bool = False

    @property
    def step(self) -> int:
        """How many positions all ranks use up with one ticket each."""
        return (self.batch_size or 1) * self.world_size

    @cached_property
    def tickets(self) -> int:
        """How many batches, or single samples, this rank has."""
        size = self.batch_size
        if size is None:
            return self._own
        if self.drop_last:
            return self._least // size
        if self.ends == "even":
            return max(1, -(-self._least // size)) if self._left else 0
        return -(-self._own // size)

    @cached_property
    def samples(self) -> int:
        """How many samples this rank has."""
        if self.batch_size is None:
            return self._own
        if self.drop_last:
            return self.tickets * self.batch_size
        return max(1, self._own) if self.tickets else 0

    def bounds(self, ticket: int) -> tuple[int, int]:
        """Which of this rank's samples are one ticket's: from, and up to (exclusive)."""
        size = self.batch_size or 1
        return ticket * size, self.samples if ticket == self.tickets - 1 else (ticket + 1) * size

    def position(self, sample: int) -> int:
        """Where in the order this rank's sample lies. At `total` and beyond, the order is meant to begin anew."""
        return self.start + self.rank + sample * self.world_size

    def after(self, tickets: int) -> int:
        """The position up to which all ranks have used the order up, after so many tickets of each.

        After the last one, nothing is left, whatever the end has left out or repeated.
        """
        if tickets >= max(1, self.tickets):
            return self.total
        return min(self.total, self.start + tickets * self.step)

    @property
    def _left(self) -> int:
        return max(0, self.total - self.start)

    @property
    def _least(self) -> int:
        """The samples of the rank that has the fewest."""
        return -(-self._left // self.world_size) if self.ends == "pad" else self._left // self.world_size

    @property
    def _own(self) -> int:
        if self.ends == "even":
            return max(0, -(-(self._left - self.rank) // self.world_size))
        return self._least
