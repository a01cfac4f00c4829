"""How many samples of an epoch may fail, and what its user is told of those that have.

Batches are counted in the order in which the user gets them, so what becomes of an epoch follows from its data alone.
Nothing is said while counting, which may be done in a callback of the user's loop: texts wait for `warn`.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from aloader.channel.blame import hint, named, shortly
from aloader.channel.faults import brief, unpack_fault
from aloader.channel.messages import LeftOut
from aloader.errors import SampleError, SampleWarning

#: What a fraction allows for beside its part of what has been seen, where the length of the epoch is not known.
SPARE: Final = 10

_DONE: Final = {
    "skip": 'on_error="skip": another sample of its batch comes in its place',
    "drop": 'on_error="drop": its batch comes without it',
    "call": "on_error: the function was asked what to take instead",
}


class Place(NamedTuple):
    """A batch: its place in the epoch, what the sampler gave for it (None of an iterable dataset), and the slot of the
    worker that made it."""

    seq: int
    indices: Any
    batched: bool
    iterable: bool
    worker: int | None = None

    def index_at(self, position: int) -> Any:
        """A sample's index. Raises LookupError where it has none."""
        if self.iterable:
            raise LookupError(position)
        return named(self.indices, position, self.batched)

    def name(self, position: int) -> Any:
        """What a sample is called: by its index; where it has none by its position."""
        try:
            return self.index_at(position)
        except LookupError:
            return position

    def names(self, left_out: Iterable[LeftOut]) -> tuple[Any, ...]:
        """What those that failed are called."""
        return tuple(self.name(one.position) for one in left_out)


class Tolerance:
    """Of one epoch. `on_error` is "skip", "drop" or "call"; `most` as `max_errors`; `total` the epoch's samples, where
    that is known, and `share` those of a batch, where the sampler does not say them; `epoch` its number."""

    def __init__(
        self, on_error: str, most: int | float | None = None, total: int | None = None, share: int = 1, epoch: int = 1
    ) -> None:
        self.failed = 0
        self._share = share
        self._epoch = epoch
        self._on_error = on_error
        self._most = most
        self._total = total
        self._seen = 0
        self._told: dict[str, int] = {}  # how often each type of error came
        self._texts: deque[str] = deque()
        self._ended = False

    def count(self, place: Place, left_out: Iterable[LeftOut]) -> SampleError | None:
        """The next batch, of whose samples these have failed. What is to be raised in its place, if these are too
        many."""
        self._seen += len(place.indices) if place.batched and hasattr(place.indices, "__len__") else self._share
        beyond: SampleError | None = None
        for position, fault in left_out:
            error = unpack_fault(fault) if isinstance(fault, bytes) else fault
            self.failed += 1
            self._tell(place, position, error)
            if beyond is None and self._most is not None and self.failed > self._allowed(self._most):
                beyond = self._error(place, position, error)
        return beyond

    def _allowed(self, most: int | float) -> float:
        if isinstance(most, int) or most == 0:
            return most
        return most * self._seen + SPARE if self._total is None else most * self._total

    def _tell(self, place: Place, position: int, error: BaseException) -> None:
        """The first of each type."""
        kind = type(error).__name__
        self._told[kind] = self._told.get(kind, 0) + 1
        if self._told[kind] == 1:
            what, again = _where(place, position)
            self._texts.append(
                f"In epoch {self._epoch}, {what} failed: {brief(error)}\n{_DONE[self._on_error]}. More {kind} of this "
                f"epoch are counted, and their number is told at its end.{again}"
            )

    def _error(self, place: Place, position: int, error: BaseException) -> SampleError:
        what, again = _where(place, position)
        allows = f"max_errors={self._most}" + (f" ({self._allowed(self._most):g})" if type(self._most) is float else "")
        raised = SampleError(
            f"{self.failed} samples of this epoch have failed, and {allows} allows for no more; this one is {what}: "
            f"{brief(error)}\nIterating further is possible; or raise max_errors, which is None by default.{again}",
            index=place.name(position),
            batch=place.seq,
            worker=-1 if place.worker is None else place.worker,
        )
        raised.__cause__ = error
        return raised

    def end(self) -> None:
        """The epoch has come to its end: tell how many there were, if more than were told of."""
        if self.failed > len(self._told) and not self._ended:
            kinds = ", ".join(f"{times} {kind}" for kind, times in self._told.items())
            done = _DONE[self._on_error]
            self._texts.append(f"In epoch {self._epoch}, {self.failed} samples failed ({kinds}). {done}")
        self._ended = True

    def warn(self) -> None:
        """Pass on what there is to tell, in a step of the user's. Where they make warnings errors, one at a time."""
        while self._texts:
            warnings.warn(self._texts.popleft(), SampleWarning, stacklevel=2)


def _where(place: Place, position: int) -> tuple[str, str]:
    """Which sample it is, in words, and how to fetch it again."""
    try:
        index = place.index_at(position)
    except LookupError:
        return f"the sample at position {position} of batch {place.seq}", ""
    return f"sample {shortly(index)} of batch {place.seq}", hint(index)
