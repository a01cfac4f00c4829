"""How many tickets may be drawn and not yet consumed. Integers only."""

from __future__ import annotations


class Window:
    """Counts what is outstanding: drawn and not consumed, or asked of the sampler and not answered yet.

    The wide window is in force only while that many batches of the latest size stay under `wide_bytes`; until a size is
    known, and beyond, the narrow one bounds peak memory.
    """

    __slots__ = ("_narrow", "_wide", "_wide_bytes", "outstanding", "pending", "size")

    def __init__(self, narrow: int, wide: int, wide_bytes: int) -> None:
        self._narrow = narrow
        self._wide = wide
        self._wide_bytes = wide_bytes
        self.size = narrow
        self.outstanding = 0
        self.pending = 0  # the part of it that the sampler still owes

    def learn(self, nbytes: int) -> None:
        """The latest batch took `nbytes`."""
        self.size = self._wide if nbytes * self._wide <= self._wide_bytes else self._narrow

    def ask(self) -> int:
        """How many to draw now; they count from now on."""
        count = self.size - self.outstanding
        if count <= 0:
            return 0
        self.outstanding += count
        self.pending += count
        return count

    def exhaust(self) -> None:
        """The sampler owes nothing any more."""
        self.outstanding -= self.pending
        self.pending = 0
