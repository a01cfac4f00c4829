"""`breakpoint()` and `pdb.set_trace()` in a worker: a debugger at the terminal of the user's program.

The terminal is borrowed when a breakpoint is met, and given back when the user lets the program go on, or steps out of
his own code: the next worker that waits for it has its turn then. Meanwhile the status page says DEBUGGING, and the
parent sets no deadline. Frames of the machinery are never stopped in.

`quit` fails the sample, not the worker. Ctrl-C goes to the program, as ever, and ends it.
"""

from __future__ import annotations

import bdb
import inspect
import io
import os
import pdb  # noqa: T100
import sys
import threading
from types import FrameType
from typing import Any, Final

from aloader.channel.offender import safe_repr
from aloader.channel.status import Doing, Status, StatusPage
from aloader.worker import fetch
from aloader.worker.terminal import Terminal, redirect

#: What `PYTHONBREAKPOINT` may be for this debugger to be used (or, "0", none).
_OURS: Final = ("", "0", "pdb.set_trace")

#: Modules that the debugger steps through without stopping.
_SKIPPED: Final = (
    *("aloader.worker.*", "aloader.channel.*", "asyncio.*", "uvloop", "uvloop.*", "contextlib"),
    *("concurrent.futures.*", "threading", "bdb", "pdb"),
)


class Breakpoints:
    """What breakpoints do in a worker."""

    def __init__(self, page: StatusPage, slot: int) -> None:
        self._page = page
        self._slot = slot
        self._threads = threading.local()  # a debugger for each: it traces its thread only

    def install(self) -> None:
        """From now on, in this process. (`from pdb import set_trace` may have taken the original before.)

        Another debugger that `PYTHONBREAKPOINT` names is left to itself, with the terminal as its standard input: when
        it has come to its end, nobody but itself can say.
        """
        pdb.set_trace = self._set_trace
        if os.environ.get("PYTHONBREAKPOINT", "") in _OURS:
            sys.breakpointhook = self._hook
        else:
            redirect(self._page.parent)

    def _hook(self, *_: Any, header: str | None = None, **__: Any) -> None:
        if os.environ.get("PYTHONBREAKPOINT") != "0":
            self._stop(sys._getframe(1), header)

    def _set_trace(self, *, header: str | None = None, **_: Any) -> None:
        self._stop(sys._getframe(1), header)

    def _stop(self, frame: FrameType, header: str | None) -> None:
        debugger: _Debugger | None = getattr(self._threads, "debugger", None)
        if debugger is None:
            debugger = self._threads.debugger = _Debugger(self._page, self._slot)
        debugger.borrow(frame)
        if header:
            debugger.message(header)
        debugger.set_trace(frame)


class _Debugger(pdb.Pdb):
    def __init__(self, page: StatusPage, slot: int) -> None:
        super().__init__(stdin=io.StringIO(), stdout=io.StringIO(), nosigint=True, skip=_SKIPPED)
        self._page = page
        self._slot = slot
        self._terminal: Terminal | None = None
        self._before: tuple[Status, Any] | None = None

    # -- the terminal ----------------------------------------------------------------------------------------------

    def borrow(self, frame: FrameType) -> None:
        """Have the terminal, and say so on the page; the prompt names worker and sample."""
        if self._terminal is None:
            status = self._page.read()
            self._terminal = Terminal(self._page.parent)
            self._before = status, sys.stdin
            self._page.debugging(True)
            self._page.write(Doing.DEBUGGING, status.epoch, status.seq, status.position)
            self.stdin, self.stdout = self._terminal.stdin, self._terminal.stdout
            sys.stdin = self.stdin  # `input()` and `interact` read there too
        self.prompt = f"(Pdb worker {self._slot}{_at_work(frame, self._page)}) "

    def _give_back(self) -> None:
        if self._terminal is None or self._before is None:
            return
        status, sys.stdin = self._before
        self._page.write(status.doing, status.epoch, status.seq, status.position)
        self._page.debugging(False)
        self._terminal.close()
        self._terminal = self._before = None

    # -- as a debugger ---------------------------------------------------------------------------------------------

    def interaction(self, frame: FrameType | None, *what: Any) -> None:
        """Talk with the user."""
        if frame is not None:
            self.borrow(frame)
        super().interaction(frame, *what)
        if self.stoplineno == -1:  # he lets it go on
            self._give_back()

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        """A function returns (or a coroutine waits): perhaps to the machinery, which may wait for long."""
        dispatch = super().dispatch_return(frame, arg)
        if frame.f_back is None or self.is_skipped_module(frame.f_back.f_globals.get("__name__", "")):
            self._give_back()
        return dispatch

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Everything that is traced; raises into the user's code when he quits."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            self._give_back()
        raise bdb.BdbQuit(f"the debugger in worker {self._slot} was left with `quit`; `continue` lets the sample go on")


def _at_work(frame: FrameType | None, page: StatusPage) -> str:
    """Which sample the calls around `frame` are about: for the prompt."""
    while frame is not None:
        if frame.f_globals.get("__name__") == fetch.__name__:
            names: dict[str, Any] = frame.f_locals
            if "get" in names:  # what fetches it, as a function without arguments
                names = {**inspect.getclosurevars(names["get"]).nonlocals, "batched": False}
            if "index" in names or not names.get("batched", True):
                return f", sample {safe_repr(names.get('index', names.get('indices')))}"
        frame = frame.f_back
    seq = page.read().seq
    return f", batch {seq}" if seq >= 0 else ""
