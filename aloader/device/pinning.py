"""`pin_memory=True`: one copy of each batch into page-locked memory, and torch's warnings."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch

from aloader.channel.leaves import LEASE
from aloader.device import choosing
from aloader.device.accelerators import Accelerator, assumed
from aloader.device.structure import memory_of, pinned, tensors_in


def warn(pin_memory_device: str, stacklevel: int) -> None:
    """Torch's warnings at the start of an epoch with `pin_memory=True`."""
    if pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=stacklevel,
        )
    kind = choosing.kind() if assumed.get() is None else "assumed"
    if not kind:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=stacklevel,
        )
    if kind == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't be used.",
            stacklevel=stacklevel,
        )


def in_arena(accelerator: Accelerator) -> Callable[[Any], Any]:
    """What pins whatever in a batch is not pinned, and leaves the rest where it is."""
    return functools.partial(
        pinned, pin=lambda tensor: tensor if accelerator.is_pinned(tensor) else accelerator.pin(tensor)
    )


def _outside(accelerator: Accelerator, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in page-locked memory of torch's: a copy, unless it lies there. (A worker's memory may be page-locked,
    for epochs that copy to a device, and is pinned then by what torch can tell.)"""
    if not accelerator.is_pinned(tensor):
        return accelerator.pin(tensor)
    if not any(map(_is_leased, memory_of(tensor))):
        return tensor
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
    return accelerator.pin(tensor if plain else tensor.clone())  # others pin themselves, and would stay where they are


def _itself_outside(accelerator: Accelerator, obj: Any) -> Any:
    """What an object's own `pin_memory` gives; where that took a worker's page-locked memory for torch's, a copy."""
    made = obj.pin_memory()
    tensors = list(tensors_in(made))
    outside = {id(tensor): _outside(accelerator, tensor) for tensor in tensors if accelerator.is_pinned(tensor)}
    if all(outside.get(id(tensor), tensor) is tensor for tensor in tensors):
        return made
    return copy.deepcopy(made, {id(tensor): outside.get(id(tensor), tensor) for tensor in tensors})


def _is_leased(part: torch.Tensor) -> bool:
    """Whether it is a view of a worker's memory. What has no storage to ask, such as MKL-DNN's tensors, is none."""
    return part.layout is torch.strided and hasattr(part.untyped_storage(), LEASE)


def pinner(pin_memory: bool) -> Callable[[Any], Any] | None:
    """What pins a batch, or None where nothing is to be pinned. Unverified on a GPU.

    For accelerators that are not CUDA, by torch's own recursion, into the memory that torch has for them.
    """
    if not pin_memory:
        return None
    accelerator = choosing.current()
    if accelerator is not None:
        leaf, custom = functools.partial(_outside, accelerator), functools.partial(_itself_outside, accelerator)
        return functools.partial(pinned, pin=leaf, custom=custom)
    if choosing.kind() in ("", "mps"):
        return None
    from torch.utils.data._utils.pin_memory import pin_memory as pin

    return cast("Callable[[Any], Any]", pin)
