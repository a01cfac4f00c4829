"""The terminal of the user's program, borrowed by a process that has none of its own: by one at a time.

A worker's standard input is empty. The program's is opened anew through `/proc`, and locked: the lock is on the
terminal itself, so it holds for all workers of all programs that share one, and ends with the process that has it. What
is opened is another open file: closing it, or dying with it, changes nothing for the program.

Lines are read without `readline`: it would leave the terminal unusable if the process is killed at its prompt.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, Final

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, where there are no workers
    fcntl = None

NO_TERMINAL: Final = (
    "a worker has met a breakpoint, and the program's standard input is not a terminal that one could debug at. "
    "Run the program in a terminal (pytest: with -s); or set ALOADER_DEBUG=1 or num_workers=0, which debug in the "
    "program's own process; or PYTHONBREAKPOINT=0 to pass over breakpoints"
)


class Terminal:
    """Open from its making until `close`. Waits until nobody else has the terminal."""

    def __init__(self, program: int) -> None:
        reading = _open_input(program)
        try:
            with contextlib.suppress(OSError):  # where it cannot be locked, lines of several workers mix
                fcntl.flock(reading, fcntl.LOCK_EX)
            writing = os.dup(reading if os.isatty(reading) else 1)
        except BaseException:
            os.close(reading)
            raise
        source: Any = _ByteByByte(reading)
        self.stdin = io.TextIOWrapper(source, encoding="utf-8", errors="replace")
        self.stdout = open(writing, "w", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115

    def close(self) -> None:
        """Give it back. (The lock ends with the last descriptor, the output's is one of them.)"""
        with contextlib.suppress(OSError):
            self.stdout.close()
        self.stdin.close()


def redirect(program: int) -> None:
    """Make the program's standard input this process's, if there is any: not locked, and for good."""
    try:
        reading = _open_input(program)
    except RuntimeError:
        return
    os.dup2(reading, 0)
    os.close(reading)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def _open_input(program: int) -> int:
    """The standard input of a program: a terminal for both directions, or whatever else it reads from."""
    name = f"/proc/{program}/fd/0" if os.path.isdir("/proc/self/fd") else "/dev/tty"
    fd = -1
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            fd = os.open(name, flags | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        if os.isatty(fd) or flags == os.O_RDONLY:
            break
        os.close(fd)
        fd = -1
    if fd < 0:
        raise RuntimeError(NO_TERMINAL)
    if not os.isatty(fd) and os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev:
        os.close(fd)
        raise RuntimeError(NO_TERMINAL)
    os.set_blocking(fd, True)
    return fd


class _ByteByByte(io.RawIOBase):
    """Reads no further than it is asked to: what follows a line in a pipe may be another worker's."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """One byte, or none at the end."""
        data = os.read(self._fd, 1)
        buffer[: len(data)] = data
        return len(data)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if not self.closed:
            os.close(self._fd)
        super().close()
