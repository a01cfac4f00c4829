"""How much memory there is, and what a loader may take of it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}


def parse_bytes(value: int | str, name: str = "memory_limit") -> int:
    """A number of bytes, or text such as "8GiB" or "500 MB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
        nbytes = int(float(match[1]) * _UNITS.get(match[2].upper(), 0)) if match else 0
        if nbytes > 0:
            return nbytes
    raise ValueError(f'{name} should be a positive number of bytes or text such as "8GiB", but got {name}={value!r}')


def default_memory_limit() -> int:
    """A quarter of what machine or cgroup allow, shared by the processes of one machine (`LOCAL_WORLD_SIZE`)."""
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return max(64 << 20, _memory_allowed() // 4 // ranks)


def _memory_allowed() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    limits = [total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
