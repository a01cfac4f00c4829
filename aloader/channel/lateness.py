"""The error for a sample that has taken too long, in words: whoever has noticed it."""

from __future__ import annotations

from typing import Any, Final

from aloader.channel.offender import safe_repr
from aloader.errors import SampleTimeout

_REMEDY: Final = (
    'Raise sample_timeout= if such samples are worth waiting for, or give on_error="skip" or "drop" to go on without '
    "them."
)


def sample_timeout(
    index: Any, seconds: float, stack: str, *, batch: int = -1, worker: int = -1, together: int = 0
) -> SampleTimeout:
    """`stack`: where it stands, or what is known instead, in lines. `together`: how many samples one call was for."""
    what = f"sample {safe_repr(index)}" if index is not None else "a sample"
    if together:
        what = f"a call for {together} samples"
    place = f" (batch {batch}, worker {worker})" if batch >= 0 else ""
    limit = f"{seconds:g} s" + (f" = {together} × sample_timeout" if together else ", its sample_timeout")
    lines = [f"{what}{place} has taken longer than {limit}.", *([stack] if stack else ()), _REMEDY]
    return SampleTimeout("\n".join(lines), index=index, batch=batch, worker=worker, stack=stack)
