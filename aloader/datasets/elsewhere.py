"""What a dataset's `at_hand` gives for a sample that has to be awaited."""

from __future__ import annotations

from typing import Final


class Elsewhere:
    """See `ELSEWHERE`."""


#: Not at hand: to be awaited.
ELSEWHERE: Final = Elsewhere()
