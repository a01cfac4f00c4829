"""A listing in a file, so that a large store need not be listed again. Never a pickle.

The format, version 1: one line of JSON, and arrays one after the other, little-endian. The line (by spaces at its end)
and each array (by zeros behind it) take a multiple of 8 bytes, so that every array is aligned.

    {"format": "aloader manifest", "version": 1, "count": 3, "store": "S3Store('s3://b')", "prefix": "", "suffixes": [],
     "limit": null, "sort": true, "fingerprint": "…", "arrays": [["keys", "u1", 21], ["key_offsets", "u4", 4],
     ["sizes", "u4", 3], ["versions", "u1", 96], ["version_offsets", "u4", 4]]}⏎

`arrays` has names, numpy's types and lengths. `keys` is the keys in UTF-8, one after the other; key `i` is from
`key_offsets[i]` to `key_offsets[i + 1]`; versions likewise, or not at all. Each key takes 8 bytes beside its text (up
to 16 where there are 4 GiB or more). Nothing is parsed, and the arrays are used where they lie: ten million keys are
read in about a second, most of which the fingerprint takes, by which damage is found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from aloader.datasets.listing import Listing, Wanted, listed
from aloader.datasets.packed import Numbers, PackedList
from aloader.datasets.reader import run_apart
from aloader.errors import KeyNotFound
from aloader.options import KIB
from aloader.storage import MemoryStore, Store, open_store
from aloader.storage.wrappers.wrapper import innermost

FORMAT: Final = "aloader manifest"
VERSION: Final = 1

#: No first line is longer.
_LINE: Final = 64 * KIB
_ALIGNED: Final = 8

_TYPES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "keys": ("u1",), "key_offsets": ("u4", "i8"), "sizes": ("u4", "i8"),
    "versions": ("u1",), "version_offsets": ("u4", "i8"),
})  # fmt: skip


def listed_or_loaded(store: Store, wanted: Wanted, manifest: str | os.PathLike[str] | None) -> Listing:
    """What the manifest says, if there is one; else what the store says, which is written there then."""
    if manifest is None:
        return listed(store, wanted)
    try:
        listing, head = load(manifest)
    except KeyNotFound:
        listing = listed(store, wanted)
        save(manifest, listing, store, wanted)
        return listing
    mine = _origin(store, wanted)
    differs = [f"{name} was {head.get(name)!r} and is {mine[name]!r}" for name in mine if head.get(name) != mine[name]]
    if differs:
        raise ValueError(
            f"the manifest {_named(manifest)} is of something else: {'; '.join(differs)}. Name another file; or delete "
            "it, and the store is listed anew; or, if its keys are right here, use from_manifest"
        )
    return listing


def save(place: str | os.PathLike[str], listing: Listing, store: Store, wanted: Wanted) -> None:
    """Write a manifest: a reader sees it whole or not at all. Blocks."""
    folder, name = _split(place)
    data = b"".join(written(listing, _origin(store, wanted)))

    async def put() -> None:
        async with open_store(folder) as target:
            await target.put(name, data)

    run_apart(put())


def load(place: str | os.PathLike[str]) -> tuple[Listing, dict[str, Any]]:
    """A listing, and the first line. `KeyNotFound` if there is no such file, `ValueError` if it is none. Blocks."""
    folder, name = _split(place)

    async def get() -> bytes:
        async with open_store(folder) as source:
            return await source.get(name)

    data = run_apart(get())
    try:
        return read(data)
    except ValueError as error:
        raise ValueError(f"{_named(place)} is no manifest, or damaged: {error}. Delete it, and list again") from None


def written(listing: Listing, origin: dict[str, Any]) -> list[Any]:
    """The parts of the file."""
    arrays = {"keys": listing.keys.arrays[0], "key_offsets": listing.keys.arrays[1], "sizes": _narrow(listing.sizes)}
    if listing.versions is not None:
        arrays["versions"], arrays["version_offsets"] = listing.versions.arrays
    little = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    head = {
        "format": FORMAT,
        "version": VERSION,
        "count": len(listing.keys),
        **origin,
        "fingerprint": listing.fingerprint,
        "arrays": [[name, array.dtype.str[1:], len(array)] for name, array in little.items()],
    }
    line = json.dumps(head).encode()
    parts: list[Any] = [line, b" " * (-(len(line) + 1) % _ALIGNED) + b"\n"]
    for array in little.values():
        parts += [array.data, bytes(-array.nbytes % _ALIGNED)]
    return parts


def read(data: bytes) -> tuple[Listing, dict[str, Any]]:
    """What `written` was given, in the memory of the file. `ValueError` says what is wrong with it."""
    end = data.find(b"\n", 0, _LINE)
    try:
        head = json.loads(data[:end]) if end >= 0 else None
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError("its first line is not one of a manifest")
    if head.get("version") != VERSION:
        raise ValueError(f"it is of version {head.get('version')!r}, and this aloader reads version {VERSION}")
    arrays = _arrays(data, end + 1, head.get("arrays"))
    try:
        keys = PackedList.from_arrays(arrays["keys"], arrays["key_offsets"])
        versions = None
        if "versions" in arrays:
            versions = PackedList.from_arrays(arrays["versions"], arrays["version_offsets"])
        listing = Listing(keys, arrays["sizes"], versions)
    except KeyError as error:
        raise ValueError(f"it has no array {error}") from None
    lengths = [len(keys), len(listing.sizes), len(keys if versions is None else versions)]
    if lengths != [head.get("count")] * 3 or listing.fingerprint != head.get("fingerprint"):
        raise ValueError("its fingerprint is another one than it says")
    return listing, head


def _arrays(data: bytes, at: int, described: Any) -> dict[str, Numbers]:
    arrays: dict[str, Numbers] = {}
    if not isinstance(described, list):
        raise ValueError("it does not describe its arrays")
    for each in described:
        name, kind, length = each if isinstance(each, list) and len(each) == 3 else ("", "", 0)
        if kind not in _TYPES.get(str(name), ()) or not isinstance(length, int) or length < 0:
            raise ValueError(f"it has an array that none is like: {each!r}")
        dtype = np.dtype(f"<{kind}")
        if at + length * dtype.itemsize > len(data):
            raise ValueError("it is cut off")
        arrays[name] = np.frombuffer(data, dtype, length, at)
        at += -(-length * dtype.itemsize // _ALIGNED) * _ALIGNED
    if at != len(data):
        raise ValueError("there is something behind its end")
    return arrays


def _origin(store: Store, wanted: Wanted) -> dict[str, Any]:
    """What a manifest is of: whatever is around the store, the keys are the same."""
    store = innermost(store)
    place = "MemoryStore" if type(store).__repr__ is MemoryStore.__repr__ else repr(store)  # its repr has its size
    return {
        "store": place,
        "prefix": wanted.prefix,
        "suffixes": list(wanted.suffixes),
        "limit": wanted.limit,
        "sort": wanted.sort,
    }


def wanted_of(head: Mapping[str, Any]) -> Wanted:
    """Which objects a manifest was made of."""
    in_order = head.get("sort") is not False
    return Wanted.checked(head.get("prefix", ""), head.get("suffixes"), head.get("limit"), in_order)


def _split(place: str | os.PathLike[str]) -> tuple[str, str]:
    """The store that a file is in, and its key there: of a path, or of a URL with its query."""
    text = os.fspath(place)
    scheme, mark, rest = text.partition("://")
    if isinstance(place, os.PathLike) or not mark:
        path = PurePath(os.path.abspath(os.path.expanduser(text)))
        return str(path.parent), path.name
    rest, question, query = rest.partition("?")
    folder, slash, name = rest.rpartition("/")
    if not slash or not name:
        raise ValueError(f"a manifest is a file, and {text!r} names none")
    return f"{scheme}://{folder}{question}{query}", name


def _named(place: str | os.PathLike[str]) -> str:
    """Without the query."""
    return repr(os.fspath(place).partition("?")[0])


def _narrow(sizes: Numbers) -> Numbers:
    return sizes.astype(np.uint32) if not len(sizes) or int(sizes.max()) < 1 << 32 else sizes.astype(np.int64)
