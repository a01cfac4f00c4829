"""The CUDA runtime, whose functions answer with codes: page-locking, and making a context. Only these calls, and what
their codes mean.

Unverified on hardware. A call that failed leaves its error behind, and whatever checks for errors next raises it: a
kernel of the user's that has nothing to do with it. So each failure here is drained, in the thread that it happened in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

#: `cudaErrorCudartUnloading`: the process ends, and everything is unlocked with it.
_UNLOADING: Final = 4

#: `cudaStreamCaptureModeRelaxed`.
_RELAXED: Final = 2

#: How the runtimes' libraries are called, and how their functions begin.
_LIBRARIES: Final = (("libcudart", "cuda"), ("libamdhip64", "hip"))

Libraries = list[tuple[Any, str]]


class Runtime:
    """cudart: the module that `torch.cuda.cudart()` returns. touch: something that raises an error which is pending.

    libraries: the runtimes in this process, for what torch's module does not have.
    """

    def __init__(self, cudart: Any, touch: Callable[[], object], libraries: Libraries) -> None:
        self._cudart = cudart
        self._touch = touch
        self._last_errors = _functions(libraries, "GetLastError")
        self._exchange = next(iter(_functions(libraries, "ThreadExchangeStreamCaptureMode")), None)

    @contextmanager
    def unhindered(self) -> Iterator[None]:
        """Inside, the calling thread minds no CUDA graph that another one is capturing: locking memory or asking for an
        event would fail else, and the capture with it. (Of one runtime: the mode is the driver's.)"""
        if self._exchange is None:
            yield
            return
        mode = ctypes.c_int(_RELAXED)
        self._exchange(ctypes.byref(mode))
        try:
            yield
        finally:
            self._exchange(ctypes.byref(mode))  # which has what it was

    def register(self, address: int, nbytes: int, flags: int) -> str | None:
        """Page-lock; what went wrong, if something has."""
        return self._said(self._cudart.cudaHostRegister(address, nbytes, flags))

    def unregister(self, address: int) -> str | None:
        """Unlock; what went wrong, if something has."""
        return self._said(self._cudart.cudaHostUnregister(address), fine=_UNLOADING)

    def _said(self, answer: Any, fine: int = 0) -> str | None:
        code = int(answer)
        if code in (0, fine):
            return None
        text = self._cudart.cudaGetErrorString(answer)
        self._drain(code)
        return f"{text} (error {code})"

    def _drain(self, code: int) -> None:
        """Take the error away. Where no library has it, torch has the runtime inside itself, and raises it when it
        launches something."""
        pending = [int(last_error()) for last_error in self._last_errors]  # of all: none is to be left
        if code not in pending:
            with contextlib.suppress(RuntimeError):
                self._touch()


def wake(index: int, libraries: Libraries | None = None) -> None:
    """Have the driver and the device's context made, which takes up to seconds, *without the GIL*: torch holds it
    meanwhile, and in whatever thread that was, a loop would stand still. What goes wrong here, torch finds again.

    In a thread of its own, since it becomes that thread's current device, and its errors that thread's.
    """
    found = loaded() if libraries is None else libraries
    if not found:
        return
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does, which would be too late

    def run() -> None:
        for choose, free in zip(_functions(found, "SetDevice"), _functions(found, "Free"), strict=True):
            if choose(index) == 0:
                free(None)  # does nothing, but needs a context: before CUDA 12, choosing made none

    thread = threading.Thread(target=run, name="aloader-wake")
    thread.start()
    thread.join()


def _functions(libraries: Libraries, name: str) -> list[Callable[..., int]]:
    return [getattr(library, prefix + name) for library, prefix in libraries if hasattr(library, prefix + name)]


def loaded(maps: str = "/proc/self/maps") -> Libraries:
    """The runtimes that this process has loaded, and how their functions begin. None is loaded here."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as lines:
            paths = {line[line.index("/") :].rstrip("\n") for line in lines if "/" in line}
    except OSError:  # no Linux
        return []
    found: Libraries = []
    for path in sorted(paths):
        for beginning, prefix in _LIBRARIES:
            if os.path.basename(path).startswith(beginning):
                with contextlib.suppress(OSError):
                    found.append((ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_NOLOAD), prefix))
    return found
