"""What tests of the device stage share: batches that say which they are in every byte, and kernels that look at them.

A sample is a row of its index; of a batch that lies where it should, each row holds one number only, and the right one.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from aloader.testing import SimulatedAccelerator

ROW = 6144  #: int32 per sample: 24 KiB, so that a batch of four is large enough for the arena
SIZE = 4
QUEUE = 500  #: kernels that wait at most: a driver's queue is bounded, too


def number_of_batches(usual: int) -> int:
    """How many batches a test of stamps goes through: more where `ALOADER_TEST_BATCHES` says so."""
    return max(usual, int(os.environ.get("ALOADER_TEST_BATCHES", usual)))


def simulated(**more: Any) -> SimulatedAccelerator:
    """One whose clock goes on by 0.5 ms when it is asked whether it has come so far: a loop asks each millisecond."""
    return SimulatedAccelerator(poll_cost=5e-4, **more)


class Stamped:
    """A dataset of such rows, with a label; `length` samples."""

    def __init__(self, length: int, row: int = ROW) -> None:
        self.length = length
        self.row = row

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.full((self.row,), index, dtype=torch.int32), index


class AsyncStamped(Stamped):
    """The same, asynchronous."""

    async def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:  # type: ignore[override]
        return super().__getitem__(index)


class Steps:
    """A training program: computes on each batch for so long (seconds on the device), and notes what it saw there."""

    def __init__(self, sim: SimulatedAccelerator, seconds: float = 1e-3) -> None:
        self.sim = sim
        self.seconds = seconds
        self.launched: list[Any] = []

    def step(self, batch: Any, seconds: float | None = None) -> None:
        """Launch the kernel of one step; it keeps nothing alive."""
        x, labels = batch
        if len(self.launched) % QUEUE == QUEUE - 1:
            self.sim.synchronize()
        took = self.seconds if seconds is None else seconds
        self.launched.append(self.sim.launch(f"compute {len(self.launched)}", took, seen, reads=[x, labels]))

    def seen(self) -> list[list[int]]:
        """What the batches were, once the device has come so far."""
        self.sim.synchronize()
        return [launch.result for launch in self.launched]


def seen(x: torch.Tensor, labels: torch.Tensor) -> list[int]:
    """The indices in a batch; an assertion, if a byte of it is wrong."""
    rows = x.numpy()
    found = [int(row[0]) for row in rows]
    wrong = [index for index, row in zip(found, rows, strict=True) if not np.all(row == index)]
    assert not wrong, f"torn rows: {wrong}"
    assert labels.tolist() == found, f"labels {labels.tolist()} with rows of {found}"
    return found


def batches_of(length: int, size: int = SIZE) -> list[list[int]]:
    """What the batches of an epoch in order are."""
    return [list(range(low, min(low + size, length))) for low in range(0, length, size)]
