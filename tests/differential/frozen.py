"""Anything a loader can hand out, written down as plain tuples: equal if and only if nobody could tell them apart.

Types, dtypes, layouts, bytes, attributes, and which leaves of one batch share their memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def frozen(value: Any) -> Any:
    """The description of one batch."""
    return _Freezer().freeze(value)


class _Freezer:
    """Numbers the storages of one batch in the order in which they are met."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}

    def freeze(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        name = _name(value)
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | range):
            return name, repr(value), getattr(value, "dtype", None)
        if isinstance(value, Mapping):
            return name, [(self.freeze(key), self.freeze(value[key])) for key in value], self._attributes(value)
        if isinstance(value, set | frozenset):
            return name, sorted(map(repr, value))
        if isinstance(value, Sequence):
            return name, [self.freeze(item) for item in value], self._attributes(value)
        if dataclasses.is_dataclass(value):
            return name, [(field.name, self.freeze(getattr(value, field.name))) for field in dataclasses.fields(value)]
        return name, self._attributes(value)

    def _attributes(self, value: Any) -> Any:
        return [(key, self.freeze(item)) for key, item in getattr(value, "__dict__", {}).items() if key != "data"]

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.is_nested:
            return _name(tensor), "nested", [self.freeze(part) for part in tensor.unbind()]
        about = (_name(tensor), tensor.dtype, tuple(tensor.shape), tensor.requires_grad, str(tensor.device))
        if tensor.layout is not torch.strided:
            return *about, str(tensor.layout), self.freeze(tensor.to_dense())
        data = tensor.detach().as_subclass(torch.Tensor)
        number = self._storages.setdefault(data.untyped_storage().data_ptr(), len(self._storages))
        about = (*about, ("strides", data.stride()))
        if not data.numel():
            return about
        plain = data.contiguous().resolve_conj().resolve_neg().reshape(-1)
        return *about, ("shares", number), plain.view(torch.uint8).numpy().tobytes()

    def _array(self, array: np.ndarray) -> Any:
        flags = array.flags
        about = (_name(array), str(array.dtype), array.shape, flags.c_contiguous, flags.f_contiguous, flags.writeable)
        return *about, ([self.freeze(item) for item in array.flat] if array.dtype.hasobject else array.tobytes())


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
