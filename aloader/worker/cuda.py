"""CUDA in a worker is refused, with the reason.

A child forked after its parent had initialised CUDA gets torch's "Cannot re-initialize CUDA in forked subprocess". A
worker from the template would get what it asks for: a context of its own, some 500 MB of the GPU's memory, one for each
worker, and tensors that cannot leave it. So torch's way in is closed; what only asks (`is_available`, `device_count`)
and what waits for an initialisation (seeding) stays as it is.
"""

from __future__ import annotations

from typing import Any, Final

import torch

REFUSED: Final = (
    "DataLoader workers do not touch CUDA: a context takes hundreds of MB of the GPU in every worker, and its tensors "
    "cannot be sent. Return CPU tensors, and let the training loop move the batch (pin_memory=True, and "
    ".to(device, non_blocking=True)). If the dataset must compute on the GPU, give the loader num_workers=0, or "
    'multiprocessing_context="spawn" and return .cpu() tensors.'
)


def refuse() -> None:
    """Whatever initialises CUDA raises RuntimeError from now on, in this process and those forked from it."""
    cuda: Any = torch.cuda
    cuda._lazy_init = _refused  # by this name it is called from Python and from C++ alike


def _refused() -> None:
    raise RuntimeError(REFUSED)
