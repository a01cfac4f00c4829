"""Public names that are imported when they are asked for.

A worker's template imports what workers need, and not what only the program does that makes loaders; a program that
reads local files imports no client for buckets. Each of the many processes of a loader is there a tenth of a second
sooner for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `homes` says in which module each name is; "" if it is a module itself."""

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home}"), name) if home else import_module(f"{package}.{name}")

    return get
