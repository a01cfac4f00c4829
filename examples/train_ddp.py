"""Scanned digits into a small network on several ranks, with torch's DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/train_ddp.py
    python examples/train_ddp.py                        the same program, alone

The data are scikit-learn's 1,797 digits as PNG files in a folder, which rank 0 writes if it is empty (`--data`). Each
rank loads its share of every epoch by `distributed=True`: rank and world size are the process group's. Epochs are
shuffled by (seed, number of the epoch), and count by themselves: there is no `set_epoch` to forget. Exit status 1 if
the ranks did not see equally many batches, or not all of the samples. On GPUs, if there are any, with NCCL.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from digits import write_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aloader import DataLoader
from aloader.datasets import ImageFolder
from aloader.storage import open_store


@contextmanager
def process_group() -> Iterator[torch.device]:
    """This rank's device, and the process group that torchrun has laid out; without torchrun, there is none."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        yield device
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def gathered(value: Any) -> list[Any]:
    """What each rank has, by rank."""
    if not dist.is_initialized():
        return [value]
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, value)
    return everybody


def is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def digits_in(folder: Path) -> ImageFolder:
    """The images of a folder that all ranks can read. One rank writes them, and the others wait for it."""
    if is_first():
        asyncio.run(write_digits(open_store(folder)))
    gathered("written")
    return ImageFolder(folder, to_tensor)


def to_tensor(image: Any) -> torch.Tensor:
    """A PIL image to a float tensor of shape (1, 8, 8), values from 0 to 1."""
    return torch.from_numpy(np.asarray(image.convert("L"), dtype=np.float32) / 255)[None]


def network(device: torch.device) -> nn.Module:
    """The same on every rank, with gradients averaged over the ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 10),
    ).to(device)  # fmt: skip
    return DistributedDataParallel(model) if dist.is_initialized() else model


class Tally:
    """Loss, images and those read correctly of one rank's epoch, and which samples each of its batches had."""

    def __init__(self) -> None:
        self.loss, self.right, self.images = 0.0, 0, 0
        self.batches: list[list[int]] = []

    def add(self, logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor, indices: Any) -> None:
        self.loss += loss.item() * len(labels)
        self.right += int((logits.argmax(1) == labels).sum())
        self.images += len(labels)
        self.batches.append([int(index) for index in indices])


def report(epoch: int, tally: Tally, samples: int) -> None:
    """Rank 0 prints what all of them did in the epoch; every rank ends the program if something was left out."""
    ranks = gathered(tally)
    images = sum(rank.images for rank in ranks)
    counts = sorted({len(rank.batches) for rank in ranks})
    times = Counter(index for rank in ranks for batch in rank.batches for index in batch)
    again = images - len(times)
    if is_first():
        loss, right = sum(rank.loss for rank in ranks) / images, sum(rank.right for rank in ranks) / images
        print(f"epoch {epoch}  loss {loss:.3f}  accuracy {right:6.1%}  ", end="")
        print(f"{len(ranks)} ranks had {' or '.join(map(str, counts))} batches each, with ", end="")
        print(f"{len(times):,} of {samples:,} samples" + (f", {again} twice to fill up" if again else ""), flush=True)
    if len(counts) > 1 or set(times) != set(range(samples)) or again >= len(ranks):
        sys.exit("train_ddp: the ranks' shares are not the whole")


async def train(model: nn.Module, ds: ImageFolder, device: torch.device, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    async with DataLoader(ds, batch_size=64, shuffle=True, seed=0, num_workers=2, distributed=True) as loader:
        for epoch in range(epochs):
            tally = Tally()
            async for (images, labels), info in loader.with_info():
                images, labels = images.to(device), labels.to(device)
                logits = model(images)
                loss = nn.functional.cross_entropy(logits, labels)
                optimizer.zero_grad()
                loss.backward()  # here the ranks wait for each other: all need the same number of batches
                optimizer.step()
                tally.add(logits, labels, loss, info.indices)
            report(epoch, tally, len(ds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "digits")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the network is small, and ranks and workers want the other cores
    with process_group() as device:
        asyncio.run(train(network(device), digits_in(arguments.data), device, arguments.epochs))
