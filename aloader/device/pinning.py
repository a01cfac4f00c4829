"""`pin_memory=True`, by torch's own rules: warnings, recursion, custom `.pin_memory()`. One copy into pinned memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch


def accelerator() -> str:
    """The kind of the current accelerator, "" where there is none."""
    module = getattr(torch, "accelerator", None)  # torch 2.6
    if module is None:
        return "cuda" if torch.cuda.is_available() else ""
    return str(module.current_accelerator().type) if module.is_available() else ""


def warn(pin_memory_device: str, stacklevel: int) -> None:
    """Torch's warnings at the start of an epoch with `pin_memory=True`."""
    if pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=stacklevel,
        )
    if not accelerator():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=stacklevel,
        )


def pinner(pin_memory: bool) -> Callable[[Any], Any] | None:
    """What pins a batch, or None where nothing is to be pinned. Unverified on a GPU."""
    if not pin_memory or accelerator() in ("", "mps"):
        return None
    from torch.utils.data._utils.pin_memory import pin_memory as pin

    return cast("Callable[[Any], Any]", pin)
