"""What all wrappers have in common: they are stores, and everything that is not their idea they leave to the store
inside."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random
from typing import Generic, Self, TypeVar

from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, Store
from aloader.storage.lifetime import PerLoop

T = TypeVar("T")


class Wrapper(BaseStore):
    """A store that asks another store. The inner one is entered and left with it."""

    def __init__(self, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"{type(self).__name__} goes around a store, got {type(store).__name__}: {store!r}")
        self.store = store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"

    @property
    def identity(self) -> str:
        """Of a store around that one: it may change what comes. (Those of this package do not, and caches know it.)"""
        inner = self.store.identity if isinstance(self.store, BaseStore) else repr(self.store)
        return f"{type(self).__qualname__}({inner})"

    @property
    def from_front(self) -> bool:
        return from_front(self.store)

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


class StatefulWrapper(Wrapper, Generic[T]):
    """A wrapper that learns while it is open, on each loop for itself: `make` gives it what it learns with."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._opened = PerLoop(self, self._open)

    @abstractmethod
    def make(self, stack: AsyncExitStack) -> T:
        """What it holds while it is open on the running loop. The stack is closed with it, before the store inside."""

    def generator(self) -> Random:
        """What it draws from: its own, so that the user's generators are not touched."""
        return Random()

    @property
    def here(self) -> T:
        """What it holds on the running loop; `NotOpen` if it is not open here."""
        return self._opened.get()

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> T:
        await stack.enter_async_context(self.store)
        return self.make(stack)


async def ask(store: Store, request: Request) -> Response:
    """A store's answer, also of one that knows no requests: it then has no versions, and the size may be a guess."""
    if isinstance(store, BaseStore):
        return await store.fetch(request)
    if request.stop is None and request.start == 0:
        data = await store.get(request.key)
        return Response(data, len(data))
    data = await store.get(request.key, request.start, request.stop)
    return Response(data, await store.size(request.key))


def from_front(store: Store) -> bool:
    """Whether a store sends everything from its front: see there. One that does not say so does not."""
    return isinstance(store, BaseStore) and store.from_front


def innermost(store: Store) -> Store:
    """The store that is inside of all wrappers."""
    while isinstance(store, Wrapper):
        store = store.store
    return store
