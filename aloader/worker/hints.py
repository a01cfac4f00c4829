"""What a user may do about a sample that failed, in one line."""

from __future__ import annotations

from typing import Final

from aloader.channel.offender import safe_repr

_MOST_REPR: Final = 60


def hint(index: object) -> str:
    """How to fetch a sample again, as a line to follow a note; empty where its index cannot be written down."""
    text = safe_repr(index, _MOST_REPR + 1)
    if len(text) > _MOST_REPR or text.startswith("<"):
        return ""
    return f"\nTo fetch it again in this process: loader.replay({text})"
