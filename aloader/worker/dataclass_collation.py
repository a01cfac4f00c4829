"""Dataclasses in the loader's default collation: the same dataclass, its fields collated. Torch raises TypeError.

Torch's own functions and tables stay as they are, in this process and in workers: a stock loader beside ours goes on as
before, and so does a `collate_fn` of the user's that calls `default_collate`. Where a loader's `collate_fn` is torch's
default, `collating` gives what is called instead: torch's `collate` with its live table and one more key at the end,
which every dataclass is an instance of. So whatever else a dataclass is (a Mapping, a tuple, something with an entry
of the user's) decides first.

The fields of dataclasses are also pinned and moved to a device: see `device.structure`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Final

from torch.utils.data._utils import collate


def collating(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What is called for this `collate_fn`: itself, unless it is one of torch's defaults."""
    if collate_fn is collate.default_collate:
        return _collate
    if collate_fn is collate.default_convert:
        return convert
    return collate_fn


def is_dataclass_alone(value: object) -> bool:
    """Whether it is a dataclass's instance that torch has no other rule for."""
    kind = type(value)
    return dataclasses.is_dataclass(kind) and not issubclass(kind, Mapping | Sequence)


class _Any(type):
    def __instancecheck__(cls, value: object) -> bool:
        return is_dataclass_alone(value)


class _Dataclass(metaclass=_Any):
    """The key in the table."""


def _collate(samples: Any) -> Any:
    table: Any = collate.default_collate_fn_map | {_Dataclass: _collate_dataclasses}
    return collate.collate(samples, collate_fn_map=table)


def _collate_dataclasses(batch: Sequence[Any], *, collate_fn_map: Any) -> Any:
    def collated(name: str) -> Any:
        return collate.collate([getattr(sample, name) for sample in batch], collate_fn_map=collate_fn_map)

    return _with_fields(batch[0], collated)


def _with_fields(sample: Any, make: Callable[[str], Any]) -> Any:
    """A copy of the sample with fields that are made anew, by name. `__init__` is not called: it may do anything."""
    made = {}
    for field in dataclasses.fields(sample):
        if hasattr(sample, field.name):  # `init=False` without a value
            try:
                made[field.name] = make(field.name)
            except Exception as error:
                error.add_note(f"in field {field.name!r} of {type(sample).__qualname__}")
                raise
    batch = copy.copy(sample)
    for name, value in made.items():
        object.__setattr__(batch, name, value)  # also where it is frozen
    return batch


def convert(data: Any) -> Any:
    """Torch's `default_convert`, for the fields of dataclasses too, at any depth."""
    if is_dataclass_alone(data):
        return _with_fields(data, lambda name: convert(getattr(data, name)))
    return _torchs_convert(data)


#: Torch's code as it is, but where it calls itself, it calls `convert`: it has no table that could be extended.
_torchs_convert: Final = FunctionType(
    collate.default_convert.__code__, vars(collate) | {"default_convert": convert}, "default_convert"
)
