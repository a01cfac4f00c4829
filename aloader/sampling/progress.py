"""How far the user has come in an epoch: which tickets have been handed out. Integers only.

With order these are all below a mark; without, some beyond it as well. What failed is passed only once something behind
it has been handed out: a program that ends because of an error begins with what failed when it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable


class Progress:
    """Tickets that have been given, by number: all below `low`, and those in `beyond`."""

    __slots__ = ("_before", "_begun", "_failed", "_missing", "beyond", "low")

    def __init__(self, low: int = 0, beyond: Iterable[int] = ()) -> None:
        self.low = low
        self.beyond = set(beyond)
        self._begun = low
        self._before = len(self.beyond)
        self._missing = [number for number in range(low, max(self.beyond, default=low)) if number not in self.beyond]
        self._failed: set[int] = set()

    def number_of(self, at: int) -> int:
        """The number of the `at`-th of the tickets that had not been given in the beginning, counted from 0."""
        return self._missing[at] if at < len(self._missing) else self._begun + self._before + at

    def gave(self, number: int) -> None:
        """The user has this one."""
        if number == self.low and not self.beyond and not self._failed:
            self.low += 1
            return
        self.beyond.add(number)
        self.beyond |= self._failed
        self._failed.clear()
        while self.low in self.beyond:
            self.beyond.remove(self.low)
            self.low += 1

    def failed(self, number: int) -> None:
        """The user has its error instead."""
        self._failed.add(number)

    @property
    def has_failed(self) -> bool:
        """Whether the user had an error, and nothing since."""
        return bool(self._failed)

    def __repr__(self) -> str:
        return f"<Progress below {self.low}{f' and {sorted(self.beyond)}' if self.beyond else ''}>"
