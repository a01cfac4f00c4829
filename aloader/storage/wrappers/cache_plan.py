"""What a cache on disk decides: what has to go, whose unfinished files are in nobody's hands, when to write again.

Pure: no clock, no I/O; whoever asks says what time it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

#: How full a cache is made, and how far it is emptied then. Everybody who writes looks, at a mark drawn from between
#: the first two: so mostly one of them comes first, and the others find that there is room again.
HIGH: Final = (0.94, 0.98)
LOW: Final = 0.9

#: Disks are used up in pages: so entries are counted.
PAGE: Final = 4096

#: Seconds after which nobody is writing an unfinished file any more, whoever had begun it.
ABANDONED: Final = 3600.0

#: Seconds without writing after a disk has refused.
RETRY: Final = 60.0


class Used(NamedTuple):
    """An entry's file: its path, the bytes it takes of the disk, and when it was last used."""

    path: str
    size: int
    last: float


class Owner(NamedTuple):
    """The process that writes a file, so that others can tell whether it lives: a number alone is used again."""

    boot: str  # of the machine, and the space of process numbers
    pid: int
    started: int  # in the kernel's ticks

    def name(self, number: int) -> str:
        """Of this process's unfinished file number so and so."""
        return f"{self.boot}-{self.pid}-{self.started}-{number}.part"


_UNFINISHED: Final = re.compile(r"([0-9a-f]+)-(\d+)-(\d+)-\d+\.part")


def pages(size: int) -> int:
    """How many pages of a disk so many bytes take."""
    return -(-size // PAGE)


def to_evict(found: Iterable[Used], limit: int) -> list[Used]:
    """The entries that have to go, least recently used first, so that the others take at most `limit` bytes."""
    entries = sorted(found, key=lambda used: used.last)
    total = sum(used.size for used in entries)
    gone = []
    for used in entries:
        if total <= limit:
            break
        gone.append(used)
        total -= used.size
    return gone


def is_unfinished(name: str) -> bool:
    """Whether a file is called as unfinished ones are."""
    return _UNFINISHED.fullmatch(name) is not None


def is_abandoned(name: str, age: float, me: Owner, started: Callable[[int], int | None]) -> bool:
    """Whether an unfinished file is nobody's any more. `started` says when a process began (None: there is none).

    Of another boot, or of a container with processes of its own, only the age says it.
    """
    match = _UNFINISHED.fullmatch(name)
    if match is None:
        return False
    if age > ABANDONED:
        return True
    return match[1] == me.boot and started(int(match[2])) != int(match[3])


class Pause:
    """After a refusal nothing is written for a while. What has been said is not said again."""

    def __init__(self, seconds: float = RETRY) -> None:
        self._seconds = seconds
        self._until = float("-inf")
        self._said = False

    def may(self, now: float) -> bool:
        return now >= self._until

    def refused(self, now: float) -> bool:
        """Whether this is to be said."""
        said, self._said = self._said, True
        self._until = now + self._seconds
        return not said
