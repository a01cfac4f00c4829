"""Datasets that draw random numbers in every way there is, and collation that does."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

import aloader
from tests.loader.samples import Numbers
from tests.loader.streams import share


def drawn() -> list[float]:
    """One number of each generator; of those that make two deviates at once, one, so that the other is kept."""
    return [
        random.random(),
        random.gauss(0.0, 1.0),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def with_rng() -> list[float]:
    """The same, and of the sample's own generator."""
    return [*drawn(), float(aloader.sample_rng().random())]


def collate(samples: list[Any]) -> Any:
    """What was drawn for the samples, and for the batch."""
    return samples, with_rng()


def in_any_time() -> float:
    """Seconds to wait, of no generator that anybody looks at."""
    return int.from_bytes(os.urandom(1), "big") / 255 * 0.003


class Drawing(Numbers):
    """Ordinary: a sample is what was drawn for it."""

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return index, with_rng(), with_rng()


class AsyncDrawing(Numbers):
    """Draws before, between and after awaits that take any time; in some steps not at all."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        first = with_rng()
        for _ in range(index % 3):
            await asyncio.sleep(in_any_time())  # sleep: a request's latency
        await asyncio.sleep(0)
        second = drawn()
        await asyncio.sleep(in_any_time())  # sleep: a request's latency
        return index, first, second, with_rng()


class Together(Drawing):
    """All of a batch in one call."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [(index, with_rng()) for index in indices]


class AsyncTogether(AsyncDrawing):
    """The same, awaited; and with samples that are awaited one by one."""

    async def __getitems__(self, indices: list[int]) -> Any:
        await asyncio.sleep(in_any_time())  # sleep: a request's latency
        first = with_rng()
        return [self._late(index, first) for index in indices]

    async def _late(self, index: int, first: list[float]) -> Any:
        before = drawn()
        await asyncio.sleep(in_any_time())  # sleep: a request's latency
        return index, first, before, drawn()


class Turning(AsyncDrawing):
    """Does not show that it is async; draws before it is awaited, too."""

    def __getitem__(self, index: int) -> Any:
        return self._rest(index, with_rng())

    async def _rest(self, index: int, first: list[float]) -> Any:
        before = with_rng()
        await asyncio.sleep(in_any_time())  # sleep: a request's latency
        return index, first, before, with_rng()


class Reading(IterableDataset[Any]):
    """Each worker reads its share, drawing at its beginning, too."""

    def __init__(self, n: int = 24) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        begun = with_rng()
        for index in share(range(self.n)):
            yield index, begun, with_rng()


class AsyncReading:
    """The same, awaited; every other sample has yet to be."""

    def __init__(self, n: int = 24) -> None:
        self.n = n

    async def __aiter__(self) -> AsyncIterator[Any]:
        begun = with_rng()
        for index in share(range(self.n)):
            before = drawn()
            await asyncio.sleep(in_any_time())  # sleep: a request's latency
            sample = index, begun, before, with_rng()
            yield self._late(sample) if index % 2 else sample

    async def _late(self, sample: Any) -> Any:
        before = drawn()
        await asyncio.sleep(in_any_time())  # sleep: a request's latency
        return *sample, before, with_rng()


def left_alone(act: Callable[[], Any]) -> Any:
    """What `act` gives. It must leave this process's generators as they are, deviates that they keep included."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    drawn()
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    result = act()
    now = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert now[0] == before[0]
    assert all(np.array_equal(a, b) for a, b in zip(now[1], before[1], strict=True))
    assert torch.equal(now[2], before[2])
    return result
