"""What the dispatcher has let go and the user has not taken yet, in its order, where samples of it may have failed.

These are counted as it comes. What was omitted has its place there too: it is known as had once the user has something
behind it, as what failed is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple, Protocol

from aloader.channel.faults import pack_fault
from aloader.channel.messages import LeftOut
from aloader.channel.record import Record
from aloader.channel.tolerance import Place, Tolerance
from aloader.engine.events import Deliver, Omit, Raise
from aloader.stats import EpochCounts


class Unpackable(Protocol):
    """A finished batch, as the user will get it.

    `unpack` is called until it returns, as it may be interrupted. Dropping it before gives up what it holds.
    """

    mark: bytes | None
    left_out: tuple[LeftOut, ...]

    def unpack(self) -> Any: ...


class Source(Protocol):
    """What is drawn from: raises StopIteration at the end."""

    def draw(self) -> Any: ...


class Lost(NamedTuple):
    """Of a ticket that came to nothing (`Omit.what`): as a batch says it."""

    mark: bytes | None
    left_out: tuple[LeftOut, ...]
    slot: int


class Books(Protocol):
    """What an epoch notes of its tickets, by seq."""

    record: Record
    counts: EpochCounts
    _crew: Any
    _indices: dict[int, Any]
    _slots: dict[int, int]
    _shares: bool


class Outcomes(deque[Any]):
    """See the top of this file: of `Deliver` and `Raise`; what is omitted is never the first."""

    def __init__(self, tolerance: Tolerance, books: Books) -> None:
        super().__init__()
        self.left_out: tuple[Any, ...] = ()  # what failed in the batch that was taken last, by its names
        self._tolerance = tolerance
        self._record, self._counts = books.record, books.counts
        self._indices, self._slots = books._indices, books._slots
        self._kind = books._crew.who.auto_collation, books._shares
        self._failed: dict[int, int] = {}  # how many had in all, by the seqs of batches
        self._behind: list[Omit] = []  # behind what was taken last
        self._before: list[Omit] = []  # before that, and behind what the user has had

    def deliver(self, outcome: Deliver) -> None:
        """The next batch; or an error in its place."""
        error = self._count(outcome.seq, outcome.batch.left_out)  # type: ignore[attr-defined]
        self.append(outcome if error is None else Raise(outcome.seq, error))

    def omit(self, outcome: Omit) -> bool:
        """The next one came to nothing. False if there is an error to be raised in its place."""
        assert isinstance(outcome.what, Lost)
        error = self._count(outcome.seq, outcome.what.left_out)
        if error is not None:
            self.append(Raise(outcome.seq, error))
            return False
        self._indices.pop(outcome.seq, None)
        self._slots.pop(outcome.seq, None)
        (self if self else self._behind).append(outcome)
        return True

    def _count(self, seq: int, left_out: tuple[LeftOut, ...]) -> Exception | None:
        place = Place(self._record.number_of(seq), self._indices.get(seq), *self._kind, self._slots.get(seq))
        error = self._tolerance.count(place, left_out)
        self._failed[seq] = self._tolerance.failed
        return error

    def popleft(self) -> Deliver | Raise:
        """The one that is next."""
        outcome: Deliver | Raise = super().popleft()
        self._before += self._behind
        self._behind = []
        while self and isinstance(self[0], Omit):
            self._behind.append(super().popleft())
        return outcome

    def taken(self, outcome: Deliver | Raise, what: tuple[int, Any, int | None], *, given: bool) -> None:
        """The user has it. `what` is its number, its indices and its worker's slot; `given`: it is no error."""
        seq, indices, slot = what
        left_out = outcome.batch.left_out if isinstance(outcome, Deliver) else ()  # type: ignore[attr-defined]
        self.left_out = Place(seq, indices, *self._kind, slot).names(left_out)
        self._counts.samples_failed = self._failed.pop(outcome.seq, self._counts.samples_failed)
        if given:
            self._had(self._before)

    def _had(self, omitted: list[Omit]) -> None:
        for seq, what in omitted:
            self._failed.pop(seq, None)
            assert isinstance(what, Lost)
            self._record.gave(seq, what.slot, what.mark)
        omitted.clear()

    def tell(self, *, at_end: bool) -> None:
        """In the consumer's step: pass on what there is to say."""
        if at_end:
            self._had(self._before)
            self._had(self._behind)
            self._counts.samples_failed = self._tolerance.failed
            self._tolerance.end()
        self._tolerance.warn()


def unpacked(outcome: Deliver) -> Any:
    """The batch. What unpickling it raises is an error at its place: not the epoch's end, nor a cancellation."""
    try:
        return outcome.batch.unpack()  # type: ignore[attr-defined]
    except (StopIteration, StopAsyncIteration, asyncio.CancelledError) as error:
        raise RuntimeError(f"unpickling batch {outcome.seq} raised {type(error).__name__}") from error
    except Exception as error:
        error.add_note(f"while batch {outcome.seq} was unpickled in the main process")
        raise


def packed(error: object) -> bytes:
    """The error that stands for a sample which is not fetched any more."""
    assert isinstance(error, BaseException)
    return pack_fault(error, "the main process")
