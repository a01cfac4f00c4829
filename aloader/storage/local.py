"""A folder as a store: local disks and NFS. Keys are paths below the folder, with "/" between the parts."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Final, Self

from aloader.errors import AccessDenied, BadKey, BadRange, KeyNotFound, StorageError, StoreNotFound
from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, check_data, check_key
from aloader.storage.hops import Hops
from aloader.storage.lifetime import PerLoop

#: Threads that read. Only slow files need more than one (see `hops`): this many of them are then read side by side.
THREADS: Final = 8

#: Objects of a listing that come out of the thread together.
LISTED_AT_ONCE: Final = 1000

#: How unfinished files are named. They are renamed when whole, and never listed.
UNFINISHED: Final = ".aloader-"


class LocalStore(BaseStore):
    """The files below a folder.

    No key leads out of the folder: absolute ones and ".." are refused with `BadKey`. Symbolic links that are in the
    folder are followed wherever they lead, since whoever may put one there decides what the folder holds.

    The gets of one tick of the loop share one hop into a thread. A `put` makes the folders it needs, writes a file
    beside the old one and renames it: atomic for readers, but not synced to the disk before it returns.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(root))  # not resolved: the root may be a link that is switched over
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    async def fetch(self, request: Request) -> Response:
        hops = self._opened.get()
        self._check(request.key)
        data: bytes = await hops.call(self._read, request.key)
        if request.start >= len(data) > 0:
            raise BadRange(f"{request.key!r} in {self!r} has {len(data)} bytes: none from {request.start}", request.key)
        whole = request.start == 0 and (request.stop is None or request.stop >= len(data))
        return Response(data if whole else data[request.start : request.stop], len(data))

    async def size(self, key: str) -> int:
        return (await self.fetch(Request(key))).size

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        hops = self._opened.get()
        self._check(key)
        await hops.call(self._write, (key, check_data(data)))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        hops = self._opened.get()
        objects = self._walk(prefix)
        while found := await hops.call(_take, objects):
            for info in found:
                yield info

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> Hops:
        hops = Hops(THREADS, "aloader-files")
        stack.push_async_callback(hops.aclose)
        return hops

    def _check(self, key: str) -> None:
        parts = check_key(key).split("/")
        if "" in parts or (os.sep != "/" and any(mark in key for mark in (os.sep, ":"))):
            raise BadKey(
                f"not a key: {key!r} (keys in a folder are relative paths, with single '/' between parts)", key
            )

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    # Everything below runs in threads.

    def _read(self, key: str) -> bytes:
        try:
            return _read_file(self._path(key))
        except OSError as error:
            raise self._explain(error, key, "read") from error

    def _write(self, what: tuple[str, bytes]) -> None:
        key, data = what
        path = self._path(key)
        folder = os.path.dirname(path)
        unfinished = f"{folder}/{UNFINISHED}{secrets.token_hex(8)}"
        try:
            os.makedirs(folder, exist_ok=True)
            try:
                with open(unfinished, "xb") as file:
                    file.write(data)
                os.replace(unfinished, path)
            except BaseException:
                Path(unfinished).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._explain(error, key, "write") from error

    def _explain(self, error: OSError, key: str, verb: str) -> StorageError:
        match error:
            case FileNotFoundError() | IsADirectoryError() | NotADirectoryError() if verb == "read":
                missing = "" if self.root.is_dir() else ": the folder does not exist"
                return KeyNotFound(f"no object {key!r} in {self!r}{missing}", key)
            case PermissionError():
                return AccessDenied(f"may not {verb} {key!r} in {self!r}: check the permissions of the file", key)
            case _:
                return StorageError(f"cannot {verb} {key!r} in {self!r}: {error.strerror or error}", key)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        if not self.root.is_dir():
            raise StoreNotFound(f"there is no folder {str(self.root)!r}")
        start = prefix.rpartition("/")[0]
        if start and ({"", ".", ".."} & set(start.split("/")) or not os.path.isdir(self._path(start))):
            return
        yield from self._below(f"{start}/" if start else "", prefix, ())

    def _below(self, folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[ObjectInfo]:
        """Objects in a folder ("" or ending in "/"), in the order of their names. `above`: the folders on the way."""
        try:
            here = os.stat(self._path(folder))
            with os.scandir(self._path(folder)) as entries:
                names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
        except FileNotFoundError:  # deleted meanwhile
            return
        except OSError as error:
            raise self._explain(error, folder, "list") from error
        identity = (here.st_dev, here.st_ino)
        if identity in above:  # a link to a folder that it lies in
            return
        for key in (folder + name for name in names):
            if key.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._below(key, prefix, (*above, identity))
            elif key.startswith(prefix) and not key.startswith(UNFINISHED, len(folder)):
                yield from self._measure(key)

    def _measure(self, key: str) -> Iterator[ObjectInfo]:
        try:
            status = os.stat(self._path(key))
        except FileNotFoundError:  # deleted meanwhile, or a link to nothing
            return
        if stat.S_ISREG(status.st_mode):
            yield ObjectInfo(key, status.st_size)


def _read_file(path: str) -> bytes:
    """All of a file: a quarter faster for small ones than `open(path, "rb").read()`, which asks more of the system."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # what is no file (a FIFO) must not keep the thread
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data
        with open(descriptor, "rb", buffering=0, closefd=False) as rest:  # larger than one read, or being written
            return data + rest.readall()
    finally:
        os.close(descriptor)


def _take(objects: Iterator[ObjectInfo]) -> list[ObjectInfo]:
    return list(islice(objects, LISTED_AT_ONCE))
