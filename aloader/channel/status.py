"""Shared memory per worker that says what it is doing: it can be read after the worker was killed.

Written by the worker for every ticket and sample, so it must cost next to nothing; read by the parent when the worker
is lost or late. Only the first page of it is ever touched, unless something is drawn or asked. The other parts, all
written at the worker's side:

- **notes**: the states of the worker's random generators after a ticket, for whoever replaces it. There are two places,
  used in turn: what the worker is killed while writing is not taken for a note, and the one before it is still there;
- **tasks**: what a signal handler of the worker's event loop says, with its length in `answered`;
- **said**: the last lines that the worker has written to its standard error;
- **stacks**: what `faulthandler` writes to the descriptor, in a signal handler of its own that needs no GIL. Both sides
  keep their descriptors, which are one open file: the parent puts its place to the beginning of this part before it
  signals, and sees by the place how much has been written. The file is sealed, so nothing is written past its end.
  A crash of the worker (SIGSEGV and such) is written there too, behind what has been asked for last.
"""

from __future__ import annotations

import math
import os
import signal
import struct
import time
import weakref
from enum import IntEnum
from typing import Final, NamedTuple

from aloader.channel import shared

_LAYOUT: Final = struct.Struct("<qqqqd")  # state, epoch, seq, position in the ticket, when it began
_PROGRESS_AT: Final = 24
_PROCESSES: Final = struct.Struct("<qq")  # the parent's pid, and the worker's once it can be signalled
_PROCESSES_AT: Final = 64
_ASKED: Final = struct.Struct("<qqq")  # epoch and seq that the parent asks about; length of the tasks' answer, or -1
_ASKED_AT: Final = 80
_DEBUGGER: Final = struct.Struct("<d")  # when its debugger was left: 0.0 never used, infinity at work
_DEBUGGER_AT: Final = 104
_TIMED: Final = struct.Struct("<?")  # whether the worker looks after samples that take too long by itself
_TIMED_AT: Final = 112
_NOTES_AT: Final = 4096
_NOTE: Final = struct.Struct("<qqq")  # seq (-1: being written), epoch, length; the states follow
_SEQ: Final = struct.Struct("<q")
_NOTE_BYTES: Final = 3 << 12
_TASKS_AT: Final = _NOTES_AT + 2 * _NOTE_BYTES
MOST_TASKS: Final = 7 << 12
_SAID_AT: Final = _TASKS_AT + MOST_TASKS
_SAID_BYTES: Final = 1 << 12
_SAID: Final = struct.Struct("<q")  # length; the text follows
_STACKS_AT: Final = _SAID_AT + _SAID_BYTES  # at the end: what writes there knows no other
NBYTES: Final = _STACKS_AT + (1 << 15)

#: What a worker is signalled with: `faulthandler` answers the first, an event loop the second, if there is one. None
#: where there are no real-time signals: all others may be the user's.
STACKS_SIGNAL: Final = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else None
TASKS_SIGNAL: Final = signal.SIGRTMIN + 12 if hasattr(signal, "SIGRTMIN") else None


class Doing(IntEnum):
    """What a worker is at."""

    STARTING = 0
    IDLE = 1
    FETCHING = 2
    COLLATING = 3
    WAITING = 4  # for memory
    DEBUGGING = 5  # its user has stopped at a breakpoint
    FETCHING_SEVERAL = 6  # the position is that of the sample that has begun last; any may be at work
    AWAITING = 7  # the same, and none is at work


class Status(NamedTuple):
    """What the page said. `position` is the sample's place in its ticket (-1: one call fetches all; less: of something
    that is read and dropped), `since` when the worker began what it does
    (the monotonic clock, the same in every process)."""

    doing: Doing
    epoch: int
    seq: int
    position: int
    since: float


