"""Collating straight into the arena: torch's own rules, with one entry of its live table exchanged.

In a worker torch stacks into memory of the first sample's dtype, row by row, and so must this: strides and mixed dtypes
come out otherwise without `out=`.

`default_collate` looks its functions up in a table that users may change. If the entry for `torch.Tensor` is still
torch's own, it is replaced by one that stacks into arena memory, so that there is one copy in all. That also serves a
user's `collate_fn` that calls `default_collate`, and numpy arrays, which torch collates as tensors. Small leaves are
stacked in ordinary memory: they are sent inline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate

from aloader import options
from aloader.channel.arena import Arena
from aloader.channel.leaves import code_of, tensor_on
from aloader.worker.dataclass_collation import is_dataclass_alone


def collate_into(arena: Arena) -> None:
    """Let torch's `default_collate` stack large tensors into `arena` from now on, in this process."""
    table = collate.default_collate_fn_map
    if table.get(torch.Tensor) is collate.collate_tensor_fn:
        table[torch.Tensor] = _Stack(arena)


class _Stack:
    """The table's entry for tensors."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def __call__(self, batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        if first.layout is not torch.strided or first.is_nested or first.device.type != "cpu":
            stacked: torch.Tensor = collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # torch's errors
            return stacked
        nbytes = first.numel() * first.element_size() * len(batch)
        if nbytes < options.LEASE_BYTES or not _stackable(batch, first):
            return _stacked(batch, first)
        out = tensor_on(self._arena.allocate(nbytes), code_of(first.dtype), (len(batch), *first.shape))
        try:
            return torch.stack(list(batch), 0, out=out)
        except RuntimeError:  # shapes, layouts or devices that do not fit: said without `out=`, as torch says it
            del out
            return _stacked(batch, first)


def _stacked(batch: Sequence[torch.Tensor], first: torch.Tensor) -> torch.Tensor:
    """In ordinary memory, with the dtype and the strides that torch's workers give.

    What those refuse (floats after an integer) is what torch gives without workers.
    """
    stacked = torch.stack(list(batch), 0)
    if stacked.dtype is first.dtype or not torch.can_cast(stacked.dtype, first.dtype):
        return stacked.contiguous()
    return stacked.to(first.dtype)


def _stackable(batch: Sequence[torch.Tensor], first: torch.Tensor) -> bool:
    """Whether `out=` is allowed and changes no type: no promotion, no autograd, no subclass."""
    kind, dtype = torch.Tensor, first.dtype
    return all(type(t) is kind and t.dtype is dtype and not t.requires_grad for t in batch)


def estimate(samples: Any) -> int:
    """The bytes that `default_collate` of these samples takes in the arena, from the first one; 0 if nobody knows."""
    if not isinstance(samples, Sequence) or not samples or isinstance(samples, str):
        return 0
    return _leaf_bytes(samples[0], len(samples))


def _leaf_bytes(sample: Any, count: int) -> int:
    if isinstance(sample, torch.Tensor):
        nbytes = sample.numel() * sample.element_size() * count
    elif isinstance(sample, np.ndarray):
        nbytes = sample.nbytes * count
    elif isinstance(sample, str | bytes):
        return 0
    elif isinstance(sample, Mapping):
        return sum(_leaf_bytes(value, count) for value in sample.values())
    elif isinstance(sample, Sequence):
        return sum(_leaf_bytes(value, count) for value in sample)
    elif is_dataclass_alone(sample):
        return sum(_leaf_bytes(getattr(sample, field.name, None), count) for field in dataclasses.fields(sample))
    else:
        return 0
    return -(-nbytes // options.ALIGNMENT) * options.ALIGNMENT if nbytes >= options.LEASE_BYTES else 0
