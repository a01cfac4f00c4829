"""What is inside a batch, and a batch made again with some of it changed. No device, stream or memory may enter here.

`moved` and `pinned` walk a batch as torch's own pinning does: tensors; objects that can do it themselves; mappings,
tuples, other sequences, whose types are kept; the rest is left as it is. What they do otherwise, on purpose:

- A container is made again only if something in it has changed. It stays the same object if it holds text and numbers
  alone, where torch would copy it (and make a list of a `range`).
- A mapping is copied, and its changed values are set one by one: `update` adds in a `Counter`, and a `ModelOutput` of
  transformers refuses it.
- The fields of a dataclass are changed too. Torch leaves it as it is.
- A tensor or object that is found twice is changed once, and the results are one object.

The leaves are changed before their container is copied, so that an error of theirs is raised as it is, once: torch
takes a TypeError for the container's, and tries again.
"""

from __future__ import annotations

import array
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch

#: How deep `tensors_in` looks into objects that are no containers: those of torch_geometric have their tensors in a
#: mapping, in a storage, in a mapping.
DEPTH: Final = 8

#: Exact types that have nothing inside: most of what is not a tensor.
_ATOMS: Final = frozenset({str, bytes, int, float, bool, complex, type(None), np.ndarray, range, slice})

#: Sequences whose items are no objects. (Text's are text.)
_FLAT: Final = (str, bytes, bytearray, memoryview, range, array.array)


#: Code: what it refers to is no part of a batch.
_CODE: Final = (ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def moved(batch: Any, move: Callable[[torch.Tensor], Any], custom: Callable[[Any], Any]) -> Any:
    """The batch with `move(tensor)` in the place of every tensor, sparse and nested ones and subclasses included.

    `custom(obj)` takes the place of whatever else has a `to` that can be called, before it is looked at as a container:
    so PackedSequence, transformers' BatchEncoding and torch_geometric's Data move themselves. Text, numbers, arrays,
    sets and all other objects stay the same objects.
    """
    return _Change(move, "to", custom)(batch)


def _pin_itself(obj: Any) -> Any:
    return obj.pin_memory()


def pinned(batch: Any, pin: Callable[[torch.Tensor], Any], custom: Callable[[Any], Any] = _pin_itself) -> Any:
    """The batch with `pin(tensor)` in the place of every tensor, and `custom(obj)` of whatever has a `pin_memory`."""
    return _Change(pin, "pin_memory", custom)(batch)


class _Change:
    __slots__ = ("_custom", "_leaf", "_made", "_method")

    def __init__(self, leaf: Callable[[torch.Tensor], Any], method: str, custom: Callable[[Any], Any]) -> None:
        self._leaf = leaf
        self._method = method
        self._custom = custom
        # Of each leaf: itself and what was made of it. It is kept, lest another gets its `id`: some sequences make
        # their items when asked.
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, data: Any) -> Any:
        kind = type(data)
        if kind in _ATOMS:
            return data
        if isinstance(data, torch.Tensor):
            return self._once(data, self._leaf)
        if kind is tuple or kind is list:
            return self._sequence(data, kind)
        if kind is dict:
            return self._mapping(data)
        if callable(getattr(data, self._method, None)) and not isinstance(data, type):
            return self._once(data, self._custom)
        if isinstance(data, Mapping):
            return self._mapping(data)
        if isinstance(data, Sequence):
            return data if isinstance(data, _FLAT) else self._sequence(data, kind)
        if hasattr(kind, "__dataclass_fields__"):
            return self._dataclass(data)
        return data

    def _once(self, leaf: Any, change: Callable[[Any], Any]) -> Any:
        known = self._made.get(id(leaf))
        if known is not None:
            return known[1]
        made = change(leaf)
        self._made[id(leaf)] = leaf, made
        return made

    def _mapping(self, data: Any) -> Any:
        changed = {
            key: made for key, value in data.items() if type(value) not in _ATOMS and (made := self(value)) is not value
        }
        if not changed:
            return data
        try:
            if not isinstance(data, MutableMapping):
                return type(data)({key: changed.get(key, value) for key, value in data.items()})
            clone = copy.copy(data)
            for key, made in changed.items():
                clone[key] = made
            return clone
        except TypeError:  # it cannot be copied, set or made like this
            return {key: changed.get(key, value) for key, value in data.items()}

    def _sequence(self, data: Any, kind: type[Any]) -> Any:
        changed = False
        items = []
        for item in data:
            made = item if type(item) in _ATOMS else self(item)
            items.append(made)
            changed = changed or made is not item
        if not changed:
            return data
        if kind is list:
            return items
        if isinstance(data, tuple):
            return kind(*items) if hasattr(kind, "_fields") else kind(items)
        try:
            if not isinstance(data, MutableSequence):
                return kind(items)
            clone = copy.copy(data)
            for place, made in enumerate(items):
                clone[place] = made
            return clone
        except TypeError:
            return items

    def _dataclass(self, data: Any) -> Any:
        """Fields are set in a copy. `__init__` is not called: it may do anything."""
        changed = {}
        for field in dataclasses.fields(data):
            value = getattr(data, field.name, None)  # `init=False` may have none
            made = self(value)
            if made is not value:
                changed[field.name] = made
        if not changed:
            return data
        clone = copy.copy(data)
        for name, made in changed.items():
            object.__setattr__(clone, name, made)  # also where it is frozen
        return clone


