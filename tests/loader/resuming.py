"""What the tests of resuming share: one epoch in parts, each read by a loader of its own that goes on from the state of
the one before, as programs do that are interrupted; samplers of every kind; and torch's loader as the judge.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .samples import Numbers

N = 47  # in batches of 4: the last one is not whole
Make = Callable[[int], Any]  # a loader with so many workers


class Delayed(Numbers):
    """Async, and each sample takes another time, without a draw from anybody's generators."""

    def __init__(self, n: int = N, worst: float = 0.002) -> None:
        super().__init__(n)
        self.worst = worst

    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        delay = random.Random(index * 7919).random() * self.worst
        await asyncio.sleep(delay)  # sleep: a store that answers when it likes
        return index


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a file."""
    text = json.dumps(state, allow_nan=False)
    back: dict[str, Any] = json.loads(text)
    assert back == state, "JSON changes it"
    return back


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def told(loader: Any) -> Any:
    """The loader; a sampler that follows epochs has been told the next one, as a program's loop over epochs does it."""
    if type(loader.sampler) in (DistributedSampler, Turned):
        loader.set_epoch(loader.epoch)
    return loader


async def _read_async(loader: Any, count: int) -> tuple[list[Any], dict[str, Any]]:
    async with loader:
        iterator = aiter(told(loader))
        return [plain(await anext(iterator)) for _ in range(count)], loader.state_dict()


def read(loader: Any, count: int, how: str = "for") -> tuple[list[Any], dict[str, Any]]:
    """So many batches and not one more, and the state behind them, taken while others are being fetched."""
    if how == "async for":
        got, state = asyncio.run(_read_async(loader, count))
    else:
        with closing(loader):
            iterator = iter(told(loader))
            got, state = [plain(next(iterator)) for _ in range(count)], loader.state_dict()
    return got, through_json(state)


async def _whole_async(loader: Any, epochs: int) -> list[list[Any]]:
    async with loader:
        return [[plain(batch) async for batch in told(loader)] for _ in range(epochs)]


def whole(loader: Any, how: str = "for", epochs: int = 1) -> list[list[Any]]:
    """Whole epochs."""
    if how == "async for":
        return asyncio.run(_whole_async(loader, epochs))
    with closing(loader):
        return [[plain(batch) for batch in told(loader)] for _ in range(epochs)]


def in_parts(make: Make, cuts: Sequence[int], workers: Sequence[int] = (0,), how: str = "for") -> list[list[Any]]:
    """Two epochs, the first one interrupted behind so many batches, each part by a loader with the next of `workers`.

    Between the parts, everything is drawn from otherwise: a program that begins anew.
    """
    counts = itertools.cycle(workers)
    got: list[Any] = []
    state: dict[str, Any] = {}
    for cut in cuts:
        loader = make(next(counts))
        loader.load_state_dict(state)
        part, state = read(loader, cut - len(got), how)
        got += part
        assert (state["epoch"], state["batches"]) == (0, cut)
        torch.manual_seed(cut)
    loader = make(next(counts))
    loader.load_state_dict(state)
    rest, after = whole(loader, how, epochs=2)
    return [got + rest, after]


# -- samplers ----------------------------------------------------------------------------------------------------------


class Backwards(Sampler[int]):
    """A user's, without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N - 1, -1, -1))

    def __len__(self) -> int:
        return N


class Turned(Backwards):
    """One whose order depends on an epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return ((index * 5 + self.epoch * 11) % N for index in range(N))


class Positioned(Backwards):
    """Its state lies on itself; each pass of it is another one."""

    def __init__(self) -> None:
        self.passes = 0
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < N:
            self.at += 1
            yield ((self.at - 1) * 3 + self.passes) % N
        self.passes, self.at = self.passes + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes, self.at = state["passes"], state["at"]


