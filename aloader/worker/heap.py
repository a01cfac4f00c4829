"""What a worker has freed, it keeps for the next samples.

Samples are made and freed all the time, in pieces of some KiB to some MiB. glibc gives what is free at the end of a
heap back to the system, from 128 KiB on, and takes pieces of 128 KiB and more from the system each time, until it has
learned better; and each thread has a heap of its own. The next sample then lies in pages that the kernel has to make
and clear first: reading 128 KiB into them takes five times as long as into pages that were used before.

So a worker keeps up to `KEPT` bytes for itself, and takes only what is very large from the system. Whoever has set any
of this in the environment, or has another allocator, is left alone.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from aloader.options import MIB

#: The numbers that `mallopt` knows the settings by (malloc.h), and what they are set to, in bytes. (32 MiB is the most
#: that glibc takes for the second.)
KEPT: Final = 256 * MIB
SETTINGS: Final = ((-1, KEPT), (-3, 32 * MIB))  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD

#: Who has any of these in the environment has decided, or has another allocator.
DECIDED: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_what_is_freed() -> bool:
    """From now on, in this process. Returns whether it is so."""
    if any(os.environ.get(name) for name in DECIDED):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and all(mallopt(setting, nbytes) == 1 for setting, nbytes in SETTINGS)
