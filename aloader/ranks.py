"""Which rank this process is, and of how many: from torch.distributed where it is set up, else as torchrun says it in
the environment, else alone.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch.distributed


class Ranks(NamedTuple):
    """One process's place among those that train together."""

    rank: int
    world_size: int


def current() -> Ranks:
    """This process's, as things are now. Raises ValueError for an environment that contradicts itself."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return Ranks(0, 1)
    try:
        return checked(int(rank), int(world_size))
    except ValueError:
        raise ValueError(
            f"the environment says RANK={rank!r} and WORLD_SIZE={world_size!r}, which is no rank: unset them, or give "
            "distributed=(rank, world_size)"
        ) from None


def checked(rank: Any, world_size: Any) -> Ranks:
    """A rank as it was given. Raises ValueError for what is none."""
    numbers = isinstance(rank, int) and isinstance(world_size, int)
    if not numbers or not 0 <= rank < world_size:
        raise ValueError(f"a rank is one of 0 … world_size - 1, but got rank={rank!r}, world_size={world_size!r}")
    return Ranks(int(rank), int(world_size))
