"""Dying with the parent. Theory:

The parent holds the write end of a pipe, and every process that it causes holds the read end with `O_ASYNC` and
SIGKILL as the signal: when the last write end closes, because the parent has died in whatever way, the **kernel** kills
them, also while they hold the GIL in a C call. (A watchdog thread does not run then; `PR_SET_PDEATHSIG` is bound to the
*thread* that started the child.) The owner and the signal belong to the open file, which `fork` shares, so every
process opens the pipe anew. A fork of the user's program must close its copy of the write end.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, where there are no workers
    fcntl = None


def watch(read_end: int) -> int:
    """Bind this process to the pipe: it is killed when the last write end closes. Returns the descriptor to keep."""
    return adopt(opened(read_end)) if sys.platform.startswith("linux") else read_end


def opened(read_end: int) -> int:
    """The read end opened anew, for one process to be bound to."""
    return os.open(f"/proc/self/fd/{read_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def bind(own: int, pid: int) -> None:
    """Have that process killed when the last write end closes from now on, while somebody holds `own`."""
    fcntl.fcntl(own, fcntl.F_SETOWN, pid)
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)


def adopt(own: int) -> int:
    """Bind this process to a read end that was opened for it."""
    os.set_inheritable(own, False)
    bind(own, os.getpid())
    if gone(own):  # it closed before the signal was set
        os.kill(os.getpid(), signal.SIGKILL)
    return own


def gone(read_end: int) -> bool:
    """Whether the last write end has closed."""
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    return bool(poll.poll(0))
