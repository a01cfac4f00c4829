"""Any file system that fsspec knows, as a store: for places that have no store of their own here.

Those that are asynchronous underneath (Google's and Azure's stores, for example) run on the loop that opened the store;
the others block, and so run in threads. An instance belongs to one loop in one process: fsspec would share it between
all who ask with the same arguments, and with it connections, loops and listings.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol, Self

from aloader.errors import (
    AccessDenied,
    BadKey,
    BadRange,
    KeyNotFound,
    NotOpen,
    ObjectChanged,
    StorageError,
    StoreUnreachable,
)
from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, check_data, check_key
from aloader.storage.hops import Hops
from aloader.storage.lifetime import PerLoop
from aloader.storage.ranges import LARGE, check_range

#: Threads for a file system that blocks: how many of its requests are on their way at once.
THREADS: Final = 32

#: Under which names file systems tell what changes with an object: the surest first.
VERSIONS: Final = ("ETag", "etag", "e_tag", "generation", "mtime", "LastModified", "last_modified", "modified")

Info = Mapping[str, Any]


class FsspecStore(BaseStore):
    """The objects below an fsspec URL: `FsspecStore("gs://bucket/prefix", token="anon")`. Needs the extra `fsspec`,
    and the package of the file system (`gcsfs`, say).

    `storage_options` go to the file system. They are never shown, nor is what stands before "@" or behind "?" in the
    URL. They have to be picklable.

    What fsspec does not do, this cannot: a `put` is as atomic as the file system makes it, a listing comes in one
    piece, and versions are compared before an object is read rather than by the server. A range costs a second request
    if it is large, reaches beyond the object, or if its size has to be told (`fetch`): that is when versions are.
    """

    def __init__(self, url: str, **storage_options: Any) -> None:
        if not url:
            raise ValueError("an fsspec URL names a place, such as 'gs://bucket/prefix': got an empty string")
        self._url = url
        self._options = storage_options
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        place = re.sub(r"(?<=://)[^/@]*@", "…@", self._url)
        return f"FsspecStore({re.sub(r'[?].*', '?…', place)!r})"

    async def fetch(self, request: Request) -> Response:
        key, start, stop, version, _ = request
        system, path = self._at(key)
        if start == 0 and stop is None and not version:
            data = await self._asked("read", key, system.read(path, None, None))
            return Response(data, len(data))
        info = await self._info(key)
        size, found = int(info["size"]), _version(info)
        if version and version != found:
            raise ObjectChanged(f"{key!r} in {self!r} has been replaced meanwhile", key)
        if start >= size > 0:
            raise BadRange(f"{key!r} in {self!r} has {size} bytes: none from {start}", key)
        end = size if stop is None else min(stop, size)
        return Response(await self._range(key, start, end, size) if size else b"", size, found)

    async def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The object, or its bytes from `start` up to `stop`: in one request, unless they are not all there."""
        begin, end = check_range(start, stop)
        system, path = self._at(key)
        if end is not None and 0 < end - begin <= LARGE:  # some take as much memory as they are asked for
            data: bytes = await self._asked("read", key, system.read(path, begin, end))
            if len(data) == end - begin:
                return data
        return await super().get(key, begin, end)

    async def size(self, key: str) -> int:
        self._at(key)
        return int((await self._info(key))["size"])

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        system, path = self._at(key)
        await self._asked("write", key, system.write(path, check_data(data)))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        system = self._opened.get()
        folder = prefix.rpartition("/")[0]
        if not {".", ".."}.isdisjoint(folder.split("/")):
            return
        try:
            found = await self._asked("list", prefix, system.find(f"{system.root}{folder}"))
        except KeyNotFound:
            return
        for path, info in found.items():
            key = path[len(system.root) :]
            if key and key.startswith(prefix) and info.get("type") != "directory":
                yield ObjectInfo(key, int(info["size"]), _version(info))

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> _System:
        make = asyncio.to_thread(_file_system, self._url, self._options)
        fs, root = await self._asked("open", "", make)
        if getattr(fs, "asynchronous", False):
            if hasattr(fs, "set_session"):
                session = await self._asked("open", "", fs.set_session())
                stack.push_async_callback(session.close)
            return _OnTheLoop(fs, root)
        hops = Hops(THREADS, "aloader-fsspec")
        stack.push_async_callback(hops.aclose)
        return _InThreads(fs, root, hops)

    def _at(self, key: str) -> tuple[_System, str]:
        system = self._opened.get()
        if check_key(key).startswith("/") or key.endswith("/"):
            raise BadKey(f"not a key: {key!r} (fsspec takes a '/' off the ends of a path)", key)
        return system, system.root + key

    async def _info(self, key: str) -> Info:
        system, path = self._at(key)
        info: Info = await self._asked("read", key, system.info(path))
        if info.get("type") == "directory":
            raise self._missing(key)
        if info.get("size") is None:
            raise StorageError(f"cannot read a part of {key!r} in {self!r}: nobody says how large it is", key)
        return info

    async def _range(self, key: str, start: int, stop: int, size: int) -> bytes:
        system, path = self._at(key)
        data: bytes = await self._asked("read", key, system.read(path, start, stop))
        if len(data) == stop - start:
            return data
        if len(data) == size:  # of a server that knows no ranges
            return data[start:stop]
        raise ObjectChanged(f"{key!r} in {self!r} has become shorter while it was read", key)

    async def _asked(self, verb: str, key: str, answer: Awaitable[Any]) -> Any:
        what = f"cannot {verb} {f'{key!r} in ' if key else ''}{self!r}"
        try:
            return await answer
        except (NotOpen, ImportError):
            raise
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            if verb == "write":
                raise StorageError(f"{what}: {type(error).__name__}", key) from error
            raise self._missing(key) from error
        except PermissionError as error:
            raise AccessDenied(f"{what}: the file system refused: check the storage options", key) from error
        except (ConnectionError, TimeoutError) as error:
            raise StoreUnreachable(f"{what}: nothing answers, or not in time ({type(error).__name__})", key) from error
        except Exception as error:  # its text may hold what is secret: whoever looks at the cause sees it
            raise StorageError(f"{what}: the file system failed ({type(error).__name__})", key) from error

    def _missing(self, key: str) -> KeyNotFound:
        return KeyNotFound(f"no object {key!r} in {self!r}", key)


