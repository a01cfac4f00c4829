"""What a `FaultServer` serves: objects in memory, files, or objects that are made as they are asked for.

Synchronous, with no event loop. Bodies are memoryviews where they can be: nothing is copied on their way to the socket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, Protocol

from aloader.options import KIB

#: How far apart the places of two objects that follow each other are: odd, so that every place is used.
STRIDE: Final = 40503


class Blob(NamedTuple):
    """An object: all of its bytes, and the ETag, without quotes."""

    data: memoryview
    etag: str


class Objects(Protocol):
    """Objects under keys."""

    def find(self, key: str) -> Blob | None: ...

    def put(self, key: str, data: bytes) -> None: ...

    def keys(self) -> Sequence[str]:
        """All of them, sorted by code points, which is the order of their UTF-8."""
        ...


class Synthetic:
    """`count` objects of `nbytes` bytes, under "00000000", "00000001" and so on, made from `seed` when asked for.

    All are windows into one block of random bytes, each at a place of its own: they cost neither memory nor time, and
    `expected(key)` says what they hold. Their ETags look as those of multipart uploads, which are no digests of
    the bytes; with `md5=True` they are, which reads every object once.
    """

    def __init__(self, count: int, nbytes: int, seed: int = 0, *, md5: bool = False) -> None:
        if count < 1 or nbytes < 0:
            raise ValueError(f"count= is at least 1 and nbytes= at least 0: got {count} and {nbytes}")
        self.count, self.nbytes, self.seed, self.md5 = count, nbytes, seed, md5
        self._places = max(64 * KIB, 1 << (count - 1).bit_length())
        self._block: memoryview | None = None
        self._written: dict[str, Blob] = {}

    def __repr__(self) -> str:
        return f"Synthetic({self.count}, {self.nbytes}, seed={self.seed})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_synthetic, (self.count, self.nbytes, self.seed, self.md5))

    def __len__(self) -> int:
        return self.count

    def key(self, index: int) -> str:
        return f"{index:08d}"

    def expected(self, key: str) -> bytes:
        """The bytes of an object; `KeyError` if there is none."""
        return bytes(self._window(key))

    def find(self, key: str) -> Blob | None:
        if key in self._written:
            return self._written[key]
        try:
            data = self._window(key)
        except KeyError:
            return None
        if self.md5:
            blob = self._written[key] = _blob(data)
            return blob
        return Blob(data, f"{self.seed & 0xFFFFFFFF:08x}{self.nbytes:012x}{int(key):012x}-1")

    def keys(self) -> Sequence[str]:
        own = [self.key(index) for index in range(self.count)]
        return sorted({*own, *self._written}) if self._written else own

    def put(self, key: str, data: bytes) -> None:
        self._written[key] = _blob(memoryview(data))

    def _window(self, key: str) -> memoryview:
        index = int(key) if key.isascii() and key.isdigit() else self.count
        if index >= self.count or key != self.key(index):
            raise KeyError(key)
        if self._block is None:
            self._block = memoryview(Random(self.seed).randbytes(self.nbytes + self._places))
        place = index * STRIDE % self._places
        return self._block[place : place + self.nbytes]


class InMemory:
    """Objects in a dict."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._blobs = {key: _blob(memoryview(data)) for key, data in objects.items()}
        self._keys: Sequence[str] | None = None

    def find(self, key: str) -> Blob | None:
        return self._blobs.get(key)

    def keys(self) -> Sequence[str]:
        if self._keys is None:
            self._keys = sorted(self._blobs)
        return self._keys

    def put(self, key: str, data: bytes) -> None:
        self._blobs[key] = _blob(memoryview(data))
        self._keys = None


class Folder:
    """The files below a folder. Each is read when it is asked for, and blocks the server meanwhile."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def find(self, key: str) -> Blob | None:
        path = self._path(key)
        return _blob(memoryview(path.read_bytes())) if path is not None and path.is_file() else None

    def keys(self) -> Sequence[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        if path is None:
            raise KeyError(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _path(self, key: str) -> Path | None:
        path = (self._root / key).resolve()
        return path if path.is_relative_to(self._root) else None


def objects_of(what: Mapping[str, bytes] | str | Path | Synthetic) -> Objects:
    """What the user gave, as objects."""
    match what:
        case Synthetic():
            return what
        case str() | Path():
            return Folder(Path(what))
        case Mapping():
            return InMemory(what)
    raise TypeError(f"a server serves a dict of bytes, a folder or Synthetic(…): got {type(what).__name__}")


def _blob(data: memoryview) -> Blob:
    return Blob(data, hashlib.md5(data).hexdigest())


def _synthetic(count: int, nbytes: int, seed: int, md5: bool) -> Synthetic:
    return Synthetic(count, nbytes, seed, md5=md5)
