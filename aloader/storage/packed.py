"""Many objects in one piece of memory, which worker processes share. numpy only: no I/O.

A dict of a hundred thousand `bytes` is as many objects, and each counts its references in its own memory: workers that
only read it would copy it page by page. Here there are four arrays, which travel out of band (pickle, protocol 5), and
are mapped rather than copied where the loader's workers begin. Keys are sorted by their UTF-8, and searched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

#: Every string there is comes back as it was.
_ERRORS: Final = "surrogatepass"

Numbers = np.ndarray[Any, np.dtype[Any]]


class Packing:
    """Objects that are gathered, in any order of their keys."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._places: list[tuple[bytes, int, int]] = []

    @property
    def nbytes(self) -> int:
        return len(self._data)

    def add(self, key: str, data: bytes) -> None:
        self._places.append((key.encode("utf-8", _ERRORS), len(self._data), len(data)))
        self._data += data

    def packed(self) -> Packed:
        """All of them. It takes the memory over: nothing can be added afterwards."""
        places = sorted(self._places)
        keys = b"".join(key for key, _, _ in places)
        ends = np.zeros(len(places) + 1, np.int64)
        np.cumsum([len(key) for key, _, _ in places], out=ends[1:])
        spans = np.array([(start, start + size) for _, start, size in places], np.int64).reshape(-1, 2)
        return Packed(np.frombuffer(self._data, np.uint8), spans, np.frombuffer(keys, np.uint8), ends)


class Packed:
    """Immutable. `spans[i]` is where the object of the `i`-th key begins and ends in `data`."""

    def __init__(self, data: Numbers, spans: Numbers, keys: Numbers, ends: Numbers) -> None:
        self._arrays = data, spans, keys, ends
        self._data, self._keys = memoryview(data), memoryview(keys)  # type: ignore[arg-type]
        self._spans, self._ends = memoryview(spans.reshape(-1)), memoryview(ends)  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        return (Packed, self._arrays)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def nbytes(self) -> int:
        return len(self._data)

    def get(self, key: str) -> memoryview | None:
        """The object's bytes, in the memory that is shared."""
        name = key.encode("utf-8", _ERRORS)
        at = bisect_left(range(len(self)), name, key=self._key)
        return self._object(at) if at < len(self) and self._key(at) == name else None

    def items(self, prefix: str = "") -> Iterator[tuple[str, memoryview]]:
        """Those whose keys begin with this text, sorted."""
        start = prefix.encode("utf-8", _ERRORS)
        for at in range(bisect_left(range(len(self)), start, key=self._key), len(self)):
            name = self._key(at)
            if not name.startswith(start):
                return
            yield name.decode("utf-8", _ERRORS), self._object(at)

    def _key(self, at: int) -> bytes:
        return bytes(self._keys[self._ends[at] : self._ends[at + 1]])

    def _object(self, at: int) -> memoryview:
        return self._data[self._spans[2 * at] : self._spans[2 * at + 1]]