class StatusPage:
    """The page, mapped, and a descriptor of it. The worker writes, the parent reads."""

    def __init__(self, fd: int) -> None:
        self._memory = shared.attach(fd, NBYTES)
        self._notes = 0
        self._said = b""
        self._fd = os.dup(fd)
        self._close_fd = weakref.finalize(self, os.close, self._fd)
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
        os.lseek(page._fd, _STACKS_AT, os.SEEK_SET)
        _PROCESSES.pack_into(page._memory, _PROCESSES_AT, os.getpid(), 0)
        return page, fd

    def read(self) -> Status:
        """The last thing that the worker wrote."""
        doing, *rest = _LAYOUT.unpack_from(self._memory)
        return Status(Doing(doing), *rest)

    def write(self, doing: Doing, epoch: int = -1, seq: int = -1, position: int = -1) -> None:
        """What the worker does from now on."""
        _LAYOUT.pack_into(self._memory, 0, doing, epoch, seq, position, time.monotonic())

    # -- notes -----------------------------------------------------------------------------------------------------

    def note(self, epoch: int, seq: int, states: bytes) -> None:
        """The worker's generators are in these states after this ticket, and until a later one is noted."""
        assert _NOTE.size + len(states) <= _NOTE_BYTES
        at = _NOTES_AT + self._notes % 2 * _NOTE_BYTES
        self._notes += 1
        _NOTE.pack_into(self._memory, at, -1, epoch, len(states))
        self._memory[at + _NOTE.size : at + _NOTE.size + len(states)] = states
        _SEQ.pack_into(self._memory, at, seq)

    def noted(self, epoch: int, seq: int) -> bytes | None:
        """The states after this ticket, or after the last one before it that was noted; None: there is no such note."""
        found: tuple[int, int] = (-1, -1)
        states = None
        for at in (_NOTES_AT, _NOTES_AT + _NOTE_BYTES):
            of_seq, of_epoch, length = _NOTE.unpack_from(self._memory, at)
            if length and of_seq >= 0 and found < (of_epoch, of_seq) <= (epoch, seq):
                found = of_epoch, of_seq
                states = self._memory[at + _NOTE.size : at + _NOTE.size + length]
        return states

    # -- who they are, and the debugger ----------------------------------------------------------------------------

    @property
    def parent(self) -> int:
        """The pid of the program that made the page."""
        return int(_PROCESSES.unpack_from(self._memory, _PROCESSES_AT)[0])

    @property
    def pid(self) -> int:
        """The worker's pid; 0 until it can be signalled."""
        return int(_PROCESSES.unpack_from(self._memory, _PROCESSES_AT)[1])

    def can_be_signalled(self) -> None:
        """The worker: its handlers are there."""
        _PROCESSES.pack_into(self._memory, _PROCESSES_AT, self.parent, os.getpid())

    @property
    def debugger_left(self) -> float:
        """When (monotonic clock) the worker's debugger was left: infinity while it is at work, 0 if it never was."""
        return float(_DEBUGGER.unpack_from(self._memory, _DEBUGGER_AT)[0])

    def debugging(self, at_work: bool) -> None:
        """The worker: its debugger begins, or has been left."""
        _DEBUGGER.pack_into(self._memory, _DEBUGGER_AT, math.inf if at_work else time.monotonic())

    @property
    def timed(self) -> bool:
        """Whether the worker looks itself after samples that take too long."""
        return bool(_TIMED.unpack_from(self._memory, _TIMED_AT)[0])

    def times_samples(self) -> None:
        """The worker: its samples run on a loop from now on, where it can interrupt them."""
        _TIMED.pack_into(self._memory, _TIMED_AT, True)

    # -- where the worker stands -----------------------------------------------------------------------------------

    def ask(self, epoch: int, seq: int) -> None:
        """The parent: what will be written from now on answers a question about this ticket. Signal the worker next."""
        _ASKED.pack_into(self._memory, _ASKED_AT, epoch, seq, -1)
        os.lseek(self._fd, _STACKS_AT, os.SEEK_SET)

    @property
    def asked(self) -> tuple[int, int]:
        """The epoch and seq of the ticket that the parent asks about."""
        epoch, seq, _ = _ASKED.unpack_from(self._memory, _ASKED_AT)
        return epoch, seq

    def answer(self, tasks: bytes) -> None:
        """The worker's event loop: where the ticket's tasks stand. At most `MOST_TASKS` bytes."""
        self._memory[_TASKS_AT : _TASKS_AT + len(tasks)] = tasks
        _ASKED.pack_into(self._memory, _ASKED_AT, *self.asked, len(tasks))

    @property
    def tasks(self) -> bytes | None:
        """What the worker's event loop has answered; None: nothing."""
        length = _ASKED.unpack_from(self._memory, _ASKED_AT)[2]
        return None if length < 0 else self._memory[_TASKS_AT : _TASKS_AT + length]

    @property
    def stacks(self) -> bytes:
        """What the worker's signal handler has written so far."""
        return self._memory[_STACKS_AT : os.lseek(self._fd, 0, os.SEEK_CUR)]

    @property
    def crash(self) -> bytes:
        """Where the worker has crashed, as its `faulthandler` has written it; b"" if it has not."""
        _, fatal, text = self.stacks.rpartition(b"Fatal Python error: ")
        return fatal + text if fatal else b""

    def say(self, text: str) -> None:
        """The worker: it writes this to its standard error."""
        self._said = said = (self._said + text.encode(errors="replace"))[_SAID.size - _SAID_BYTES :]  # in any thread
        _SAID.pack_into(self._memory, _SAID_AT, 0)
        at = _SAID_AT + _SAID.size
        self._memory[at : at + len(said)] = said
        _SAID.pack_into(self._memory, _SAID_AT, len(said))

    @property
    def said(self) -> str:
        """The last that the worker has written to its standard error, by way of Python."""
        (length,) = _SAID.unpack_from(self._memory, _SAID_AT)
        at = _SAID_AT + _SAID.size
        return self._memory[at : at + length].decode(errors="replace")

    def fileno(self) -> int:
        """The descriptor that is written to."""
        return self._fd

    @property
    def closed(self) -> bool:
        """Whether it has been closed on this side: then nothing of it can be read."""
        return not self._close_fd.alive

    def close(self) -> None:
        """Unmap it."""
        self.progress.release()
        self._memory.close()
        self._close_fd()


def adopt(fd: int) -> StatusPage:
    """The worker's side: map the page and close the descriptor."""
    try:
        return StatusPage(fd)
    finally:
        os.close(fd)
