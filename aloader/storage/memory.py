"""A store in this process's memory: for tests, and for small data that travels to the workers with the dataset."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Final, Self

from aloader.errors import BadRange, KeyNotFound
from aloader.options import MIB, parse_bytes
from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, Store, check_data, check_key
from aloader.storage.lifetime import PerLoop
from aloader.storage.packed import Packing
from aloader.storage.ranges import PART

#: What `load` asks for at once: as many objects, or fewer of known sizes that come to as many bytes.
ASKED_AT_ONCE: Final = 64
BYTES_AT_ONCE: Final = 64 * MIB


class MemoryStore(BaseStore):
    """Objects in a dict. Pickling copies them: what a worker writes stays in that worker.

    `load` makes one of what another store holds, whose memory all workers of a loader share.
    """

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        self._objects = {check_key(key): check_data(data) for key, data in (objects or {}).items()}
        self._packed = Packing().packed()
        # Nothing to open; but code that forgets `async with` should fail in its tests, not first with a bucket.
        self._opened = PerLoop(self, self._open)
        self._token = secrets.token_hex(16)

    @classmethod
    async def load(
        cls, store: Store, prefix: str = "", keys: Iterable[str] | None = None, limit: int | str = "1GiB"
    ) -> Self:
        """A small set in memory: what `store` holds under `keys`, or under all keys that begin with `prefix`.

            store = await MemoryStore.load(S3Store("bucket", "labels"))
            loader = aloader.DataLoader(ObjectDataset(store, keys), num_workers=4)

        It is read once, here, into one piece of memory: workers of a loader get it with the dataset, and share it
        (beside this program's own there is one copy, however many they are). Keys stay what they are.

        `ValueError` if it takes more than `limit`, said before anything is read where the sizes are known from a
        listing; else what the store raises.
        """
        most = parse_bytes(limit, "limit")
        packing = Packing()
        async with store:
            sizes: dict[str, int | None] = dict.fromkeys(map(check_key, keys)) if keys is not None else {}
            if keys is None:
                async for info in store.list(prefix):
                    sizes[info.key] = info.size
            _check_limit(sum(size or 0 for size in sizes.values()), most, store)
            for group in _groups(sizes):
                for key, data in zip(group, await store.get_many(group), strict=True):
                    packing.add(key, data)
                    _check_limit(packing.nbytes, most, store)
        loaded = cls()
        loaded._packed = packing.packed()
        return loaded

    def __repr__(self) -> str:
        shown = [f"{len(self._objects)} objects, {sum(map(len, self._objects.values()))} bytes"]
        if len(self._packed):
            shown = [f"{len(self._packed)} objects, {self._packed.nbytes} bytes loaded", *shown[: len(self._objects)]]
        return f"MemoryStore({'; '.join(shown)})"

    @property
    def identity(self) -> str:
        """It is nowhere else: only its copies are the same store."""
        return f"MemoryStore({self._token})"

    async def fetch(self, request: Request) -> Response:
        data = self._object(request.key)
        if request.start >= len(data) > 0:
            raise BadRange(f"{request.key!r} in {self!r} has {len(data)} bytes: none from {request.start}", request.key)
        whole = request.start == 0 and (request.stop is None or request.stop >= len(data))
        return Response(bytes(data if whole else data[request.start : request.stop]), len(data))

    def get_now(self, key: str, most: int) -> bytes | None:
        found = self._objects.get(key)
        return found if found is not None and len(found) <= most and self._opened.is_open else None

    async def size(self, key: str) -> int:
        return len(self._object(key))

    async def stream(self, key: str, chunk: int = PART) -> AsyncIterator[bytes]:
        """The object from its front, as it was when it was asked for."""
        data = self._object(key)
        for at in range(0, len(data), chunk):
            yield bytes(data[at : at + chunk])

    def _object(self, key: str) -> bytes | memoryview:
        self._opened.get()
        found = self._objects.get(check_key(key))
        if found is None and (packed := self._packed.get(key)) is not None:
            return packed
        if found is None:
            raise KeyNotFound(f"no object {key!r} in {self!r}", key)
        return found

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._opened.get()
        self._objects[check_key(key)] = check_data(data)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        self._opened.get()
        sizes = {key: len(data) for key, data in self._packed.items(prefix)}
        sizes |= {key: len(data) for key, data in self._objects.items() if key.startswith(prefix)}
        for key in sorted(sizes):
            yield ObjectInfo(key, sizes[key])

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> bool:
        return True


def _check_limit(nbytes: int, most: int, store: Store) -> None:
    if nbytes > most:
        raise ValueError(
            f"what is to be loaded from {store!r} takes more than limit= ({nbytes} bytes or more, of {most}): raise "
            "limit=, load fewer objects (prefix=, keys=), or use the store itself, with a cache"
        )


def _groups(sizes: Mapping[str, int | None]) -> Iterator[list[str]]:
    """Keys that are asked for together."""
    group: list[str] = []
    nbytes = 0
    for key, size in sizes.items():
        if group and (len(group) == ASKED_AT_ONCE or nbytes + (size or 0) > BYTES_AT_ONCE):
            yield group
            group, nbytes = [], 0
        group.append(key)
        nbytes += size or 0
    if group:
        yield group
