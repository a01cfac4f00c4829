"""Whether to try what is fast if it works, and lost time if not. Pure.

Reading a file that lies in memory without a hop into a thread is such a thing: mostly all of a data set's files lie
there, or none does. After a failure it is not tried for some times, then for twice as many.
"""

from __future__ import annotations

from typing import Final

#: How often it is not tried after the first failure, and at most.
PAUSE: Final = 16
MOST: Final = 1024


class Luck:
    """Ask `tries` before, and tell `had` afterwards."""

    __slots__ = ("_left", "_pause")

    def __init__(self) -> None:
        self._left = 0
        self._pause = PAUSE

    def tries(self) -> bool:
        """Whether to try it this time."""
        if self._left:
            self._left -= 1
            return False
        return True

    def had(self, luck: bool) -> None:
        """Whether it worked."""
        if luck:
            self._pause = PAUSE
        else:
            self._left = self._pause
            self._pause = min(MOST, 2 * self._pause)
