"""Ways to say which samples come in which order: each gives the arguments for a dataset, made anew for every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .data import Keyed

Arguments = dict[str, Any]


class Eager(Sampler[int]):
    """Makes its whole order when it is asked for an iterator, from the global generator; counts how often."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.calls = 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        return iter([*torch.randperm(self.n).tolist(), self.calls])


class Lazy(Sampler[int]):
    """Decides at each step, from Python's global generator."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.drawn = 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.n):
            self.drawn += 1
            yield random.randrange(self.n)


class OneShot:
    """An iterator, not an iterable: a second epoch finds it used up."""

    def __init__(self, n: int) -> None:
        self.left = iter(range(n))

    def __iter__(self) -> OneShot:
        return self

    def __next__(self) -> int:
        return next(self.left)


def _keyed(make: Callable[[int], list[Any]]) -> Callable[..., Arguments]:
    def order(data: Any, generator: torch.Generator | None) -> Arguments:
        return {"dataset": Keyed(data), "sampler": make(len(data))}

    return order


def _sampled(make: Callable[[Any, torch.Generator | None], Any]) -> Callable[..., Arguments]:
    def order(data: Any, generator: torch.Generator | None) -> Arguments:
        sampler = make(data, generator)
        watch = {"watch": lambda: sampler.calls} if hasattr(sampler, "calls") else {}
        watch |= {"watch": lambda: sampler.drawn} if hasattr(sampler, "drawn") else {}
        return {"dataset": data, "sampler": sampler} | watch

    return order


def _batched(make: Callable[[Any, torch.Generator | None], Any]) -> Callable[..., Arguments]:
    def order(data: Any, generator: torch.Generator | None) -> Arguments:
        return {"dataset": data, "batch_sampler": make(data, generator)}

    return order


def _distributed(data: Any, generator: torch.Generator | None) -> Any:
    return BatchSampler(DistributedSampler(data, num_replicas=3, rank=1, seed=4), 3, drop_last=False)


def _random_batches(data: Any, generator: torch.Generator | None) -> Any:
    return BatchSampler(RandomSampler(data, generator=generator), 4, drop_last=False)


ORDERS: dict[str, Callable[[Any, torch.Generator | None], Arguments]] = {
    "unsaid": lambda data, generator: {"dataset": data},
    "shuffled": lambda data, generator: {"dataset": data, "shuffle": True},
    "sequential": _sampled(lambda data, generator: SequentialSampler(data)),
    "random": _sampled(lambda data, generator: RandomSampler(data, generator=generator)),
    "replaced": _sampled(lambda data, generator: RandomSampler(data, True, 40, generator)),
    "more": _sampled(lambda data, generator: RandomSampler(data, num_samples=len(data) + 9, generator=generator)),
    "fewer": _sampled(lambda data, generator: RandomSampler(data, num_samples=len(data) - 9, generator=generator)),
    "subset": _sampled(lambda data, generator: SubsetRandomSampler(range(0, len(data), 2), generator)),
    "weighted": _sampled(lambda data, generator: WeightedRandomSampler([1.0, 5.0, 2.0] * 7, 20, True, generator)),
    "eager": _sampled(lambda data, generator: Eager(len(data))),
    "lazy": _sampled(lambda data, generator: Lazy(len(data))),
    "one shot": _sampled(lambda data, generator: OneShot(len(data))),
    "strings": _keyed(lambda n: [f"key-{i}" for i in range(n - 1, -1, -1)]),
    "tuples": _keyed(lambda n: [(i, "tuple") for i in range(n)]),
    "lists": _keyed(lambda n: [[i, i + 1] for i in range(n - 1)]),
    "batches": _batched(lambda data, generator: [[3, 1], [0], [5, 6, 7, 2], *([i] for i in range(8, len(data)))]),
    "tuple batches": _batched(lambda data, generator: ((i, i + 1) for i in range(0, len(data) - 1, 2))),
    "random batches": _batched(_random_batches),
    "eager batches": _batched(lambda data, generator: BatchSampler(Eager(len(data) - 1), 4, True)),
    "lazy batches": _batched(lambda data, generator: BatchSampler(Lazy(len(data)), 4, True)),
    "distributed": _batched(_distributed),
}

#: Those that say which samples make a batch.
IN_BATCHES = frozenset(name for name in ORDERS if name.endswith("batches") or name == "distributed")
