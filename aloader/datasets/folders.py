"""Samples with a label: the name of the folder that they are in."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, Self, overload

import numpy as np

from aloader.datasets.decoders import Decode
from aloader.datasets.listing import Listing, Wanted, listed
from aloader.datasets.manifest import listed_or_loaded
from aloader.datasets.packed import Numbers, PackedList
from aloader.datasets.reader import ObjectReader, Transform, check_callable
from aloader.storage import Store


class Samples(Sequence[tuple[str, int]]):
    """Pairs (key, label) of two arrays: a sequence that is made as it is read."""

    def __init__(self, keys: PackedList[str], labels: Numbers) -> None:
        self.keys = keys
        self.labels = labels

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Samples: ...
    def __getitem__(self, index: int | slice) -> tuple[str, int] | Samples:
        if isinstance(index, slice):
            return Samples(self.keys[index], self.labels[index])
        return self.keys[index], int(self.labels[index])

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return zip(self.keys, self.labels.tolist(), strict=True)

    def __eq__(self, other: object) -> bool:
        """Whether the other is a sequence (a list, as torchvision has it) of the same pairs."""
        if not isinstance(other, Samples | list):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self):,} samples: [{shown}{', …' if len(self) > 3 else ''}]>"


class ObjectFolder:
    """Sample `i` is `(transform(decode(bytes)), label)`, of objects `<class>/…/<name>`. `ObjectDataset.from_folders`
    makes it.

    - `classes: list[str]`, `class_to_idx: dict[str, int]`, `targets`; `samples`, a sequence of pairs (key, label)
    - `fingerprint` changes with the keys, their sizes and their versions.
    """

    #: What is said of samples, and where there are none.
    _kind = "objects"
    _expected = "keys like 'cat/001.txt': the folder is the class"

    def __init__(
        self,
        root: str | os.PathLike[str] | Store,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        wanted: Wanted,
        decode: str | Decode | None = None,
        manifest: str | os.PathLike[str] | None = None,
        decode_threads: int = 1,
    ) -> None:
        check_callable("transform", transform)
        check_callable("target_transform", target_transform)
        self._reader = ObjectReader(root, decode, decode_threads)
        self.transform = transform
        self.target_transform = target_transform
        listing = listed_or_loaded(self.store, wanted, manifest)
        self.classes, labels, listing = _classified(listing, _above(wanted.prefix))
        if not len(listing.keys):
            raise self._nothing(wanted)
        if len(self.classes) == 1 and listing.keys[0].startswith(f"{wanted.prefix}/") and wanted.prefix:
            raise ValueError(
                f"prefix={wanted.prefix!r} is a folder, which would be the only class: for the classes in it, "
                f"prefix={wanted.prefix + '/'!r}"
            )
        self.samples = Samples(listing.keys, labels)
        self.fingerprint = listing.fingerprint
        self._sizes = listing.sizes

    @property
    def store(self) -> Store:
        return self._reader.store

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """The label of every sample."""
        targets: list[int] = self.samples.labels.tolist()
        return targets

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r}, {len(self.samples)} {self._kind} in {len(self.classes)} classes)"

    @property
    def draws_random_numbers(self) -> bool:
        """Whether a sample may draw from the global generators: no, where nothing but `decode` is done to it."""
        transforms = self.transform is not None or self.target_transform is not None
        return transforms or type(self).__getitem__ is not ObjectFolder.__getitem__

    def __len__(self) -> int:
        return len(self.samples)

    async def __getitem__(self, index: int) -> tuple[Any, Any]:
        key, label = self.samples[index]
        value = await self._reader.read(key, int(self._sizes[index]))
        return self._reader.apply(self.transform, value, key), self._reader.apply(self.target_transform, label, key)

    async def __aenter__(self) -> Self:
        await self._reader.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.leave()

    def _nothing(self, wanted: Wanted) -> FileNotFoundError:
        keys = listed(self.store, Wanted()).keys
        there = f"there are {len(keys)} other objects, {keys[0]!r} first" if len(keys) else "it is empty"
        below = f" below prefix={wanted.prefix!r}" if wanted.prefix else ""
        return FileNotFoundError(
            f"no {self._kind} in folders{below} in {self.store!r}: {there}. Expected {self._expected}"
        )


def _above(prefix: str) -> int:
    """How many characters of a key are before its class: "train/" of "train/cat/1.jpg"."""
    return prefix.rfind("/") + 1


def _classified(listing: Listing, above: int) -> tuple[list[str], Numbers, Listing]:
    """Classes, labels, and what is in folders: as torchvision walks, class after class, and in each folder the files by
    name before the files of its subfolders."""
    places = [(*_order(key, above), place) for place, key in enumerate(listing.keys) if "/" in key[above:]]
    places.sort()
    classes = sorted({place[0] for place in places})
    numbers = {name: label for label, name in enumerate(classes)}
    labels = np.fromiter((numbers[place[0]] for place in places), np.int32, len(places))
    return classes, labels, listing.take([place[-1] for place in places])


def _order(key: str, above: int) -> tuple[str, str, str]:
    folder, name = posixpath.split(key)
    return key[above:].partition("/")[0], folder, name
