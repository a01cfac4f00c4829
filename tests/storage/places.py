"""The stores that the conformance suite is run for. A new one joins by one line here.

A `Place` is an empty place of one kind of store, and how to get at it. What it cannot do is said here, once, and the
tests that need it are not run for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from aloader.storage import FsspecStore, HTTPStore, LocalStore, MemoryStore, Store
from aloader.storage.wrappers.wrapper import Wrapper
from tests.servers import BUCKET
from tests.web import FileServer


@dataclass(frozen=True)
class Place:
    """`make` makes one more store for the place; `fill` puts objects there, through a `writer` if it cannot itself."""

    make: Callable[[], Store]
    writer: Callable[[], Store] | None = None

    async def fill(self, objects: Mapping[str, bytes]) -> None:
        async with (self.writer or self.make)() as store:
            for key, data in objects.items():
                await store.put(key, data)


#: Kinds of stores by what they can do. `versions`: a request for one that is gone is refused. `folders`: there is no
#: room for the object "a/b" beside "a/b/c". `IGNORES_RANGES`: a range behind the end is not an error.
READ_ONLY = {"http"}
VERSIONS = {"local", "http", "fsspec-file", "fsspec-async"}
FOLDERS = {"local", "fsspec-file", "fsspec-memory", "fsspec-async"}
IGNORES_RANGES = {"s3"}

MAKERS: dict[str, Callable[[pytest.FixtureRequest, Path, ExitStack], Place]] = {
    "memory": lambda request, folder, stack: _one(MemoryStore()),
    "local": lambda request, folder, stack: Place(lambda: LocalStore(folder)),
    "s3": lambda request, folder, stack: _bucket(request, "s3_server"),
    "http": lambda request, folder, stack: _web(folder, stack),
    "fsspec-memory": lambda request, folder, stack: _fsspec(f"memory://{uuid4().hex}/base"),
    "fsspec-file": lambda request, folder, stack: _fsspec(f"file://{folder}"),
    "fsspec-async": lambda request, folder, stack: _asynchronous(),
    "wrapper": lambda request, folder, stack: _one(Wrapper(MemoryStore())),
}

EVERY = list(MAKERS)
WRITABLE = [kind for kind in EVERY if kind not in READ_ONLY]


def _one(store: Store) -> Place:
    return Place(lambda: store)


def _bucket(request: pytest.FixtureRequest, server_name: str) -> Place:
    server = request.getfixturevalue(server_name)
    prefix = f"conformance/{uuid4().hex}"
    return Place(lambda: server.store(BUCKET, prefix))


def _fsspec(url: str) -> Place:
    return Place(lambda: FsspecStore(url))


def _asynchronous() -> Place:
    fsspec.register_implementation("apart", AsyncFiles, clobber=True)
    return _fsspec(f"apart://{uuid4().hex}/base")


class AsyncFiles(AsyncFileSystem):  # type: ignore[misc]
    """A file system whose methods are coroutines: fsspec's own one in memory, one step of the loop away."""

    protocol = "apart"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = MemoryFileSystem(skip_instance_cache=True)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        await asyncio.sleep(0)
        found: bytes = self.inner.cat_file(f"/{path}", start, end)
        return found

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        found = self.inner.info(f"/{path}")
        return found if found["type"] == "directory" else {**found, "ETag": str(hash(self.inner.cat_file(f"/{path}")))}

    async def _find(self, path: str, **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {name[1:]: info for name, info in self.inner.find(f"/{path}", detail=True).items()}

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        await asyncio.sleep(0)
        self.inner.pipe_file(f"/{path}", value)


def _web(folder: Path, stack: ExitStack) -> Place:
    server = stack.enter_context(FileServer(folder))
    return Place(lambda: HTTPStore(server.url), lambda: LocalStore(folder))
