"""The temp folder, the clock, and how processes can be started."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from aloader.checkup.report import Check, ok, warning
from aloader.checkup.words import seconds, size
from aloader.options import GIB

#: Coarser clocks than this are of no use for deadlines and statistics.
COARSE: Final = 0.001


@dataclass(frozen=True, slots=True)
class Facts:
    temp: str
    temp_error: str
    temp_free: int
    resolution: float
    methods: tuple[str, ...]


def look() -> Facts:
    folder, error, free = "", "", 0
    try:
        folder = tempfile.gettempdir()
        with tempfile.NamedTemporaryFile(dir=folder, prefix="aloader-doctor-") as file:
            file.write(b"ok")
            file.flush()
        found = os.statvfs(folder)
        free = found.f_frsize * found.f_bavail
    except OSError as failure:
        error = " ".join(str(failure).split())
    methods = tuple(multiprocessing.get_all_start_methods())
    return Facts(folder, error, free, time.get_clock_info("monotonic").resolution, methods)


def judge(facts: Facts) -> Iterator[Check]:
    if facts.temp_error:
        yield warning("temp folder", f"cannot be written to: {facts.temp_error}", "set TMPDIR to one that can")
    elif facts.temp_free < GIB:
        yield warning("temp folder", f"{facts.temp}: {size(facts.temp_free)} free", "free some, or set TMPDIR")
    else:
        yield ok("temp folder", f"{facts.temp}: {size(facts.temp_free)} free")
    if facts.resolution > COARSE:
        yield warning("clock", f"goes by steps of {seconds(facts.resolution)}: deadlines are kept no better than that")
    else:
        yield ok("clock", "monotonic, to the nanosecond" if facts.resolution < 1e-8 else
                 f"monotonic, to {seconds(facts.resolution)}")  # fmt: skip
    yield ok("start methods", f"aloader's own, and {', '.join(facts.methods)} for multiprocessing_context=")
