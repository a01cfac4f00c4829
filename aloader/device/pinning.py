"""`pin_memory=True`: one copy of each batch into page-locked memory, and torch's warnings."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch

from aloader.channel.leaves import LEASE
from aloader.device import choosing
from aloader.device.accelerators import Accelerator, assumed
from aloader.device.structure import pinned


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
            "'pin_memory' argument is set as true but not supported on MPS now, "
            "device pinned memory won't be used.",
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
    there = accelerator.is_pinned(tensor) and not hasattr(tensor.untyped_storage(), LEASE)
    return tensor if there else accelerator.pin(tensor)


def pinner(pin_memory: bool) -> Callable[[Any], Any] | None:
    """What pins a batch, or None where nothing is to be pinned. Unverified on a GPU.

    For accelerators that are not CUDA, by torch's own recursion, into the memory that torch has for them.
    """
    if not pin_memory:
        return None
    accelerator = choosing.current()
    if accelerator is not None:
        return functools.partial(pinned, pin=functools.partial(_outside, accelerator))
    if choosing.kind() in ("", "mps"):
        return None
    from torch.utils.data._utils.pin_memory import pin_memory as pin

    return cast("Callable[[Any], Any]", pin)