class Pass:
    """One pass: an iterator with a state, which holds what JSON has no word for."""

    def __init__(self) -> None:
        self.random = random.Random(4)
        self.left = N

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.random.randrange(N)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.getstate(), "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.setstate(state["random"])
        self.left = state["left"]


class ByPass(Backwards):
    """Its iterators have a state."""

    def __iter__(self) -> Iterator[int]:
        return Pass()


class ByPassInPairs(Sampler[list[int]]):
    """The same of a batch sampler."""

    def __iter__(self) -> Iterator[list[int]]:
        return PassInPairs()

    def __len__(self) -> int:
        return 12


class PassInPairs(Pass):
    """Its batches."""

    def __next__(self) -> list[int]:  # type: ignore[override]
        return [Pass.__next__(self) for _ in range(min(4, self.left) or 1)]


class Pairs(Sampler[list[int]]):
    """A user's batch sampler, with batches of several sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        numbers = iter(range(N))
        return iter([list(itertools.islice(numbers, 1 + at % 6)) for at in range(12)])

    def __len__(self) -> int:
        return 12


class StatefulPairs(Pairs):
    """One with a state of its own; each pass of it is another one."""

    def __init__(self) -> None:
        self.at = self.passes = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < 12:
            self.at += 1
            yield [self.at, 2 * self.at + self.passes]
        self.passes, self.at = self.passes + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.passes = state["at"], state["passes"]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0 + at % 3 for at in range(N)], N, generator=generator())


#: Arguments for torch's loader and ours, made anew for each: 12 batches each. What a global generator decides is
#: decided by what was seeded before the first loader is made.
SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": lambda: {"batch_size": 4},
    "without the rest": lambda: {"batch_size": 4, "sampler": [*range(N), 3, 5, 7], "drop_last": True},
    "shuffle": lambda: {"batch_size": 4, "shuffle": True},
    "shuffle, generator": lambda: {"batch_size": 4, "shuffle": True, "generator": generator()},
    "part": lambda: {"batch_size": 4, "sampler": RandomSampler(range(N), num_samples=45)},
    "more than all": lambda: {"batch_size": 10, "sampler": RandomSampler(range(N), num_samples=115)},
    "with replacement": lambda: {"batch_size": 4, "sampler": RandomSampler(range(N), True, 46)},
    "replacement, generator": lambda: {"batch_size": 4, "sampler": RandomSampler(range(N), True, 46, generator())},
    "subset": lambda: {"batch_size": 3, "sampler": SubsetRandomSampler(range(5, 40), generator())},
    "subset, global": lambda: {"batch_size": 3, "sampler": SubsetRandomSampler(range(5, 40))},
    "weighted": lambda: {"batch_size": 4, "sampler": weighted()},
    "torch's distributed": lambda: {"batch_size": 2, "sampler": DistributedSampler(range(N), 2, 1, seed=3)},
    "user's": lambda: {"batch_size": 4, "sampler": Backwards()},
    "user's, by epoch": lambda: {"batch_size": 4, "sampler": Turned()},
    "user's stateful": lambda: {"batch_size": 4, "sampler": Positioned()},
    "user's stateful iterator": lambda: {"batch_size": 4, "sampler": ByPass()},
    "user's stateful batch iterator": lambda: {"batch_sampler": ByPassInPairs()},
    "user's batches": lambda: {"batch_sampler": Pairs()},
    "user's stateful batches": lambda: {"batch_sampler": StatefulPairs()},
    "unbatched": lambda: {"batch_size": None, "sampler": range(30, 42)},
    "unbatched, shuffled": lambda: {"batch_size": None, "sampler": SubsetRandomSampler(range(12), generator())},
}

#: Those whose next epoch follows from the global generator, which no state holds.
GLOBAL = ("shuffle", "part", "more than all", "with replacement", "subset, global")

#: Those that draw from a generator which others may have drawn from before.
DRAWING = (
    "shuffle, generator",
    "replacement, generator",
    "subset",
    "subset, global",
    "weighted",
    "unbatched, shuffled",
)
