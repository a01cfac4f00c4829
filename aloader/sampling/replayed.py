"""Tickets from samplers whose order is only had by drawing it: from their own iterator, one after the other.

A pass is taken up again by beginning an iterator as it was noted, and dropping what it gives up to the place. What had
to be noted for that, a *memory* knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from torch.utils.data import BatchSampler

from aloader.sampling.memories import Memory, Place, Plain, memory_of
from aloader.sampling.passes import Watched

#: Tickets that may be drawn and dropped in a step of a loop. More are in a thread, where that can be.
AT_ONCE: Final = 256


class SamplerSource:
    """The tickets that a sampler's iterator gives. `size`: samples of each, where all but the last have as many; None:
    they are single samples, or the user's own batches."""

    def __init__(
        self,
        iterator: Iterator[Any],
        size: int | None = None,
        memory: Memory | None = None,
        place: Place | None = None,
    ) -> None:
        self._watch = iterator if isinstance(iterator, Watched) else None
        self._iterator = iterator if self._watch is None else self._watch.iterator
        self._size = size
        self._memory = Plain() if memory is None else memory
        self._tickets, self.drawn, self._skip = Place() if place is None else place  # `drawn` counts samples
        self.first = self._tickets + self._skip
        self.heavy = self._skip > AT_ONCE
        self.exhausted = False
        self._begun = False
        self._short = False  # the last ticket was, so that the sampler has come to its end
        self._error: Exception | None = None

    def prepare(self) -> None:
        """Come to the place where the pass is taken up, if that takes time. May run in a thread."""
        if self.heavy:
            try:
                self._come_to_place()
            except Exception as error:  # the sampler's own: raised in the place of what it should have given
                self._error = error

    def draw(self) -> Any:
        """The next ticket's indices. Raises StopIteration at the end, and whatever the sampler raises."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._come_to_place()
        return self._next()

    def state(self, batches: int) -> dict[str, Any]:
        """What goes on after the epoch's first so many tickets. JSON can hold it."""
        self._begin()
        if not self._skip:  # else a thread may be on its way to the place, and nothing new can be noted
            self._memory.mark(self._tickets, self.drawn, ended=self.exhausted or self._short)
        place, note = self._memory.state(batches)
        return {"kind": self._memory.kind, "batches": batches, **place._asdict(), **note}

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._iterator = self._memory.begin(self._iterator)

    def _come_to_place(self) -> None:
        self._begin()
        while self._skip:
            self._next()
            self._skip -= 1

    def _next(self) -> Any:
        if self._watch is not None:
            self._watch.began()
        try:
            indices = next(self._iterator)
        except StopIteration:
            self.exhausted = True
            if self._watch is not None:
                self._watch.ended()
            raise
        self._tickets += 1
        self._short = self._size is not None and len(indices) < self._size
        self.drawn += 1 if self._size is None else len(indices)
        if self._tickets == 1:
            self._memory.mark(1, self.drawn, ended=self._short)
        return indices


def replayed_source(sampler: Any, iterator: Iterator[Any], state: dict[str, Any] | None) -> SamplerSource:
    """The source for any sampler, from its beginning or from a state on."""
    size = sampler.batch_size if type(sampler) is BatchSampler else None
    raw = iterator.iterator if isinstance(iterator, Watched) else iterator
    memory = memory_of(sampler, raw)
    if state is None:
        return SamplerSource(iterator, size, memory)
    raw = memory.resume(state, raw)
    if isinstance(iterator, Watched):
        iterator.iterator, iterator.resumed = raw, True
    else:
        iterator = raw
    return SamplerSource(iterator, size, memory, Place(state["tickets"], state["samples"], state["skip"]))
