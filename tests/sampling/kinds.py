"""Samplers of all kinds that a pass can be drawn from, and how it is drawn."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from aloader.sampling import DistributedSampler, ShuffledSampler
from aloader.sampling.passes import Passes
from aloader.sampling.source import source_of

N = 11


class Own(Sampler[int]):
    """A user's, without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


class OwnByEpoch(Own):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        epoch = self.epoch
        return (index + 100 * epoch for index in super().__iter__())


class Stateful(Sampler[int]):
    """A user's, which knows its place; its order is from a random state that nothing else tells."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.gone = 0
        self.asked = 0
        self.skip = 0

    def __iter__(self) -> Iterator[int]:
        self.gone, self.skip = self.skip, 0
        while self.gone < N:
            self.gone += 1
            yield self.random.randrange(10**6)

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"random": self.random.getstate(), "gone": self.gone, "array": np.arange(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert isinstance(state["array"], np.ndarray)
        self.random.setstate(state["random"])
        self.skip = self.gone = state["gone"]


class StatefulIterator:
    """An iterator that knows its place, of an iterable that knows nothing."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.at * 7

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Iterated(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


class StatefulBatches(Sampler[list[int]]):
    """A user's batch sampler: batches of all sizes."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[list[int]]:
        at, self.at = self.at, 0
        for size in range(at, 4):
            self.at = size + 1
            yield [size] * size
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Subclass(ShuffledSampler):
    """A user's: it has our methods, and may do anything else."""

    def __iter__(self) -> Iterator[int]:
        return (index + 1000 for index in super().__iter__())


def used(seed: int) -> torch.Generator:
    generator = torch.Generator().manual_seed(seed)
    torch.rand(3, generator=generator)
    return generator


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(range(N)),
    "random": lambda: RandomSampler(range(N)),
    "random, a part": lambda: RandomSampler(range(N), num_samples=7),
    "random, more than there are": lambda: RandomSampler(range(N), num_samples=25),
    "random, with replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=40),
    "random, own generator": lambda: RandomSampler(range(N), generator=torch.Generator().manual_seed(1)),
    "random, used generator": lambda: RandomSampler(range(N), generator=used(2)),
    "random, replacement, generator": lambda: RandomSampler(range(N), True, 40, generator=used(2)),
    "subset": lambda: SubsetRandomSampler([5, 3, 8, 1, 9, 2, 7]),
    "subset, generator": lambda: SubsetRandomSampler([5, 3, 8, 1, 9], generator=used(3)),
    "weighted": lambda: WeightedRandomSampler([0.1, 0.5, 0.2, 0.2], 13),
    "weighted, generator": lambda: WeightedRandomSampler([0.1, 0.5, 0.2, 0.2], 3, False, generator=used(3)),
    "torch's distributed": lambda: TorchDistributedSampler(range(N), 2, 1, seed=4),  # type: ignore[arg-type]
    "torch's distributed, in order": lambda: TorchDistributedSampler(range(N), 2, 1, False),  # type: ignore[arg-type]
    "torch's distributed, cut": lambda: TorchDistributedSampler(range(N), 2, 1, drop_last=True),  # type: ignore[arg-type]
    "distributed": lambda: DistributedSampler(N, 2, 0, seed=4),
    "shuffled": lambda: ShuffledSampler(N, seed=2, epoch=3),
    "shuffled, padded": lambda: ShuffledSampler(N, rank=3, world_size=4),
    "shuffled, cut": lambda: ShuffledSampler(N, rank=3, world_size=4, ends="drop"),
    "shuffled, even": lambda: ShuffledSampler(N, rank=1, world_size=4, ends="even"),
    "a list": lambda: [3, 1, 4, 1, 5, 9, 2],
    "own": Own,
    "own, by epoch": OwnByEpoch,
    "own, with a state": Stateful,
    "own, whose iterator has a state": Iterated,
    "a subclass of ours": lambda: Subclass(N),
}

KINDS: dict[str, Callable[[], Any]] = {}
for _name, _make in SAMPLERS.items():
    KINDS[_name] = _make
    KINDS[f"{_name}, in batches"] = lambda make=_make: BatchSampler(make(), 3, False)  # type: ignore[misc]
    KINDS[f"{_name}, in full batches"] = lambda make=_make: BatchSampler(make(), 2, True)  # type: ignore[misc]
    KINDS[f"{_name}, in batches of batches"] = lambda make=_make: BatchSampler(  # type: ignore[misc]
        BatchSampler(make(), 2, False),  # type: ignore[arg-type]
        2,
        False,
    )
KINDS["own batches, with a state"] = StatefulBatches


def begun(sampler: Any, state: dict[str, Any] | None = None) -> Any:
    return source_of(sampler, Passes().begin(sampler), state)


def rest(source: Any) -> list[Any]:
    source.prepare()
    tickets = []
    while True:
        try:
            tickets.append(source.draw())
        except StopIteration:
            return tickets


def as_json(state: dict[str, Any], most: int = 1500) -> dict[str, Any]:
    text = json.dumps(state)
    drawn = "generator" in state or "random" in str(state.get("state"))
    assert len(text) < most or drawn
    return json.loads(text)


def global_states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