class _System(Protocol):
    """A file system, as far as it is needed. Paths begin with `root`, which is empty or ends in "/"."""

    root: str

    def read(self, path: str, start: int | None, stop: int | None) -> Awaitable[bytes]: ...

    def info(self, path: str) -> Awaitable[Info]: ...

    def find(self, path: str) -> Awaitable[Mapping[str, Info]]: ...

    def write(self, path: str, data: bytes) -> Awaitable[None]: ...


class _OnTheLoop(_System):
    """One that is asynchronous."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs, self.root = fs, root

    async def read(self, path: str, start: int | None, stop: int | None) -> bytes:
        return bytes(await self._fs._cat_file(path, start=start, end=stop))

    async def info(self, path: str) -> Info:
        found: Info = await self._fs._info(path)
        return found

    async def find(self, path: str) -> Mapping[str, Info]:
        self._fs.invalidate_cache()  # a listing must not be an old one, nor sizes be those of this one for ever
        found: Mapping[str, Info] = await self._fs._find(path, detail=True)
        self._fs.invalidate_cache()
        return found

    async def write(self, path: str, data: bytes) -> None:
        await self._fs._pipe_file(path, data)


class _InThreads(_System):
    """One that blocks."""

    def __init__(self, fs: Any, root: str, hops: Hops) -> None:
        self._fs, self.root, self._hops = fs, root, hops

    def _call(self, act: Callable[[], Any]) -> Awaitable[Any]:
        return self._hops.call(lambda _: act(), None)

    def read(self, path: str, start: int | None, stop: int | None) -> Awaitable[bytes]:
        return self._call(lambda: bytes(self._fs.cat_file(path, start=start, end=stop)))

    def info(self, path: str) -> Awaitable[Info]:
        return self._call(lambda: self._fs.info(path))

    def find(self, path: str) -> Awaitable[Mapping[str, Info]]:
        def fresh() -> Any:
            self._fs.invalidate_cache()
            found = self._fs.find(path, detail=True)
            self._fs.invalidate_cache()
            return found

        return self._call(fresh)

    def write(self, path: str, data: bytes) -> Awaitable[None]:
        def with_folders() -> None:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data)

        return self._call(with_folders)


def _file_system(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """A new file system for a URL, and the path that its keys are below. Imports what it needs: in a thread."""
    try:
        from fsspec.core import split_protocol, url_to_fs
        from fsspec.registry import get_filesystem_class
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "fsspec":
            raise
        raise ModuleNotFoundError('fsspec stores need fsspec: pip install "aloader[fsspec]"', name=error.name) from None
    own: dict[str, Any] = {"skip_instance_cache": True}
    protocol = None if "::" in url else split_protocol(url)[0]  # in a chain, those inside would not be on the loop
    if protocol is not None and getattr(get_filesystem_class(protocol), "async_impl", False):
        own["asynchronous"] = True
    fs, root = url_to_fs(url, **{**options, **own})
    return fs, root if root == "" or root.endswith("/") else f"{root}/"


def _version(info: Info) -> str:
    for name in VERSIONS:
        if info.get(name):
            return f"{info[name]}-{info.get('size')}"
    return ""