# -- looking ----------------------------------------------------------------------------------------------------------


def tensors_in(obj: Any) -> Iterator[torch.Tensor]:
    """All tensors inside, each once: in containers, sets, dataclasses, and in the attributes of other objects.

    Of those, only what lies in them is looked at (`vars()`, slots, items): no property is called. A batch may refer to
    much that is none of it, so this ends `DEPTH` steps behind the first of them.
    """
    seen: dict[int, Any] = {}  # with the objects, lest others get their `id`
    left: list[tuple[Any, int]] = [(obj, 0)]
    while left:
        found, depth = left.pop()
        kind = type(found)
        if kind in _ATOMS or id(found) in seen:
            continue
        seen[id(found)] = found
        if isinstance(found, torch.Tensor):
            yield found
        elif kind is tuple or kind is list:
            left.extend([(item, depth) for item in reversed(found) if type(item) not in _ATOMS])
        elif kind is dict:
            left.extend([(item, depth) for item in reversed(found.values()) if type(item) not in _ATOMS])
        else:
            parts, depth = _parts_of(found), depth + (depth > 0 or not _is_container(found))
            if depth <= DEPTH:
                left.extend([(part, depth) for part in reversed(parts)])


def _is_container(obj: Any) -> bool:
    return isinstance(obj, Mapping | Sequence | set | frozenset) or hasattr(type(obj), "__dataclass_fields__")


def _parts_of(obj: Any) -> list[Any]:
    """What an object holds that is no plain tuple, list or dict."""
    if isinstance(obj, (*_FLAT, type, *_CODE)):
        return []
    parts: list[Any] = []
    if isinstance(obj, Mapping):
        parts += obj.values()
    elif isinstance(obj, Sequence | set | frozenset):
        parts += obj
    parts += getattr(obj, "__dict__", {}).values()
    for kind in type(obj).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            slot = kind.__dict__.get(_mangled(name, kind))
            if isinstance(slot, MemberDescriptorType):
                try:
                    parts.append(slot.__get__(obj, kind))
                except AttributeError:  # nothing in it
                    pass
    return parts


def _mangled(name: str, kind: type) -> str:
    """How the attribute `__name` of a class is called."""
    hidden = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if hidden else name


def memory_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor's numbers lie in: of a plain one itself, of a sparse one indices and values."""
    flatten = getattr(tensor, "__tensor_flatten__", None)  # subclasses that are made of others, nested ones too
    if flatten is not None:
        for name in flatten()[0]:
            yield from memory_of(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor.values() if tensor.is_nested else tensor
