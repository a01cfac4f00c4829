"""Augmentation goes on as if there had been no interruption, where random numbers follow from a sample: with `seed=`,
and of async datasets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from aloader import DataLoader, WorkerPool, sample_rng

from .resuming import in_parts, whole
from .streams import share

N = 23

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


class Flipped:
    """A transform, as torchvision's: draws from torch's and Python's generators."""

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.5:
            pixels = pixels.flip(0)
        return pixels + torch.randn(pixels.shape)


class Images:
    """Images whose pixels, crop and transform are drawn at random."""

    def __init__(self) -> None:
        self.transform = Flipped()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.from_numpy(np.random.rand(6))
        return self.transform(noise + index + torch.rand(()))


class AsyncImages(Images):
    """The same after a request; others draw while it waits."""

    async def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        delay = random.Random(index * 7919).random() * 0.003
        await asyncio.sleep(delay)  # sleep: a store that answers when it likes
        return super().__getitem__(index)


def jittered(samples: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that draws, too."""
    return torch.stack(samples) * torch.rand(())


ARGUMENTS: dict[str, dict[str, Any]] = {
    "seed": {"dataset": Images(), "shuffle": True, "seed": 7},
    "seed, async": {"dataset": AsyncImages(), "shuffle": True, "seed": 7},
    "async": {"dataset": AsyncImages(), "shuffle": True},
    "async, in order": {"dataset": AsyncImages()},
}


def maker(pool: WorkerPool, name: str, **more: Any) -> Callable[[int], Any]:
    def make(workers: int) -> Any:
        on = {"pool": pool, "num_workers": workers} if workers else {}
        return DataLoader(batch_size=4, **ARGUMENTS[name], **on, **more)

    return make


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("how", ["for", "async for"])
def test_pixels_are_the_same_after_each_resume(pool: WorkerPool, name: str, how: str) -> None:
    torch.manual_seed(5)
    make = maker(pool, name)
    expected = whole(make(0), how, epochs=2)
    assert expected[0] != expected[1]
    for cuts, workers in (([0], (0,)), ([1], (0,)), ([5, 6], (0,)), ([1, 3, 5, 6], (2, 0, 1))):
        torch.manual_seed(5)
        got = in_parts(make, cuts, workers, how)
        if "seed" in ARGUMENTS[name]:
            assert got == expected, (cuts, workers)
        else:
            assert got[0] == expected[0], (cuts, workers)


@pytest.mark.parametrize("concurrency", [1, 8, 64])
def test_whatever_the_concurrency(pool: WorkerPool, concurrency: int) -> None:
    expected = whole(maker(pool, "seed, async")(0), epochs=2)
    got = in_parts(maker(pool, "seed, async", concurrency=concurrency), [2, 4], (0, 2, 0))
    assert got == expected


class Noise(IterableDataset[float]):
    """What is read from its front draws as well, and has no state."""

    def __iter__(self) -> Iterator[float]:
        for number in share(range(N)):
            yield number + random.random() + float(torch.rand(()))


class AsyncNoise:
    """The same, async."""

    async def __aiter__(self) -> AsyncIterator[float]:
        for number in Noise():
            await asyncio.sleep(0)
            yield number


class Named(Images):
    """Draws from the sample's own generator, between awaits."""

    async def __getitem__(self, index: int) -> float:  # type: ignore[override]
        first = sample_rng().random()
        await asyncio.sleep(0.001 * (index % 3))  # sleep: others draw meanwhile
        return index + first + sample_rng().random()


@pytest.mark.parametrize("kind", [Noise, AsyncNoise, Named])
@pytest.mark.parametrize("workers", [0, 2])
def test_with_a_seed_whatever_the_dataset(pool: WorkerPool, kind: Any, workers: int) -> None:
    on = {"pool": pool, "num_workers": workers} if workers else {}

    def make(_: int) -> Any:
        return DataLoader(kind(), 3, seed=7, **on)

    for how in ("for", "async for"):
        expected = whole(make(0), how, epochs=2)
        assert in_parts(make, [1, 4], how=how) == expected


def test_a_collate_function_draws_the_same_with_a_seed(pool: WorkerPool) -> None:
    for name in ("seed", "seed, async"):
        make = maker(pool, name, collate_fn=jittered)
        expected = whole(make(0), epochs=2)
        assert in_parts(make, [2, 4], (0, 2, 1)) == expected


def test_the_main_process_draws_what_it_would_draw_without_a_loader(pool: WorkerPool) -> None:
    make = maker(pool, "seed")
    torch.manual_seed(1)
    drawn = torch.rand(3).tolist()
    torch.manual_seed(1)
    in_parts(make, [], (0,))
    assert torch.rand(3).tolist() == drawn
