"""A store in this process's memory: for tests, and for small data that travels to the workers with the dataset."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Self

from aloader.errors import BadRange, KeyNotFound
from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, check_data, check_key
from aloader.storage.lifetime import PerLoop


class MemoryStore(BaseStore):
    """Objects in a dict. Pickling copies them: what a worker writes stays in that worker."""

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        self._objects = {check_key(key): check_data(data) for key, data in (objects or {}).items()}
        # Nothing to open; but code that forgets `async with` should fail in its tests, not first with a bucket.
        self._opened = PerLoop(self, self._open)
        self._token = secrets.token_hex(16)

    def __repr__(self) -> str:
        size = sum(map(len, self._objects.values()))
        return f"MemoryStore({len(self._objects)} objects, {size} bytes)"

    @property
    def identity(self) -> str:
        """It is nowhere else: only its copies are the same store."""
        return f"MemoryStore({self._token})"

    async def fetch(self, request: Request) -> Response:
        data = self._object(request.key)
        if request.start >= len(data) > 0:
            raise BadRange(f"{request.key!r} in {self!r} has {len(data)} bytes: none from {request.start}", request.key)
        whole = request.start == 0 and (request.stop is None or request.stop >= len(data))
        return Response(data if whole else data[request.start : request.stop], len(data))

    async def size(self, key: str) -> int:
        return len(self._object(key))

    def _object(self, key: str) -> bytes:
        self._opened.get()
        try:
            return self._objects[check_key(key)]
        except KeyError:
            raise KeyNotFound(f"no object {key!r} in {self!r}", key) from None

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._opened.get()
        self._objects[check_key(key)] = check_data(data)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        self._opened.get()
        for key in sorted(key for key in self._objects if key.startswith(prefix)):
            yield ObjectInfo(key, len(self._objects[key]))

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> bool:
        return True
