"""What every store can do, which keys every store refuses, and what a store need not write itself. No I/O here.

`Store` is what programs use. `BaseStore` is what stores are made from: one that can answer a `Request` has all of
`get`, `get_ranges`, `get_many`, `exists` and `stream`. The wrappers (retry, hedge, limit, verify, cache) stand between
the two: each is a store that answers requests by asking the store inside it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from aloader.errors import BadKey, BadRange, KeyNotFound
from aloader.storage.ranges import PART, Range, check_range, coalesce

T = TypeVar("T")

#: (`list` is a method of every store.)
Blobs = list[bytes]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of one object: its key, relative to the store, and its size in bytes.

    `version` changes when the object does (an ETag, say); "" where the store does not tell. It is not compared.
    """

    key: str
    size: int
    version: str = field(default="", compare=False)


class Request(NamedTuple):
    """Bytes `start` to `stop` (None: to the end) of the object under `key`.

    With a `version`, only of that version: else `ObjectChanged`. With `most`, where the store is only told by the
    answer how large the object is: of a larger one it should give the first `most` bytes alone.
    """

    key: str
    start: int = 0
    stop: int | None = None
    version: str = ""
    most: int | None = None

    def end(self, size: int) -> int:
        """Where the answer ends, of an object of this size."""
        end = size if self.stop is None else min(self.stop, size)
        return end if self.most is None else min(end, self.start + self.most)


NO_DIGESTS: Final[Mapping[str, str]] = MappingProxyType({})


class Response(NamedTuple):
    """The bytes that were asked for, all of them; the size of the whole object, its version ("" if the store has none),
    and its digests as the store gave them: by name ("md5", "crc32", "crc32c", "sha1", "sha256"), in lower-case hex."""

    data: bytes
    size: int
    version: str = ""
    digests: Mapping[str, str] = NO_DIGESTS


@runtime_checkable
class Store(Protocol):
    """Objects (bytes) under keys (text, parts separated by "/").

    A store is a description until it is entered: `async with store` opens it for the running event loop. It may be
    entered more than once; the last to leave closes it. Another loop (or process) that enters it gets clients of its
    own. Every store can be pickled, open or not: the copy is closed. Its `repr` never shows a secret.

    All methods are called on the loop the store was opened on, by any number of tasks at once. Outside of
    `async with` they raise `aloader.errors.NotOpen`, and a key that leads out of the store raises `BadKey`. What is not
    there raises `KeyNotFound`; every failure is a `StorageError`.
    """

    async def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The object, or its bytes from `start` up to `stop`, as of a slice: a `stop` behind the end is the end.

        `BadRange` if it begins at or behind the end of an object that is not empty; `ValueError` unless
        0 <= start <= stop.
        """
        ...

    async def get_ranges(self, key: str, ranges: Sequence[Range]) -> Blobs:
        """Several ranges (start, stop) of one object, in the order asked for. Near ones are read together."""
        ...

    async def get_many(self, keys: Iterable[str]) -> Blobs:
        """Several objects at once, in the order asked for. The first failure is raised, and ends the others."""
        ...

    async def size(self, key: str) -> int:
        """The object's size in bytes."""
        ...

    async def exists(self, key: str) -> bool:
        """Whether there is an object under this key."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Every object whose key begins with this text, once each, in the order that the server likes; page by page.

        The prefix is text, not a folder: "a/b" finds "a/b", "a/b/c" and "a/bc". Sort
        what must not vary.
        """
        ...

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Write the whole object. A reader sees the old bytes or the new ones, never a part."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class BaseStore(ABC):
    """A store for all of whose reading it is enough to answer requests. To be inherited from."""

    @abstractmethod
    async def fetch(self, request: Request) -> Response:
        """Exactly what was asked for, or an error: never fewer bytes. The range is checked already (`check_range`),
        and not empty unless the object is; the key is not checked."""

    @property
    def identity(self) -> str:
        """What tells this store from all others, in every process, now and later: caches file its objects under it.

        Without secrets. By default it is the `repr`, which says where a store is; to be written anew where that leaves
        something out on which it depends what the objects are.
        """
        return repr(self)

    @property
    def from_front(self) -> bool:
        """Whether each range comes with all that lies before it, as far as answers have told: what is large is then
        not read in parts."""
        return False

    @abstractmethod
    async def size(self, key: str) -> int:
        """The object's size in bytes."""

    @abstractmethod
    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Every object whose key begins with this text, once each."""

    @abstractmethod
    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Write the whole object."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The object, or its bytes from `start` up to `stop`."""
        begin, end = check_range(start, stop)
        if begin == end:
            check_key(key)
            return b""
        return (await self.fetch(Request(key, begin, end))).data

    async def get_ranges(self, key: str, ranges: Sequence[Range]) -> Blobs:
        """Several ranges of one object, in the order asked for."""
        pieces = coalesce(ranges)
        answers = await together(self.fetch(Request(key, piece.start, piece.stop)) for piece in pieces)
        found = [b""] * len(ranges)
        for piece, answer in zip(pieces, answers, strict=True):
            for place in piece.members:
                start, stop = ranges[place]
                if start >= answer.size > 0:  # the others that were read with it may begin before
                    raise BadRange(f"{key!r} in {self!r} has {answer.size} bytes: none from {start}", key)
                found[place] = answer.data[start - piece.start : stop - piece.start]
        return found

    def get_now(self, key: str, most: int) -> bytes | None:
        """The whole object if it is at hand, in memory, and has at most `most` bytes: in no more time than copying
        takes. None if it is not, or if that is not known; whatever is wrong, `get` will say. Only for event loops that
        may stand still for so long."""
        return None

    async def get_many(self, keys: Iterable[str]) -> Blobs:
        """Several objects at once, in the order asked for."""
        return await together(map(self.get, keys))

    async def exists(self, key: str) -> bool:
        """Whether there is an object under this key."""
        try:
            await self.size(key)
        except KeyNotFound:
            return False
        return True

    async def stream(self, key: str, chunk: int = PART) -> AsyncIterator[bytes]:
        """The object from its front, `chunk` bytes at a time; all of one version, or `ObjectChanged`."""
        answer = await self.fetch(Request(key, 0, chunk))
        at = len(answer.data)
        yield answer.data
        while at < answer.size:
            more = await self.fetch(Request(key, at, at + chunk, answer.version))
            at += len(more.data)
            yield more.data


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All at once; the first failure is raised as it is, when all the others have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
    else:
        return [task.result() for task in tasks]
    try:
        raise first  # out here, since `from None` would take its cause away
    finally:
        del first  # it would keep itself alive by its traceback


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
