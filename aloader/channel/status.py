"""One page of shared memory per worker that says what it is doing: it can be read after the worker was killed.

Written by the worker for every ticket and sample, so it must cost next to nothing; read by the parent when the worker
is lost or late.
"""

from __future__ import annotations

import os
import struct
import time
from enum import IntEnum
from typing import Final, NamedTuple

from aloader.channel import shared

NBYTES: Final = 4096
_LAYOUT: Final = struct.Struct("<qqqqd")  # state, epoch, seq, position in the ticket, when it began
_PROGRESS_AT: Final = 24


class Doing(IntEnum):
    """What a worker is at."""

    STARTING = 0
    IDLE = 1
    FETCHING = 2
    COLLATING = 3
    WAITING = 4  # for memory


class Status(NamedTuple):
    """What the page said. `position` is the sample's place in its ticket, `since` when the worker began what it does
    (the monotonic clock, the same in every process)."""

    doing: Doing
    epoch: int
    seq: int
    position: int
    since: float


class StatusPage:
    """The page, mapped. The worker writes, the parent reads."""

    def __init__(self, fd: int) -> None:
        self._memory = shared.attach(fd, NBYTES)
        #: The position of the sample at work in its ticket: one number, written for every sample (40 ns).
        self.progress = memoryview(self._memory)[_PROGRESS_AT : _PROGRESS_AT + 8].cast("q")

    @classmethod
    def create(cls) -> tuple[StatusPage, int]:
        """A new page and a descriptor of it for the worker."""
        fd = shared.create(NBYTES, "aloader-status")
        try:
            page = cls(fd)
        except OSError:
            os.close(fd)
            raise
        page.write(Doing.STARTING)
        return page, fd

    def read(self) -> Status:
        """The last thing that the worker wrote."""
        doing, *rest = _LAYOUT.unpack_from(self._memory)
        return Status(Doing(doing), *rest)

    def write(self, doing: Doing, epoch: int = -1, seq: int = -1, position: int = -1) -> None:
        """What the worker does from now on."""
        _LAYOUT.pack_into(self._memory, 0, doing, epoch, seq, position, time.monotonic())

    def close(self) -> None:
        """Unmap it."""
        self.progress.release()
        self._memory.close()


def adopt(fd: int) -> StatusPage:
    """The worker's side: map the page and close the descriptor."""
    try:
        return StatusPage(fd)
    finally:
        os.close(fd)
