"""What all wrappers have in common: they are stores, and everything that is not their idea they leave to the store
inside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Self

from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, Store


class Wrapper(BaseStore):
    """A store that asks another store. The inner one is entered and left with it."""

    def __init__(self, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"{type(self).__name__} goes around a store, got {type(store).__name__}: {store!r}")
        self.store = store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"

    async def fetch(self, request: Request) -> Response:
        return await ask(self.store, request)

    async def size(self, key: str) -> int:
        return await self.store.size(key)

    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        return self.store.list(prefix)

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        await self.store.put(key, data)

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.__aexit__(None, None, None)


async def ask(store: Store, request: Request) -> Response:
    """A store's answer, also of one that knows no requests: it then has no versions, and the size may be a guess."""
    if isinstance(store, BaseStore):
        return await store.fetch(request)
    if request.stop is None and request.start == 0:
        data = await store.get(request.key)
        return Response(data, len(data))
    data = await store.get(request.key, request.start, request.stop)
    return Response(data, await store.size(request.key))


def innermost(store: Store) -> Store:
    """The store that is inside of all wrappers."""
    while isinstance(store, Wrapper):
        store = store.store
    return store
