"""Who a worker is, and its random state: torch's own numbers, so that results do not change when the import does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from aloader.ranks import Ranks


class WorkerInfo(torch_worker.WorkerInfo):
    """Torch's answer to `get_worker_info()`, which notes that somebody has looked at it: it shards the data, then.

    Beside torch's fields it has the loader's `ranks`, which do not travel with it: pickled, it is torch's own.
    """

    ranks: Ranks | None

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers", "seed", "dataset"):
            object.__getattribute__(self, "__dict__")["_asked"] = True
        return object.__getattribute__(self, name)

    def __reduce__(self) -> Any:
        fields = {name: getattr(self, name) for name in ("id", "num_workers", "seed", "dataset")}
        return _torchs, (fields,)


def _torchs(fields: dict[str, Any]) -> torch_worker.WorkerInfo:
    return torch_worker.WorkerInfo(**fields)


def become(
    slot: int,
    num_workers: int,
    base_seed: int,
    dataset: Any,
    *,
    ranks: Ranks | None = None,
    everywhere: bool = True,
) -> Callable[[], bool]:
    """Seed the generators and make `get_worker_info()` answer. Not `everywhere`: leave other devices' alone.

    `ranks` are the loader's, for `shard_info()`; None: those of the process.

    Returns what says whether anybody has used the answer.

    Everything that shards by worker reads torch's global, and torch's `default_collate` does too.
    """
    torch.set_num_threads(1)
    seed = base_seed + slot
    random.seed(seed)
    (torch.manual_seed if everywhere else torch.default_generator.manual_seed)(seed)
    np.random.seed(torch_worker._generate_state(base_seed, slot))  # type: ignore[no-untyped-call]
    info = WorkerInfo(id=slot, num_workers=num_workers, seed=seed, dataset=dataset)
    vars(info)["ranks"] = ranks  # torch's class lets no attribute be set
    torch_worker._worker_info = info
    return lambda: "_asked" in vars(info)
