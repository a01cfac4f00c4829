"""One sample for each key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

from aloader.datasets.reader import Decode, ObjectReader, Transform, check_callable
from aloader.storage import Store


class ObjectDataset:
    """Sample `i` is `transform(decode(the bytes under keys[i]))`.

    `url_or_store` is anything that `aloader.storage.open_store` takes; `keys` a sequence of strings, relative to it.

    `decode` (bytes to anything) runs in `decode_threads` threads beside the event loop. **It must not draw random
    numbers**, and with more than one thread it has to be thread-safe. `transform` runs on the loop's thread and may
    draw them; keep it short, or it holds up other samples.

    The loader enters it (`async with`) once in each worker, which opens the store there. By hand:

        async with ObjectDataset("data/", ["a.txt", "b.txt"], decode=bytes.decode) as dataset:
            text = await dataset[0]

    `await dataset[i]` raises what the store raises (`KeyNotFound`, `StorageError`) with the key, or what `decode` or
    `transform` raised, with a note that names the key.
    """

    def __init__(
        self,
        url_or_store: str | os.PathLike[str] | Store,
        keys: Sequence[str],
        decode: Decode | None = None,
        transform: Transform | None = None,
        *,
        decode_threads: int = 1,
    ) -> None:
        _check_keys(keys)
        check_callable("transform", transform)
        self._reader = ObjectReader(url_or_store, decode, decode_threads)
        self.keys = keys
        self.transform = transform

    @property
    def store(self) -> Store:
        return self._reader.store

    def __repr__(self) -> str:
        return f"ObjectDataset({self.store!r}, {len(self.keys)} keys)"

    def __len__(self) -> int:
        return len(self.keys)

    async def __getitem__(self, index: int) -> Any:
        key = self.keys[index]
        return self._reader.apply(self.transform, await self._reader.read(key), key)

    async def __aenter__(self) -> Self:
        await self._reader.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.leave()


def _check_keys(keys: Sequence[str]) -> None:
    """Only the first key is looked at: there may be ten million, or they may be read lazily. The store checks each."""
    if isinstance(keys, str | bytes) or not hasattr(keys, "__getitem__") or not hasattr(keys, "__len__"):
        raise TypeError(f"keys must be a sequence of strings, got {type(keys).__name__}: a list, say")
    if isinstance(keys, dict):
        raise TypeError("keys must be a sequence of strings, got dict: list(…) of it, say")
    if len(keys) > 0 and not isinstance(keys[0], str):
        raise TypeError(f"keys must be strings, got {type(keys[0]).__name__}: {keys[0]!r}")
