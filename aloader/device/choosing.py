"""Which accelerator a device is. Nothing here initialises one."""

from __future__ import annotations

from typing import cast

import torch

from aloader.device.accelerators import Accelerator, assumed, is_accelerator
from aloader.device.cuda import Cuda
from aloader.device.plain import Plain


def accelerator_for(device: str | int | torch.device | Accelerator) -> Accelerator:
    """The accelerator of a device as users name it: "cuda:1", an index of torch's current kind of accelerator, "cpu".

    "cuda" is the current device where CUDA is initialised (`torch.cuda.set_device` does that), else the first.
    """
    if is_accelerator(device):
        return device
    place = torch.device(cast("str | int | torch.device", device))
    if place == torch.device("cuda"):  # without index
        place = torch.device("cuda", _current_cuda())
    return Cuda(place) if place.type == "cuda" else Plain(place)


def current() -> Accelerator | None:
    """What memory is page-locked for: the one `assumed` in this context, else CUDA, where torch's current one is that.

    None with no accelerator, and with one of another kind, which has no page-locked memory of ours.
    """
    accelerator = assumed.get()
    if accelerator is None and kind() == "cuda":
        accelerator = Cuda(torch.device("cuda", _current_cuda()))
    return accelerator


def is_everywhere(accelerator: Accelerator) -> bool:
    """Whether batches are there already, whoever makes them: it is the CPU, and there is nothing else."""
    return type(accelerator) is Plain and accelerator.device.type == "cpu" and not kind()


def kind() -> str:
    """The kind of torch's current accelerator, "" where there is none."""
    module = getattr(torch, "accelerator", None)  # torch 2.6, where asking it initialises CUDA
    if module is None or torch.version.cuda or torch.version.hip:
        return "cuda" if torch.cuda.is_available() else ""
    return str(module.current_accelerator().type) if module.is_available() else ""


def _current_cuda() -> int:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
