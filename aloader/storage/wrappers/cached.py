"""A disk of this machine in front of a slow store. What is on the disk, and how, is in `cache_folder`."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from aloader.errors import CacheWarning, KeyNotFound, ObjectChanged
from aloader.options import parse_bytes
from aloader.storage.base import BaseStore, Request, Response, Store, check_key
from aloader.storage.lifetime import PerLoop
from aloader.storage.wrappers.cache_entry import FRONT
from aloader.storage.wrappers.cache_filling import Filling
from aloader.storage.wrappers.cache_folder import CacheFolder, Found
from aloader.storage.wrappers.cache_plan import LOW, PAGE, pages
from aloader.storage.wrappers.wrapper import Wrapper, ask

#: Keys of a hint that are taken, at most: noting one takes some microseconds.
HINTED: Final = 100_000


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Requests of this process since the cache was opened: found in it; fetched; answered by somebody else's fetch.

    And answers that were kept; that were not, since the disk was slow or they are too large; and refusals of the disk.
    """

    hits: int
    misses: int
    joined: int
    kept: int
    left_out: int
    refused: int


class Cached(Wrapper):
    """Answers of a store, kept in a folder of a local disk.

    The folder is shared by all who name it: workers, ranks, other programs, other stores. It takes at most `limit`
    (bytes, or text such as "500GiB"; where programs differ, the lowest counts); what was not used for longest goes
    first. Nothing in it can be wrong after a crash: each entry has checksums, and what does not agree is fetched again.
    A folder with other things in it is refused. It may be deleted at any time.

    **Objects are taken to be immutable**, as data sets are: what is in the cache is right for ever. If yours are
    replaced under the same key, say `revalidate=3600`: an entry that has not been compared with the store for so many
    seconds is, by a request for one byte (stores without versions: it is fetched again). `put` through this cache
    deletes what it has of the object, and a request for a version is only answered with that version.

    Objects that are read whole are kept whole, and answer requests for their ranges too. Ranges are kept as they were
    asked for, so that the next epoch finds them.

    An answer is handed out before it is written. Where the disk is slower than the store, some are not kept, unless
    `complete=True`: reads then wait for the disk. A full or broken disk is said once (`CacheWarning`); reading goes on.

    `namespace` is what entries of this store are filed under: by default the store's `identity`, its place, as its
    `repr` shows it. Name one where that changes and the objects do not.
    """

    def __init__(
        self,
        store: Store,
        folder: str | os.PathLike[str],
        limit: int | str = "100GiB",
        *,
        revalidate: float | None = None,
        complete: bool = False,
        namespace: str | None = None,
    ) -> None:
        super().__init__(store)
        if revalidate is not None and not revalidate >= 0:
            raise ValueError(f"revalidate is seconds, at least 0, or None: got {revalidate!r}")
        self.folder = Path(os.path.abspath(os.path.expanduser(folder)))
        self.limit = parse_bytes(limit, "limit")
        self.revalidate = revalidate
        self.complete = complete
        self.namespace = _identity(store) if namespace is None else namespace
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        return f"Cached({self.store!r}, {str(self.folder)!r})"

    async def fetch(self, request: Request) -> Response:
        filling = self._opened.get()
        check_key(request.key)
        _say(filling)
        found = await filling.find(request)
        if found is not None and await self._is_right(filling, request, found):
            filling.counts.hits += 1
            return found.response
        return await filling.fetched(request)

    async def size(self, key: str) -> int:
        filling = self._opened.get()
        check_key(key)
        known = await filling.size(key) if self.revalidate is None else None
        return await self.store.size(key) if known is None else known

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        filling = self._opened.get()
        await self.store.put(key, data)
        await filling.forget(key)

    def hint(self, keys: Iterable[str], *, fetch: int = 0) -> None:
        """These will be read soon, in this order: they go last, and the first of them last of all.

        With `fetch`, those that are not in the cache are fetched ahead, whole, so many at once; what fails will fail
        when it is read. A new hint ends the old one. Of a longer one, only the first 100,000 keys are looked at.
        """
        filling = self._opened.get()
        if isinstance(keys, str):
            raise TypeError(f"hint takes several keys, got a string: [{keys!r}], say")
        filling.hint([check_key(key) for key in islice(keys, HINTED)], fetch, self.fetch)

    def has_room_for(self, sizes: Iterable[int]) -> bool:
        """Whether objects of these sizes fit into it together, if nothing else is in it."""
        return sum(pages(size + FRONT) for size in sizes) * PAGE <= self.limit * LOW

    async def flush(self) -> None:
        """Wait until what has been read by now is on the disk."""
        await self._opened.get().flush()

    def stats(self) -> CacheStats:
        """What has happened since it was opened on this loop."""
        counts = self._opened.get().counts
        return CacheStats(counts.hits, counts.misses, counts.joined, counts.kept, counts.left_out, counts.refused)

    async def __aenter__(self) -> Cached:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> Filling:
        await stack.enter_async_context(self.store)
        folder = CacheFolder(self.folder, self.limit, self.namespace)
        filling = Filling(folder, self._ask, self.complete)
        stack.callback(_say, filling)  # the last thing that is done
        stack.push_async_callback(filling.aclose)
        await filling.prepare()
        return filling

    async def _ask(self, request: Request) -> Response:
        return await ask(self.store, request)

    async def _is_right(self, filling: Filling, request: Request, found: Found) -> bool:
        """Whether an entry may be used: at once, unless it has to be compared with the store."""
        if self.revalidate is None or time.time() - found.checked < self.revalidate:
            return True
        if await self._is_current(request.key, found.response.version):
            await filling.checked(request)
            return True
        await filling.forget(request.key)
        return False

    async def _is_current(self, key: str, version: str) -> bool:
        if not version:
            return False
        try:
            return (await self._ask(Request(key, 0, 1, version))).version == version
        except (ObjectChanged, KeyNotFound):
            return False


def _say(filling: Filling) -> None:
    trouble, filling.trouble = filling.trouble, None
    if trouble is not None:
        warnings.warn(trouble, CacheWarning, stacklevel=2)


def _identity(store: Store) -> str:
    """What tells a store from all others. Our own wrappers change no bytes: they are looked through."""
    while isinstance(store, Wrapper) and type(store).__module__.startswith("aloader.storage."):
        store = store.store
    identity = store.identity if isinstance(store, BaseStore) else repr(store)
    if identity == object.__repr__(store):
        raise ValueError(
            f"a {type(store).__name__} does not say by its repr where it is, so that its objects could be told from "
            "those of others in the cache: give it a __repr__ (or an `identity`), or Cached a namespace="
        )
    name = type(store).__qualname__  # of a subclass that has its parent's repr, but may change what comes
    return identity if identity.startswith(f"{name}(") else f"{name} {identity}"
