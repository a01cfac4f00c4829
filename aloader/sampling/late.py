"""A source that is made when it is first needed: making it may draw from the global generators, and torch does that
with the first batch where nothing is drawn ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LateSource:
    """A source from `make`. As an iterator, it gives its tickets, and calls `at_end` behind them."""

    heavy = False

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._source: Any = None
        self._prepared = False
        self.at_end: Callable[[], object] = lambda: None

    @property
    def _made(self) -> Any:
        if self._source is None:
            self._source = self._make()
        return self._source

    def prepare(self) -> None:
        """Nothing is made before the first draw."""

    def draw(self) -> Any:
        """The next ticket's indices. Raises StopIteration at the end, and whatever the sampler raises."""
        if not self._prepared:
            self._made.prepare()
            self._prepared = True
        return self._made.draw()

    def __iter__(self) -> LateSource:
        return self

    def __next__(self) -> Any:
        try:
            return self.draw()
        except StopIteration:
            self.at_end()
            raise

    @property
    def drawn(self) -> int:
        """Samples so far."""
        return int(self._made.drawn)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to draw."""
        return bool(self._made.exhausted)

    @property
    def first(self) -> int:
        """The number of its first ticket within the epoch."""
        return int(self._made.first)

    def state(self, batches: int) -> dict[str, Any]:
        """What another source goes on with behind so many tickets of the epoch."""
        state: dict[str, Any] = self._made.state(batches)
        return state
