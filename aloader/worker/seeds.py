"""Who a worker is, and its random state: torch's own numbers, so that results do not change when the import does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker


def become(slot: int, num_workers: int, base_seed: int, dataset: Any, *, everywhere: bool = True) -> None:
    """Seed the generators and make `get_worker_info()` answer. Not `everywhere`: leave other devices' alone.

    Everything that shards by worker reads torch's global, and torch's `default_collate` does too.
    """
    torch.set_num_threads(1)
    seed = base_seed + slot
    random.seed(seed)
    (torch.manual_seed if everywhere else torch.default_generator.manual_seed)(seed)
    np.random.seed(torch_worker._generate_state(base_seed, slot))  # type: ignore[no-untyped-call]
    torch_worker._worker_info = torch_worker.WorkerInfo(id=slot, num_workers=num_workers, seed=seed, dataset=dataset)
