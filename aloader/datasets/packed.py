"""Many strings in one piece of memory. numpy only: no torch, no I/O.

Why. A list of ten million paths is ten million objects, and each object counts its references in its own memory. A
worker that only reads the list writes to every page of it: in the end each worker has a copy. Here there are two
arrays, however many items there are. Reading an item makes a new object, and writes nothing.

How. `data` is what the items are in UTF-8 (or as they are), one after the other; item `i` ends where item `i + 1`
begins, and `offsets` says where. A slice is a view: a stretch of both arrays, its offsets counted from the same origin
as before, so that nothing is copied when it is made or pickled.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Generic, Self, TypeVar, overload

import numpy as np

T = TypeVar("T", str, bytes)
Numbers = np.ndarray[Any, np.dtype[Any]]

#: Items that are taken from an iterable, or looked at, in one go: what is transient stays small.
_CHUNK: Final = 1 << 13
_LOOKED_AT: Final = 1 << 20

#: Every string there is comes back as it was, halves of surrogate pairs (`os.fsdecode`) included.
_ERRORS: Final = "surrogatepass"


class PackedList(Sequence[T], Generic[T]):
    """An immutable sequence of `str`, or of `bytes`, in one piece of memory that worker processes share.

        paths = PackedList(f"{folder}/{name}" for folder, name in found)  # of any iterable; 10 million take seconds
        paths[3], paths[-1], paths[100:200], len(paths), "x.jpg" in paths, paths.take(indices)

    A slice with a step of 1 is a view on the same memory; other slices, and `take`, copy. Items of a pickled list
    travel out of band (protocol 5). It takes the items' bytes in UTF-8, and 4 bytes for each item (8 where the text
    is 4 GiB or more); `nbytes` says it.

    TypeError, with its place, for an item that is neither, or not what the first one is.
    """

    __slots__ = ("_base", "_bytes", "_data", "_ends", "_kind", "_offsets")

    def __init__(self, items: Iterable[T] = ()) -> None:
        if isinstance(items, PackedList):
            self._set(items._kind, items._data, items._offsets)
        else:
            self._set(*_packed(items))

    def _set(self, kind: type[Any], data: Numbers, offsets: Numbers) -> None:
        """`data` is exactly the stretch between the first and the last offset."""
        data, offsets = data.view(), offsets.view()
        data.flags.writeable = offsets.flags.writeable = False
        self._kind: type[Any] = kind
        self._data, self._offsets = data, offsets
        self._bytes = memoryview(data)  # type: ignore[arg-type]  # ten times faster to read single items from
        self._ends = memoryview(offsets)  # type: ignore[arg-type]
        self._base = self._ends[0]

    @classmethod
    def _on(cls, kind: type[Any], data: Numbers, offsets: Numbers) -> Self:
        made = cls.__new__(cls)
        made._set(kind, data, offsets)
        return made

    # -- reading ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> PackedList[T]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._slice(index)
        at, n = operator.index(index), len(self._ends) - 1
        if not -n <= at < n:
            raise IndexError(f"index {at} is out of range for a PackedList of {n:,} items")
        at %= n
        return self._made(self._bytes[self._ends[at] - self._base : self._ends[at + 1] - self._base])

    def __iter__(self) -> Iterator[T]:
        made, data, base = self._made, self._bytes, self._base
        for first in range(0, len(self), _CHUNK):
            ends = self._offsets[first : first + _CHUNK + 1].tolist()
            begin = ends[0] - base
            for offset in islice(ends, 1, None):
                end = offset - base
                yield made(data[begin:end])
                begin = end

    def _made(self, part: memoryview) -> Any:
        return str(part, "utf-8", _ERRORS) if self._kind is str else bytes(part)

    def _slice(self, index: slice) -> PackedList[T]:
        start, stop, step = index.indices(len(self))
        if step != 1:
            return self.take(np.arange(start, stop, step))
        offsets = self._offsets[start : max(start, stop) + 1]
        return self._on(self._kind, self._data[offsets[0] - self._base : offsets[-1] - self._base], offsets)

    def take(self, indices: Any) -> PackedList[T]:
        """A new one of these items, in this order; `indices` is a sequence or array of integers, negative ones too."""
        places = _places(indices, len(self))
        ends = np.zeros(len(places) + 1, np.int64)
        np.cumsum(self._offsets[places + 1] - self._offsets[places], out=ends[1:])
        data = np.empty(ends[-1], np.uint8)
        into, of, base = memoryview(data), self._bytes, self._base  # type: ignore[arg-type]
        for first in range(0, len(places), _CHUNK):
            chunk = places[first : first + _CHUNK]
            bounds = zip(self._offsets[chunk].tolist(), self._offsets[chunk + 1].tolist(), strict=True)
            for at, (begin, end) in zip(ends[first : first + len(chunk)].tolist(), bounds, strict=True):
                into[at : at + end - begin] = of[begin - base : end - base]
        return self._on(self._kind, data, _narrow(ends))

    # -- finding ---------------------------------------------------------------------------------------------------

    def __contains__(self, value: object) -> bool:
        return next(self._found(value), None) is not None

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The first place of an item; ValueError if it is not there. Reads everything before it, in 10 ns an item."""
        start, stop, _ = slice(start, stop).indices(len(self))
        found = next(self[start:stop]._found(value), None)
        if found is None:
            raise ValueError(f"{value!r} is not in the PackedList")
        return start + found

    def count(self, value: Any) -> int:
        return sum(1 for _ in self._found(value))

    def _found(self, value: object) -> Iterator[int]:
        """The places of the items that are equal: those of its length, then those that end as it does, byte by byte."""
        if not isinstance(value, self._kind):
            return
        wanted = value.encode("utf-8", _ERRORS) if isinstance(value, str) else bytes(value)
        for first in range(0, len(self), _LOOKED_AT):
            offsets = self._offsets[first : first + _LOOKED_AT + 1]
            places = np.flatnonzero(offsets[1:] - offsets[:-1] == len(wanted))
            ends = offsets[places + 1].astype(np.int64) - self._base
            for back, byte in enumerate(reversed(wanted), 1):
                if not len(places):
                    break
                same = self._data[ends - back] == byte
                places, ends = places[same], ends[same]
            yield from (places + first).tolist()

    # -- as an object ----------------------------------------------------------------------------------------------

    @property
    def arrays(self) -> tuple[Numbers, Numbers]:
        """The items' bytes, one after the other, and where each begins, with the end of the last: `uint8`, `uint32` or
        `int64`. What files are made of; see `from_arrays`."""
        return self._data, self._offsets - self._offsets[0] if self._base else self._offsets

    @classmethod
    def from_arrays(cls, data: Numbers, offsets: Numbers, kind: type[Any] = str) -> Self:
        """Of what `arrays` gave, without a copy. `ValueError` if they do not fit each other."""
        fits = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(data) and data.dtype == np.uint8
        if not fits or bool(np.any(offsets[1:] < offsets[:-1])):
            raise ValueError("these are not the arrays of a PackedList")
        return cls._on(kind, data, offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, or that the stretch takes of which it is a view."""
        return int(self._data.nbytes + self._offsets.nbytes)

    def __eq__(self, other: object) -> bool:
        """Whether the other is a `PackedList` with the same items. (Of a list: `list(packed) == other`.)"""
        if not isinstance(other, PackedList):
            return NotImplemented
        if len(self) != len(other) or self._data.nbytes != other._data.nbytes:
            return False
        return not len(self) or (self._kind is other._kind and self._same(other))

    __hash__ = None  # type: ignore[assignment]  # as of an array: it would have to read everything

    def _same(self, other: PackedList[Any]) -> bool:
        step = _LOOKED_AT
        ends = ((self._offsets[k : k + step], other._offsets[k : k + step]) for k in range(0, len(self) + 1, step))
        if not all(np.array_equal(mine - self._ends[0], theirs - other._ends[0]) for mine, theirs in ends):
            return False
        data = ((self._data[k : k + step], other._data[k : k + step]) for k in range(0, self._data.nbytes, step))
        return all(np.array_equal(mine, theirs) for mine, theirs in data)

    def __repr__(self) -> str:
        shown = [text if len(text) <= 60 else f"{text[:57]}…" for text in map(repr, self[:3])]
        items = ", ".join(shown) + (", …" if len(self) > 3 else "")
        return f"<PackedList of {len(self):,} {self._kind.__name__} in {self.nbytes:,} bytes: [{items}]>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._on, (self._kind, self._data, self._offsets)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self


def _packed(items: Iterable[Any]) -> tuple[type[Any], Numbers, Numbers]:
    """What the items are, their bytes, and where each of them begins. Never holds more than a chunk of them."""
    source = iter(items)
    kind: type[Any] | None = None
    data, offsets = bytearray(), array("q", [0])
    while chunk := list(islice(source, _CHUNK)):
        if kind is None:
            kind = str if isinstance(chunk[0], str) else bytes
        if set(map(type, chunk)) != {kind}:
            _check(chunk, kind, len(offsets) - 1)
        joined, lengths = _encoded(chunk, kind)
        offsets.frombytes((np.cumsum(lengths) + len(data)).tobytes())
        data += joined
    return kind or str, np.frombuffer(data, np.uint8), _narrow(np.frombuffer(offsets, np.int64))


def _check(chunk: list[Any], kind: type[Any], first: int) -> None:
    """Subclasses are let through, and come back as what they derive from."""
    for place, item in enumerate(chunk, first):
        if not isinstance(item, kind):
            other = bytes if kind is str else str
            wanted = f"{kind.__name__}, as the first one is" if isinstance(item, other) else "str or bytes"
            hint = "; of paths: map(os.fspath, paths)" if hasattr(item, "__fspath__") else ""
            raise TypeError(f"item {place} of a PackedList must be {wanted}, got {type(item).__name__}{hint}")


def _encoded(chunk: list[Any], kind: type[Any]) -> tuple[bytes, Numbers]:
    """The bytes of some items, and how many each has. In one go where characters are bytes."""
    if kind is str:
        text = "".join(chunk)
        if not text.isascii():
            return _encoded([item.encode("utf-8", _ERRORS) for item in chunk], bytes)
        joined = text.encode()
    else:
        joined = b"".join(chunk)
    return joined, np.fromiter(map(len, chunk), np.int64, len(chunk))


def _narrow(offsets: Numbers) -> Numbers:
    """Offsets in half the memory, if they fit."""
    return offsets.astype(np.uint32) if offsets[-1] < 1 << 32 else offsets


def _places(indices: Any, n: int) -> Numbers:
    places = np.asarray(indices)
    if not places.size:
        places = places.astype(np.int64)
    if places.ndim != 1 or places.dtype.kind not in "iu":
        raise TypeError(f"take needs a sequence of integers, got {places.ndim} dimensions of {places.dtype}")
    places = places.astype(np.int64)
    wrong = places[(places < -n) | (places >= n)]
    if len(wrong):
        raise IndexError(f"index {wrong[0]} is out of range for a PackedList of {n:,} items")
    return np.where(places < 0, places + n, places)
