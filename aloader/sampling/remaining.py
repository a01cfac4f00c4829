"""A source without the tickets that the user has had before their turn: what is left of a pass without order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class RemainingSource:
    """The tickets of a source but those with these numbers."""

    def __init__(self, source: Any, given: Iterable[int]) -> None:
        self._source = source
        self._given = frozenset(given)
        self._number = source.first
        self.heavy = source.heavy
        self.first = source.first

    def prepare(self) -> None:
        """Whatever takes time before the first draw."""
        self._source.prepare()

    def draw(self) -> Any:
        """The next ticket's indices that the user has not had. Raises StopIteration at the end."""
        while True:
            indices, number = self._source.draw(), self._number
            self._number += 1
            if number not in self._given:
                return indices

    @property
    def drawn(self) -> int:
        """Samples so far, with those that were left out."""
        return int(self._source.drawn)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to draw."""
        return bool(self._source.exhausted)

    def state(self, batches: int) -> dict[str, Any]:
        """What another source goes on with behind so many tickets of the epoch."""
        state: dict[str, Any] = self._source.state(batches)
        return state
