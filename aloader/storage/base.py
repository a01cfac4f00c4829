"""What every store can do, and which keys every store refuses. No I/O here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from aloader.errors import BadKey


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of one object: its key, relative to the store, and its size in bytes."""

    key: str
    size: int


@runtime_checkable
class Store(Protocol):
    """Objects (bytes) under keys (text, parts separated by "/").

    A store is a description until it is entered: `async with store` opens it for the running event loop. It may be
    entered more than once; the last to leave closes it. Another loop (or process) that enters it gets clients of its
    own. Every store can be pickled, open or not: the copy is closed. Its `repr` never shows a secret.

    All methods are called on the loop the store was opened on, by any number of tasks at once. Outside of
    `async with` they raise `aloader.errors.NotOpen`, and a key that leads out of the store raises `BadKey`.
    """

    async def get(self, key: str) -> bytes:
        """The whole object. `KeyNotFound` if there is none; other failures are a `StorageError`."""
        ...

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Write the whole object. A reader sees the old bytes or the new ones, never a part."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Every object whose key begins with this text, once each, in the order that the server likes.

        The prefix is text, not a folder: "a/b" finds "a/b", "a/b/c" and "a/bc". Sort
        what must not vary.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def check_key(key: str) -> str:
    """The key, if a store can hold it.

    "." and ".." as parts are refused everywhere: a folder would be left by them, and HTTP clients and proxies may
    resolve them, so that a request signed for one bucket asks for another.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key must be a string, got {type(key).__name__}: {key!r}")
    if not key or "\0" in key:
        raise BadKey(f"not a key: {key!r} (empty, or with a NUL character)", key)
    if "." in key and not {".", ".."}.isdisjoint(key.split("/")):
        raise BadKey(f"not a key: {key!r} ('.' and '..' may not be parts of one)", key)
    return key


def check_data(data: bytes | bytearray | memoryview) -> bytes:
    """The bytes of an object; a bytearray or memoryview is copied, since the caller may go on writing in it."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"an object is bytes, got {type(data).__name__}")
