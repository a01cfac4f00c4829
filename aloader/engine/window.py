"""How many tickets may be drawn and not yet consumed. Integers only."""

from __future__ import annotations


class Window:
    """Counts what is outstanding: drawn and not consumed, or asked of the sampler and not answered yet.

    The wide window is in force only while that many batches of the latest size stay under `wide_bytes`; until a size is
    known, and beyond, the narrow one bounds peak memory.

    Batches that are *blocked*, since one before them is late, do not count, as long as no more than `far` are
    outstanding in all: the consumer waits, and what is late must not keep the workers waiting too. While it does not
    wait, nothing is blocked, and no memory is taken for that. Only while `far` batches stay under `far_bytes`.
    """

    __slots__ = (
        "_far",
        "_far_bytes",
        "_farthest",
        "_halved",
        "_narrow",
        "_wide",
        "_wide_bytes",
        "outstanding",
        "pending",
        "size",
    )

    def __init__(self, narrow: int, wide: int, far: int, wide_bytes: int, far_bytes: int) -> None:
        self._narrow = narrow
        self._wide = wide
        self._far = far
        self._wide_bytes = wide_bytes
        self._far_bytes = far_bytes
        self._farthest = 0
        self._halved = False
        self.size = narrow
        self.outstanding = 0
        self.pending = 0  # the part of it that the sampler still owes

    def learn(self, nbytes: int) -> None:
        """The latest batch took `nbytes`."""
        self.size = self._wide if nbytes * self._wide <= self._wide_bytes else self._narrow
        self._farthest = self._far if nbytes * self._far <= self._far_bytes else 0

    def halve(self) -> None:
        """Memory is short: half as much from now on, however often this is said."""
        if self._halved:
            return
        self._halved = True
        self._narrow, self._wide, self.size = (max(1, bound // 2) for bound in (self._narrow, self._wide, self.size))
        self._far, self._farthest = self._far // 2, self._farthest // 2

    def bound(self, blocked: int) -> int:
        """How many may be outstanding while so many are blocked."""
        return max(self.size, min(self.size + blocked, self._farthest))

    def ask(self, blocked: int) -> int:
        """How many to draw now; they count from now on."""
        count = self.bound(blocked) - self.outstanding
        if count <= 0:
            return 0
        self.outstanding += count
        self.pending += count
        return count

    def exhaust(self) -> None:
        """The sampler owes nothing any more."""
        self.outstanding -= self.pending
        self.pending = 0
