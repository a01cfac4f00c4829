"""Page-locking by the CUDA runtime, whose functions answer with codes. Only these calls, and what their codes mean.

Unverified on hardware. A call that failed leaves its error behind, and whatever checks for errors next raises it: a
kernel of the user's that has nothing to do with it. So each failure here is drained, in the thread that it happened in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

#: `cudaErrorCudartUnloading`: the process ends, and everything is unlocked with it.
_UNLOADING: Final = 4

#: How the libraries are called that have the function which takes the pending error away, and that function.
_LIBRARIES: Final = (("libcudart", "cudaGetLastError"), ("libamdhip64", "hipGetLastError"))


class Runtime:
    """cudart: the module that `torch.cuda.cudart()` returns. touch: something that raises an error which is pending.

    last_errors: functions that take a pending error away and return its code, of the runtimes in this process.
    """

    def __init__(self, cudart: Any, touch: Callable[[], object], last_errors: Iterable[Callable[[], int]]) -> None:
        self._cudart = cudart
        self._touch = touch
        self._last_errors = tuple(last_errors)

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
        if not any(int(last_error()) == code for last_error in self._last_errors):
            with contextlib.suppress(RuntimeError):
                self._touch()


def last_errors(maps: str = "/proc/self/maps") -> list[Callable[[], int]]:
    """These functions of the libraries that this process has loaded (none is loaded here): each has its own errors."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as lines:
            paths = {line[line.index("/") :].rstrip("\n") for line in lines if "/" in line}
    except OSError:  # no Linux
        return []
    found: list[Callable[[], int]] = []
    for path in sorted(paths):
        for beginning, name in _LIBRARIES:
            if os.path.basename(path).startswith(beginning):
                with contextlib.suppress(OSError, AttributeError):
                    found.append(getattr(ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_NOLOAD), name))
    return found
