"""A batch comes back as it was: leaves on the memory of their buffers, structure and identity as pickle keeps them."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import torch

from aloader import options
from aloader.channel.payload import Packed, pack, unpack


def arrive(packed: Packed) -> list[Any]:
    """What the parent has of a batch's buffers: lease owners, made directly on a shared mapping."""
    size = max(1, sum(len(view) + 64 for view in packed.buffers))
    segment, owners, offset = mmap.mmap(-1, size), [], 0
    for view in packed.buffers:
        segment[offset : offset + len(view)] = view.tobytes()
        owners.append(np.frombuffer(segment, np.uint8, len(view), offset))
        offset += -(-len(view) // 64) * 64
    return owners


def carried(batch: Any) -> Any:
    packed = pack(batch)
    return unpack(packed.body, arrive(packed))


def test_large_leaves_come_back_on_the_memory_of_their_owner() -> None:
    batch = {"image": torch.rand(64, 3, 32, 32), "label": torch.arange(64), "path": [f"{i}.jpg" for i in range(64)]}
    packed = pack(batch)
    owners = arrive(packed)
    back = unpack(packed.body, owners)
    assert [len(view) for view in packed.buffers] == [batch["image"].nbytes]
    assert len(packed.body) < options.BODY_BYTES
    assert back["image"].data_ptr() == owners[0].ctypes.data
    assert torch.equal(back["image"], batch["image"])
    assert torch.equal(back["label"], batch["label"])
    assert back["path"] == batch["path"]
