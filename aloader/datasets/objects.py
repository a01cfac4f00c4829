"""One sample for each key."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from aloader.datasets import manifest as manifests
from aloader.datasets.decoders import Decode
from aloader.datasets.elsewhere import ELSEWHERE
from aloader.datasets.folders import ObjectFolder
from aloader.datasets.groups import GroupedObjects
from aloader.datasets.listing import Listing, Suffix, Wanted, nothing_found
from aloader.datasets.packed import Numbers
from aloader.datasets.reader import ObjectReader, Transform, check_callable
from aloader.storage import Store

Place = str | os.PathLike[str]


class ObjectDataset:
    """Sample `i` is `transform(decode(the bytes under keys[i]))`.

    `url_or_store` is anything that `aloader.storage.open_store` takes; `keys` a sequence of strings, relative to it.
    `ObjectDataset.from_prefix(url)` finds them itself.

    `decode` is a function from bytes to anything, or a name: "bytes", "text" (UTF-8), "json", "image" (a `PIL.Image` in
    RGB; extra `images`), "image:torch" (a uint8 tensor, by torchvision), "npy", "torch" (tensors that `torch.save` has
    written). Nothing is ever unpickled. A function runs in `decode_threads` threads beside the event loop. **It must
    not draw random numbers**, and with more than one thread it has to be thread-safe. `transform` runs on the loop's
    thread and may draw them; keep it short, or it holds up other samples.

    The loader enters it (`async with`) once in each worker, which opens the store there. By hand:

        async with ObjectDataset("data/", ["a.txt", "b.txt"], decode="text") as dataset:
            text = await dataset[0]

    `await dataset[i]` raises what the store raises (`KeyNotFound`, `StorageError`) with the key, or what `decode` or
    `transform` raised, with a note that names the key.

    `keys`, `store`; where a store was listed also `sizes` (bytes, an array), and `fingerprint`, a text that changes
    with keys, sizes and versions: states of loaders have it, and refuse to go on with other data.
    """

    fingerprint: str | None = None
    sizes: Numbers | None = None

    def __init__(
        self,
        url_or_store: Place | Store,
        keys: Sequence[str],
        decode: str | Decode | None = None,
        transform: Transform | None = None,
        *,
        decode_threads: int = 1,
    ) -> None:
        _check_keys(keys)
        check_callable("transform", transform)
        self._reader = ObjectReader(url_or_store, decode, decode_threads)
        self.keys = keys
        self.transform = transform

    @classmethod
    def from_prefix(
        cls,
        url_or_store: Place | Store,
        prefix: str = "",
        *,
        suffix: Suffix = None,
        decode: str | Decode | None = None,
        transform: Transform | None = None,
        manifest: Place | None = None,
        limit: int | None = None,
        sort: bool = True,
        decode_threads: int = 1,
    ) -> Self:
        """Of all objects whose keys begin with `prefix` (text, which need not end in "/") and end with `suffix`, or one
        of several.

        Lists the store, once: workers get the listing with the dataset, in a few bytes for each object beside its key.
        It blocks meanwhile; from a coroutine: `await asyncio.to_thread(ObjectDataset.from_prefix, "s3://…")`. Samples
        are in the order of their keys; with `sort=False`, in the store's. `limit`: at most so many, the first that are
        listed. Case does not count in `suffix`.

        With `manifest`, a path or URL of a file, the listing is read from there if it exists, and written there if not.
        `FileNotFoundError` if there is nothing, `StorageError` if the store cannot be listed, `ValueError` if the
        manifest is damaged, or of another store, prefix or suffix.
        """
        wanted = Wanted.checked(prefix, suffix, limit, sort)
        self = cls(url_or_store, (), decode, transform, decode_threads=decode_threads)
        listing = manifests.listed_or_loaded(self.store, wanted, manifest)
        if not len(listing.keys):
            raise nothing_found(self.store, wanted)
        return self._with(listing, wanted)

    @classmethod
    def from_manifest(
        cls,
        manifest: Place,
        url_or_store: Place | Store,
        *,
        decode: str | Decode | None = None,
        transform: Transform | None = None,
        decode_threads: int = 1,
    ) -> Self:
        """Of the keys in a manifest (a path or URL of a file), whichever store it was made of: a copy elsewhere, say.

        Nothing is listed. `KeyNotFound` if there is no such file, `ValueError` if it is damaged or something else.
        """
        self = cls(url_or_store, (), decode, transform, decode_threads=decode_threads)
        listing, head = manifests.load(manifest)
        return self._with(listing, manifests.wanted_of(head))

    @classmethod
    def from_folders(
        cls,
        url_or_store: Place | Store,
        prefix: str = "",
        *,
        suffix: Suffix = None,
        decode: str | Decode | None = None,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        manifest: Place | None = None,
        decode_threads: int = 1,
    ) -> ObjectFolder:
        """Samples `(value, label)` of objects `<prefix><class>/…/<name>`: as `ImageFolder`, of other things."""
        return ObjectFolder(
            url_or_store,
            transform,
            target_transform,
            wanted=Wanted.checked(prefix, suffix, None),
            decode=decode,
            manifest=manifest,
            decode_threads=decode_threads,
        )

    @classmethod
    def groups(
        cls,
        url_or_store: Place | Store,
        members: Mapping[str, Suffix],
        prefix: str = "",
        *,
        decode: Mapping[str, str | Decode | None] | str | Decode | None = None,
        transform: Transform | None = None,
        missing: str = "error",
        manifest: Place | None = None,
        decode_threads: int = 1,
    ) -> GroupedObjects:
        """Samples of several objects each, that have the same name but for its end:

            ObjectDataset.groups("s3://bucket/captions", {"image": (".jpg", ".png"), "text": ".txt"},
                                 decode={"image": "image", "text": "text"})

        makes of "a/1.jpg" and "a/1.txt" the sample `{"image": …, "text": …}`; `transform` gets that dict. Its members
        are read at once. `decode` is one for all, or a dict. Where one has no file, `FileNotFoundError` names the
        first; `missing="skip"` leaves such samples out.
        """
        return GroupedObjects(
            url_or_store,
            members,
            prefix=prefix,
            decode=decode,
            transform=transform,
            missing=missing,
            manifest=manifest,
            decode_threads=decode_threads,
        )

    def save_manifest(self, manifest: Place) -> None:
        """Write what was listed to a path or URL: whole or not at all. Blocks. `TypeError` if no store was listed."""
        if self._listing is None or self._wanted is None:
            raise TypeError("this dataset was made of keys, and has no listing to save: use ObjectDataset.from_prefix")
        manifests.save(manifest, self._listing, self.store, self._wanted)

    _listing: Listing | None = None
    _wanted: Wanted | None = None

    def _with(self, listing: Listing, wanted: Wanted) -> Self:
        self.keys = listing.keys
        self.sizes = listing.sizes
        self.fingerprint = listing.fingerprint
        self._listing, self._wanted = listing, wanted
        return self

    @property
    def store(self) -> Store:
        return self._reader.store

    def __repr__(self) -> str:
        return f"ObjectDataset({self.store!r}, {len(self.keys)} keys)"

    @property
    def draws_random_numbers(self) -> bool:
        """Whether a sample may draw from the global generators: no, where nothing but `decode` is done to it."""
        return self.transform is not None or type(self).__getitem__ is not ObjectDataset.__getitem__

    def __len__(self) -> int:
        return len(self.keys)

    async def __getitem__(self, index: int) -> Any:
        key = self.keys[index]
        size = -1 if self.sizes is None else int(self.sizes[index])
        return self._reader.apply(self.transform, await self._reader.read(key, size), key)

    def at_hand(self, index: int) -> Any:
        """The sample, if it can be had without waiting and is what was decoded; else `ELSEWHERE`. (A worker asks
        before it begins a task for it: for what lies in memory that costs as much as reading.)"""
        plain = self.transform is None and type(self).__getitem__ is ObjectDataset.__getitem__
        return self._reader.at_hand(self.keys[index]) if plain else ELSEWHERE

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
