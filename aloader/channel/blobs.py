"""Large `bytes` beside the stream of a pickle, as tensors are: pickle writes `bytes` into its stream and asks nobody.

Samples that are the bytes of objects (a folder of files, read and not decoded) come in lists of `bytes`: in the stream
they would be copied three times, once into memory that nobody has touched yet. So before a batch is written, those that
lie where collating puts them are exchanged for something that pickle hands out. They come back as `bytes`.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

from .. import options

_DEPTH: Final = 3

#: A longer list holds samples, which are alike: the first one is looked at. A shorter one may hold a sample's fields.
_FIELDS: Final = 16

#: What is looked into, or exchanged. All else is passed over without a call: there may be a million numbers.
_KINDS: Final = frozenset({list, tuple, dict, bytes})


class _Blob:
    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return bytes, (pickle.PickleBuffer(self._data),)


def outside(batch: Any) -> Any:
    """The batch, or an equal one for pickle in which large `bytes` have been exchanged."""
    try:
        return _exchanged(batch, {}) if _has_blobs(batch, _DEPTH) else batch
    except RecursionError:  # pickle, which goes deeper, takes it as it is, or says what is wrong
        return batch


def _has_blobs(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is bytes:
        return len(value) >= options.LEASE_BYTES
    if depth == 0 or not (kind is list or kind is tuple or kind is dict):
        return False
    parts = list(value.values()) if kind is dict else value
    if len(parts) > _FIELDS:
        parts = parts[:1]
    return any(_has_blobs(part, depth - 1) for part in parts)


def _exchanged(value: Any, seen: dict[int, Any]) -> Any:
    """Of plain lists, tuples and dicts, and bytes; what comes twice is the same thing twice afterwards."""
    kind = type(value)
    found = seen.get(id(value))
    if found is not None:
        return found
    if kind is bytes:
        found = _Blob(value) if len(value) >= options.LEASE_BYTES else value
    elif kind is tuple:
        parts = [_exchanged(part, seen) if type(part) in _KINDS else part for part in value]
        found = seen.get(id(value)) or tuple(parts)  # it may lie in a list that lies in it
    elif kind is list:
        found = seen[id(value)] = []  # before its parts: it may lie in itself
        found.extend([_exchanged(part, seen) if type(part) in _KINDS else part for part in value])
    else:
        found = seen[id(value)] = {}
        found.update({key: _exchanged(part, seen) if type(part) in _KINDS else part for key, part in value.items()})
    seen[id(value)] = found
    return found
