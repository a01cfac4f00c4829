"""A folder as a store: local disks and NFS. Keys are paths below the folder, with "/" between the parts.

What is done to files stands in `files`, how it gets into threads in `hops`; here is what it means to a store.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Literal, Self, TypeVar

from aloader.errors import AccessDenied, BadKey, BadRange, KeyNotFound, ObjectChanged, StorageError, StoreNotFound
from aloader.storage import files
from aloader.storage.base import BaseStore, Blobs, ObjectInfo, Request, Response, check_data, check_key
from aloader.storage.hops import SLOW, Hops
from aloader.storage.lifetime import PerLoop
from aloader.storage.ranges import PART, Range, check_range

T = TypeVar("T")

#: (`list` is a method of every store.)
Keys = list[str]
Infos = list[ObjectInfo]

#: Threads that read. Only slow files need more than one (see `hops`): so many of them are then read side by side. Over
#: a network each waits for an answer, and the server has many disks.
THREADS: Final = {"local": 8, "nfs": 32}

#: Whether the system tells what is in memory (Linux does); and how many bytes a second it copies at the very least.
NOWAIT: Final = hasattr(os, "RWF_NOWAIT")
SLOWEST_COPY: Final = 1e9

#: Objects of a listing that come out of the threads together, and those whose sizes one call asks for.
LISTED_AT_ONCE: Final = 1000
MEASURED_AT_ONCE: Final = 50

#: Files whose reading is announced in one call.
HINTED_AT_ONCE: Final = 16


class LocalStore(BaseStore):
    """The files below a folder.

    No key leads out of the folder: absolute ones and ".." are refused with `BadKey`. Symbolic links that are in the
    folder are followed wherever they lead, since whoever may put one there decides what the folder holds.

    The reads of one tick of the loop share one hop into a thread. A `put` makes the folders it needs, writes a file
    beside the old one and renames it: atomic for readers, but not synced to the disk before it returns. A file's
    version is its size and the time of its last change.

    `profile="nfs"` reads more files side by side, since each of them waits for the network. `readahead` tells the
    system of each range before it is read. Try whether it helps: on a virtual disk, with nothing in memory, it took
    away up to a quarter of the pace, since the system reads ahead by itself.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        profile: Literal["local", "nfs"] = "local",
        readahead: bool = False,
    ) -> None:
        if profile not in THREADS:
            raise ValueError(f"profile= is {' or '.join(map(repr, THREADS))}, got {profile!r}")
        self.root = Path(os.path.abspath(root))  # not resolved: the root may be a link that is switched over
        self._folder = str(self.root)
        self.profile = profile
        self.readahead = readahead
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        more = [f"profile={self.profile!r}"] if self.profile != "local" else []
        more += ["readahead=True"] if self.readahead else []
        return f"LocalStore({', '.join([repr(str(self.root)), *more])})"

    async def fetch(self, request: Request) -> Response:
        hops = self._opened.get()
        self._check(request.key)
        found: files.Part = await hops.call(self._read, request)
        return Response(*found)

    async def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The object, or its bytes from `start` up to `stop`. As `fetch`, but for what only an answer needs."""
        hops = self._opened.get()
        self._check(key)
        begin, end = (0, None) if start is stop is None else check_range(start, stop)
        data: bytes = await hops.call(self._get, (key, begin, end)) if begin != end else b""
        return data

    def get_now(self, key: str, most: int) -> bytes | None:
        """The whole file if it lies in the system's memory. Opening it may look at the disk: where that takes long, or
        files are seldom in memory, this soon gives up, for a while."""
        hops = self._opened.get()
        if self.profile != "local" or not NOWAIT or not hops.luck.tries():
            return None
        began = time.perf_counter()
        try:
            data = files.read_now(f"{self._folder}/{self._check(key)}", min(most, files.NOW_BYTES))
        except OSError:  # it is not there, or the file system does not tell what is in memory
            data = None
        hops.luck.had(data is not None and time.perf_counter() - began < SLOW + len(data) / SLOWEST_COPY)
        return data

    async def get_ranges(self, key: str, ranges: Sequence[Range]) -> Blobs:
        """Several ranges of one file, which is opened once. What lies between them is not read."""
        hops = self._opened.get()
        self._check(key)
        wanted = [(check_range(*each)[0], each[1]) for each in ranges]
        found: Blobs = await hops.call(self._read_ranges, (key, wanted)) if wanted else []
        return found

    async def get_many(self, keys: Iterable[str]) -> Blobs:
        """Several objects at once, in the order asked for: one hop, and no tasks."""
        hops = self._opened.get()
        whole = [(self._check(key), 0, None) for key in keys]
        calls = [hops.call(self._get, each) for each in whole]
        try:
            found: Blobs = await asyncio.gather(*calls)
            return found
        except BaseException:
            for call in calls:
                call.cancel()
            raise

    async def size(self, key: str) -> int:
        hops = self._opened.get()
        size: int = await hops.call(self._size, self._check(key))
        return size

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        hops = self._opened.get()
        await hops.call(self._write, (self._check(key), check_data(data)))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        hops = self._opened.get()
        keys = files.walk(str(self.root), prefix)
        await hops.call(self._check_root, None)
        page: Keys
        while page := await hops.call(self._take, keys):
            groups = [page[at : at + MEASURED_AT_ONCE] for at in range(0, len(page), MEASURED_AT_ONCE)]
            for found in await asyncio.gather(*(hops.call(self._measure, group) for group in groups)):
                for info in found:
                    yield info

    async def stream(self, key: str, chunk: int = PART) -> AsyncIterator[bytes]:
        """The file from its front. It is one version, since a `put` does not write into the file that is open."""
        self._opened.get()
        from aiofiles.threadpool import wrap

        path = self._path(self._check(key))
        try:
            raw = await asyncio.to_thread(open, path, "rb", buffering=0, opener=_opener)
            try:
                file = wrap(raw)
                while data := await file.read(chunk):
                    self._opened.get()
                    yield data
            finally:
                raw.close()  # here and now, whoever has given the stream up, and how
        except StorageError:
            raise
        except OSError as error:
            raise self._explain(error, key, "read") from error

    async def hint(self, keys: Iterable[str]) -> None:
        """Tell the system that these objects will be read soon. It reads ahead as far as it likes; what is missing is
        passed over."""
        hops = self._opened.get()
        paths = [self._path(self._check(key)) for key in keys]
        groups = [paths[at : at + HINTED_AT_ONCE] for at in range(0, len(paths), HINTED_AT_ONCE)]
        await asyncio.gather(*(hops.call(files.hint, group) for group in groups))

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> Hops:
        threads = THREADS[self.profile]
        hops = Hops(threads, "aloader-files", joining=threads if self.profile == "nfs" else 1)
        stack.push_async_callback(hops.aclose)
        return hops

    def _check(self, key: str) -> str:
        check_key(key)
        foreign = os.sep != "/" and (os.sep in key or ":" in key)
        if key[0] == "/" or key[-1] == "/" or "//" in key or foreign:
            raise BadKey(
                f"not a key: {key!r} (keys in a folder are relative paths, with single '/' between parts)", key
            )
        return key

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key}"

    # Everything below runs in threads.

    def _get(self, what: tuple[str, int, int | None]) -> bytes:
        """The data alone, in a third less time. What does not go well goes the long way, and fails there."""
        key, start, stop = what
        try:
            data = files.read_quickly(f"{self._folder}/{key}", start, stop, self.readahead)
        except OSError:
            data = None
        return self._read(Request(key, start, stop)).data if data is None else data

    def _read(self, request: Request) -> files.Part:
        key, start, stop, version, most = request
        found = self._try("read", key, partial(files.read, self._path(key), start, stop, version, most, self.readahead))
        if start >= found.size > 0:
            raise self._behind(key, found.size, start)
        return found

    def _read_ranges(self, what: tuple[str, Sequence[Range]]) -> Blobs:
        key, ranges = what
        found, size = self._try("read", key, partial(files.read_ranges, self._path(key), ranges, self.readahead))
        for start, stop in ranges:
            if start >= size > 0 and stop > start:
                raise self._behind(key, size, start)
        return found

    def _size(self, key: str) -> int:
        found = self._try("read", key, partial(files.measure, self._path(key)))
        if found is None:
            raise self._missing(key)
        return found[0]

    def _write(self, what: tuple[str, bytes]) -> None:
        key, data = what
        self._try("write", key, partial(files.write, self._path(key), data))

    def _check_root(self, _: None) -> None:
        if not self.root.is_dir():
            is_file = f": it is a file, and {str(self.root.parent)!r} its folder" if self.root.exists() else ""
            raise StoreNotFound(f"there is no folder {str(self.root)!r}{is_file}")

    def _take(self, keys: Iterator[str]) -> Keys:
        try:
            return list(islice(keys, LISTED_AT_ONCE))
        except OSError as error:
            raise self._explain(error, os.path.relpath(error.filename, self.root), "list") from error

    def _measure(self, keys: Sequence[str]) -> Infos:
        sizes = [(key, self._try("list", key, partial(files.measure, self._path(key)))) for key in keys]
        return [ObjectInfo(key, *found) for key, found in sizes if found is not None]

    def _try(self, verb: str, key: str, act: Callable[[], T]) -> T:
        try:
            return files.again_if_stale(act)
        except files.Changed as error:
            raise ObjectChanged(f"{key!r} in {self!r} has been replaced or cut while it was read", key) from error
        except OSError as error:
            raise self._explain(error, key, verb) from error

    def _explain(self, error: OSError, key: str, verb: str) -> StorageError:
        match error:
            case FileNotFoundError() | IsADirectoryError() | NotADirectoryError() if verb == "read":
                return self._missing(key)
            case PermissionError():
                return AccessDenied(f"may not {verb} {key!r} in {self!r}: check the permissions of the file", key)
            case _:
                return StorageError(f"cannot {verb} {key!r} in {self!r}: {error.strerror or error}", key)

    def _missing(self, key: str) -> KeyNotFound:
        missing = "" if self.root.is_dir() else ": the folder does not exist"
        return KeyNotFound(f"no object {key!r} in {self!r}{missing}", key)

    def _behind(self, key: str, size: int, start: int) -> BadRange:
        return BadRange(f"{key!r} in {self!r} has {size} bytes: none from {start}", key)


def _opener(path: str, _: int) -> int:
    return os.open(path, files.READING)
