"""Samples of several objects that have the same name but for its end: an image and its caption, say."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np

from aloader.datasets.decoders import Decode, decoder
from aloader.datasets.listing import Listing, Suffix, Wanted, nothing_found
from aloader.datasets.manifest import listed_or_loaded
from aloader.datasets.reader import ObjectReader, Transform, check_callable
from aloader.storage import Store
from aloader.storage.base import together

#: So many groups are named that are not whole.
_NAMED: Final = 3


class GroupedObjects:
    """Sample `i` is a dict: for each member, what its decoder makes of it. `ObjectDataset.groups` makes it.

    Samples are in the order of their stems, what the keys of a sample begin with: `stem(i)`, `keys(i)`. `fingerprint`
    changes with the keys, their sizes and their versions.
    """

    def __init__(
        self,
        url_or_store: str | os.PathLike[str] | Store,
        members: Mapping[str, Suffix],
        *,
        prefix: str = "",
        decode: Mapping[str, str | Decode | None] | str | Decode | None = None,
        transform: Transform | None = None,
        missing: str = "error",
        manifest: str | os.PathLike[str] | None = None,
        decode_threads: int = 1,
    ) -> None:
        suffixes = _checked(members)
        if missing not in ("error", "skip"):
            raise ValueError(f"missing is 'error' or 'skip', got {missing!r}")
        check_callable("transform", transform)
        self._decoders = _decoders(list(members), decode)
        self._reader = ObjectReader(url_or_store, None, decode_threads)
        self.transform = transform
        wanted = Wanted.checked(prefix, tuple(suffixes), None)
        listing = listed_or_loaded(self.store, wanted, manifest)
        if not len(listing.keys):
            raise nothing_found(self.store, wanted)
        self._members = _grouped(listing, suffixes, list(members), missing == "skip", self.store)
        self.fingerprint = _fingerprint(self._members)
        self._first = next(iter(self._members))
        self._cut = _cuts(self._members[self._first], suffixes)

    @property
    def store(self) -> Store:
        return self._reader.store

    def keys(self, index: int) -> dict[str, str]:
        """The keys of a sample's members."""
        return {name: listing.keys[index] for name, listing in self._members.items()}

    def stem(self, index: int) -> str:
        """What these begin with."""
        key = self._members[self._first].keys[index]
        return key[: len(key) - int(self._cut[index])]

    def __repr__(self) -> str:
        return f"GroupedObjects({self.store!r}, {len(self)} samples of {', '.join(self._members)})"

    @property
    def draws_random_numbers(self) -> bool:
        """Whether a sample may draw from the global generators: no, where nothing but `decode` is done to it."""
        return self.transform is not None or type(self).__getitem__ is not GroupedObjects.__getitem__

    def __len__(self) -> int:
        return len(self._members[self._first].keys)

    async def __getitem__(self, index: int) -> Any:
        values = await together(
            self._reader.decoded(self._decoders[name], listing.keys[index], int(listing.sizes[index]))
            for name, listing in self._members.items()
        )
        return self._reader.apply(self.transform, dict(zip(self._members, values, strict=True)), self.stem(index))

    async def __aenter__(self) -> Self:
        await self._reader.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.leave()


def _checked(members: Any) -> dict[str, str]:
    """Which member each suffix is of."""
    if not isinstance(members, Mapping) or not members:
        raise TypeError(f"members is a dict of names and endings, {{'image': '.jpg', 'text': '.txt'}}: got {members!r}")
    found: dict[str, str] = {}
    for name, suffix in members.items():
        wanted = Wanted.checked("", suffix, None, name=f"members[{name!r}]")
        if not wanted.suffixes:
            raise ValueError(f"member {name!r} has no ending of keys")
        for each in wanted.suffixes:
            if found.get(each, name) != name:
                raise ValueError(f"{each!r} is the ending of {found[each]!r} and of {name!r}")
            found[each] = name
    return found


def _decoders(names: list[str], decode: Any) -> dict[str, Decode | None]:
    if not isinstance(decode, Mapping):
        return {name: decoder(decode) for name in names}
    if unknown := set(decode) - set(names):
        raise ValueError(f"decode has {', '.join(map(repr, sorted(unknown)))}, and the members are {', '.join(names)}")
    return {name: decoder(decode.get(name), f"decode[{name!r}]") for name in names}


def _grouped(
    listing: Listing, suffixes: Mapping[str, str], names: list[str], skip: bool, store: Store
) -> dict[str, Listing]:
    """The listing of each member, in the order of the stems. `FileNotFoundError` names groups that are not whole."""
    groups: dict[str, dict[str, int]] = {}
    ends = sorted(suffixes, key=len, reverse=True)  # of "a.tags.txt", ".tags.txt" says more than ".txt"
    for place, key in enumerate(listing.keys):
        end = next(end for end in ends if key.lower().endswith(end))
        group, name = groups.setdefault(key[: len(key) - len(end)], {}), suffixes[end]
        if name in group:
            other = listing.keys[group[name]]
            raise ValueError(f"{other!r} and {key!r} in {store!r} are both the {name!r} of the same sample")
        group[name] = place
    whole = sorted(stem for stem, group in groups.items() if len(group) == len(names))
    if len(whole) < len(groups) and (not skip or not whole):
        raise _incomplete(groups, names, store)
    return {name: listing.take(np.array([groups[stem][name] for stem in whole], np.int64)) for name in names}


def _incomplete(groups: dict[str, dict[str, int]], names: list[str], store: Store) -> FileNotFoundError:
    partial = [(stem, group) for stem, group in sorted(groups.items()) if len(group) < len(names)]
    lacking = ((stem, [name for name in names if name not in group]) for stem, group in partial[:_NAMED])
    said = [f"{stem!r} has no {' and no '.join(absent)}" for stem, absent in lacking]
    more = f", and {len(partial) - _NAMED} more are not whole" if len(partial) > _NAMED else ""
    return FileNotFoundError(
        f"of {len(groups)} samples in {store!r}, {len(partial)} are not whole: {'; '.join(said)}{more}. "
        "missing='skip' leaves them out"
    )


def _cuts(listing: Listing, suffixes: Mapping[str, str]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """How long the ending of each key is."""
    ends = sorted(suffixes, key=len, reverse=True)
    cuts = (next(len(end) for end in ends if key.lower().endswith(end)) for key in listing.keys)
    return np.fromiter(cuts, np.uint16, len(listing.keys))


def _fingerprint(members: Mapping[str, Listing]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, listing in members.items():
        found.update(f"{name}\0{listing.fingerprint}\0".encode())
    return found.hexdigest()
