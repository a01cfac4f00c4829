"""Samples that are at hand: taken where others are begun as tasks.

A dataset may have a method `at_hand(index)` beside its `__getitem__`, which gives the sample if that takes no waiting
(its file lies in memory), and `ELSEWHERE` if it does. Only where the loop is the worker's own, which may stand still
for as long as copying takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from torch.utils.data import Subset

from aloader.datasets.elsewhere import ELSEWHERE

Take = Callable[[Any], Any]

#: Seconds after which others have their turn.
TURN: Final = 0.005


def taker(dataset: Any) -> Take | None:
    """How its samples are taken, if they may be at hand; through torch's `Subset`."""
    if type(dataset) is Subset:
        inner = taker(dataset.dataset)
        return None if inner is None else lambda index: inner(dataset.indices[index])
    take: Take | None = getattr(dataset, "at_hand", None) if hasattr(type(dataset), "at_hand") else None
    return take


class Taken:
    """The samples of one ticket, some of which are there."""

    def __init__(self, indices: list[Any], *, errors: bool = True) -> None:
        """Without `errors`, samples that fail are left to whoever fetches the missing ones."""
        self.samples: list[Any] = [ELSEWHERE] * len(indices)
        self.indices = indices
        self._errors = errors
        self.position = -1  # of the one that was taken last, or is being taken

    async def take(self, take: Take, note: Callable[[int], None]) -> None:
        """Those that are at hand. Raises what the dataset raises, for the one at `position`."""
        began = time.perf_counter()
        for place, index in enumerate(self.indices):
            self.position = place
            note(place)
            try:
                self.samples[place] = take(index)
            except Exception:
                if self._errors:
                    raise
            if time.perf_counter() - began > TURN:
                await asyncio.sleep(0)
                began = time.perf_counter()

    @property
    def missing(self) -> list[int]:
        """The positions of the others."""
        return [place for place, sample in enumerate(self.samples) if sample is ELSEWHERE]
