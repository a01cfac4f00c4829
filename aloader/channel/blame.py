"""Which sample of a ticket it was, in words, and what a user may do about it."""

from __future__ import annotations

import itertools
from typing import Any, Final

from aloader.channel.messages import Ticket
from aloader.channel.offender import safe_repr

_MOST_REPR: Final = 60
_MOST: Final = 200


def hint(index: object) -> str:
    """How to fetch a sample again, as a line to follow a note; empty where its index cannot be written down."""
    text = safe_repr(index, _MOST_REPR + 1)
    if len(text) > _MOST_REPR or text.startswith("<"):
        return ""
    return f"\nTo fetch it again in this process: loader.replay({text})"


def shortly(value: object) -> str:
    """Its repr, if that is not too long; else the beginning of it."""
    text = repr(value)
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"


def named(indices: Any, position: int, batched: bool) -> Any:
    """The index at a position of a ticket. Raises LookupError where it has none that is known: in an iterator, too."""
    if not batched:
        return indices
    if hasattr(type(indices), "__next__"):  # not ours to read
        raise LookupError(position)
    try:
        return next(itertools.islice(indices, position, None))  # torch takes any iterable: a set, a dict's keys
    except (StopIteration, TypeError):
        raise LookupError(position) from None


def blame(ticket: Ticket, position: int, batched: bool, iterable: bool = False) -> str:
    """Which sample of a ticket it was, in words."""
    if iterable:
        return f"while reading the sample at position {max(0, position)} of batch {ticket.seq}"
    if position < 0:
        return f"while fetching samples {shortly(ticket.indices)} of batch {ticket.seq} together"
    try:
        index = named(ticket.indices, position, batched)
    except LookupError:
        return f"while fetching the sample at position {position} of batch {ticket.seq}"
    return f"while fetching sample {shortly(index)} of batch {ticket.seq}{hint(index)}"
