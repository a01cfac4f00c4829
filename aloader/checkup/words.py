"""Sizes and times as people read them."""

from __future__ import annotations

from aloader.options import GIB, KIB, MIB


def size(count: int) -> str:
    """Bytes: "1.5 GiB"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} bytes"


def seconds(count: float) -> str:
    """A duration: "12 ms", "1.5 s"."""
    return f"{1000 * count:.3g} ms" if count < 0.9995 else f"{count:,.1f} s"


def counted(count: int, noun: str) -> str:
    """So many of something: "1 CPU", "2 CPUs"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
