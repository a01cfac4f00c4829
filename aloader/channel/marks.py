"""What a dataset has said of itself behind a ticket, on its way to the parent; and where a worker goes on, on its way
back. Between the two, a state holds it as JSON: nothing of a state is ever unpickled.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

from aloader.channel.faults import pack_fault, unpack_fault


class Mark(NamedTuple):
    """The states of a dataset and of the iterator that it has made (None: it has none), how many samples of its share a
    worker had read by then, and whether that was all of them. `before`: this is from the end of the pass before, and
    what they have counted and drawn there goes on in this one."""

    dataset: Any = None
    iterator: Any = None
    position: int = 0
    ended: bool = False
    before: bool = False

    def carried(self) -> Mark:
        """What of it goes on in the pass after. (An iterator that was left in the midst of one is not asked there.)"""
        return Mark(self.dataset, self.iterator if self.ended or self.before else None, before=True)


class Resume(NamedTuple):
    """Where a worker goes on: what its dataset is told, and which tickets of its share the user has had.

    Tickets are numbered as the worker gets them, from 0 in an epoch. The first one read again is `reads_from`; those
    below `low` and in `beyond` are read and dropped.
    """

    mark: Mark | None
    reads_from: int = 0
    low: int = 0
    beyond: tuple[int, ...] = ()

    def was_given(self, number: int) -> bool:
        """Whether the user has had this ticket."""
        return number < self.low or number in self.beyond


def is_stateful(one: Any) -> bool:
    """Whether somebody can be asked for their state, and given it back."""
    return callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))


def pack_mark(mark: Mark | BaseException, worker: str = "the main process") -> bytes:
    """A mark, or why there is none, as bytes: what the dataset changes later does not change it."""
    if isinstance(mark, Mark):
        try:
            return pickle.dumps(mark, 5)
        except Exception as error:
            mark = error
    return pickle.dumps(pack_fault(mark, worker, "in the dataset's state_dict"), 5)


def unpack_mark(packed: bytes) -> Mark:
    """The mark. Raises what the dataset raised when it was asked."""
    mark = pickle.loads(packed)
    if isinstance(mark, Mark):
        return mark
    raise unpack_fault(mark)
