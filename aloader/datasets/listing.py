"""What a store has been found to hold: many keys with their sizes and versions, in a few arrays.

A store is listed once, in the program's own process. Workers get the listing with the dataset: a listing by each worker
costs as many requests again, and has got people banned.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from aloader.datasets.packed import Numbers, PackedList
from aloader.datasets.reader import run_apart
from aloader.storage import Store

#: One ending of keys, or several; None: all.
Suffix = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which objects of a store: keys that begin with `prefix` and end with one of `suffixes` (none given: all), of
    whatever case; at most `limit`, the first that the store lists; sorted, or in the store's order."""

    prefix: str = ""
    suffixes: tuple[str, ...] = ()
    limit: int | None = None
    sort: bool = True

    @classmethod
    def checked(cls, prefix: Any, suffix: Any, limit: Any, sort: bool = True, name: str = "suffix") -> Wanted:
        suffixes = (suffix,) if isinstance(suffix, str) else () if suffix is None else suffix
        if not isinstance(suffixes, tuple | list) or not all(isinstance(each, str) and each for each in suffixes):
            raise TypeError(f"{name} is an ending of keys, '.jpg', or a tuple of them: got {suffix!r}")
        if not isinstance(prefix, str):
            raise TypeError(f"prefix is text, got {type(prefix).__name__}: {prefix!r}")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(f"limit is a number of objects, at least 1, or None: got {limit!r}")
        return cls(prefix, tuple(sorted({each.lower() for each in suffixes})), limit, sort)

    def __contains__(self, key: str) -> bool:
        """(Consoles make an empty object "a/b/" for a folder: it is nobody's sample.)"""
        return not key.endswith("/") and (not self.suffixes or key.lower().endswith(self.suffixes))

    def __str__(self) -> str:
        words = [f"begin with {self.prefix!r}"] if self.prefix else []
        words += [f"end with {' or '.join(self.suffixes)}"] if self.suffixes else []
        return f"with keys that {' and '.join(words)}" if words else "at all"


@dataclass(frozen=True)
class Listing:
    """Keys, sizes in bytes, and versions (None: the store has none), in the same order."""

    keys: PackedList[str]
    sizes: Numbers
    versions: PackedList[str] | None

    def take(self, places: Any) -> Listing:
        versions = None if self.versions is None else self.versions.take(places)
        return Listing(self.keys.take(places), self.sizes[np.asarray(places, np.int64)], versions)

    @cached_property
    def fingerprint(self) -> str:
        """Follows from the keys, their order, the sizes and the versions: in 128 bits, as text."""
        found = hashlib.blake2b(digest_size=16)
        lists = [self.keys] if self.versions is None else [self.keys, self.versions]
        for strings in lists:
            data, offsets = strings.arrays
            found.update(np.array([len(strings), len(data)], "<i8").data)
            for first in range(0, len(offsets), 1 << 20):  # in the same width, whatever it is kept in
                found.update(np.ascontiguousarray(offsets[first : first + (1 << 20)], "<i8").data)
            found.update(np.ascontiguousarray(data).data)
        found.update(np.ascontiguousarray(self.sizes, "<i8").data)
        return found.hexdigest()


def listed(store: Store, wanted: Wanted) -> Listing:
    """List the store. Blocks until that is done, whether or not an event loop runs in the calling thread."""
    keys, sizes, versions = run_apart(_found(store, wanted))
    if wanted.sort and any(one > next_one for one, next_one in pairwise(keys)):
        order = sorted(range(len(keys)), key=keys.__getitem__)
        return packed((keys[i] for i in order), sizes[order], [versions[i] for i in order])
    return packed(keys, sizes, versions)


def packed(keys: Iterable[str], sizes: Numbers, versions: list[str]) -> Listing:
    return Listing(PackedList(keys), sizes, PackedList(versions) if any(versions) else None)


async def _found(store: Store, wanted: Wanted) -> tuple[list[str], Numbers, list[str]]:
    keys: list[str] = []
    sizes, versions = array("q"), []
    async with store, AsyncExitStack() as stack:
        infos = store.list(wanted.prefix)
        if hasattr(infos, "aclose"):  # it is left early, where there is a limit
            stack.push_async_callback(infos.aclose)
        async for info in infos:
            if info.key in wanted:
                keys.append(info.key)
                sizes.append(info.size)
                versions.append(info.version)
                if len(keys) == wanted.limit:
                    break
    return keys, np.array(sizes, np.int64), versions


def nothing_found(store: Store, wanted: Wanted) -> FileNotFoundError:
    """Says what there is instead."""
    there = [info for info, _ in zip(listed(store, Wanted(limit=3)).keys, range(3), strict=False)]
    other = f"it has other ones: {', '.join(map(repr, there))}, …" if there else "it is empty"
    return FileNotFoundError(f"no objects {wanted} in {store!r}: {other}")
