"""Page-locking by the CUDA runtime, whose functions answer with codes. Only these calls, and what their codes mean.

Unverified on hardware. A call that failed leaves its error behind, and whatever checks for errors next raises it: a
kernel of the user's that has nothing to do with it. So each failure here is drained, in the thread that it happened in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Any, Final

#: `cudaErrorCudartUnloading`: the process ends, and everything is unlocked with it.
_UNLOADING: Final = 4

#: What the library is called that has the function which takes the pending error away, and that function.
_LIBRARIES: Final = (("libcudart", "cudaGetLastError"), ("libamdhip64", "hipGetLastError"))


class Runtime:
    """cudart: the module that `torch.cuda.cudart()` returns. touch: something that raises an error which is pending.

    last_error: takes the pending error away (default: by the runtime's library, where it is found in this process).
    """

    def __init__(
        self, cudart: Any, touch: Callable[[], object], last_error: Callable[[], object] | None = None
    ) -> None:
        self._cudart = cudart
        self._touch = touch
        self._last_error = last_error or find_last_error()

    def register(self, address: int, nbytes: int, flags: int) -> str | None:
        """Page-lock; what went wrong, if something has."""
        return self._said(self._cudart.cudaHostRegister(address, nbytes, flags))

    def unregister(self, address: int) -> str | None:
        """Unlock; what went wrong, if something has."""
        return self._said(self._cudart.cudaHostUnregister(address), _UNLOADING)

    def _said(self, answer: Any, fine: int = 0) -> str | None:
        code = int(answer)
        if code in (0, fine):
            return None
        text = self._cudart.cudaGetErrorString(answer)
        self._drain()
        return f"{text} (error {code})"

    def _drain(self) -> None:
        if self._last_error is not None:
            self._last_error()
            return
        with contextlib.suppress(RuntimeError):
            self._touch()


def find_last_error(maps: str = "/proc/self/maps") -> Callable[[], object] | None:
    """The function of the library that this process has loaded already, or None: it may be linked into torch."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as lines:
            paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in lines if line.count("/")}
    except OSError:  # no Linux
        return None
    for path in sorted(paths):
        for beginning, name in _LIBRARIES:
            if os.path.basename(path).startswith(beginning):
                with contextlib.suppress(OSError, AttributeError):
                    function: Callable[[], object] = getattr(ctypes.CDLL(path), name)
                    return function
    return None
