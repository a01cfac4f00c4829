"""Iterable-style datasets: how they are cut for workers, how they end, how they fail. Importable by workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):
    """The same numbers from every worker; each is told from which, and in which of its worker's epochs."""

    length: int | None = None

    def __init__(self, n: int = 10) -> None:
        self.n = n
        self.epoch = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n})"  # torch's warning shows it: no address

    def mine(self, worker: int, workers: int) -> range | list[int]:
        """The numbers of one worker."""
        return range(self.n)

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for number in self.mine(worker, workers):
            yield self.sample(number, worker)

    def sample(self, number: int, worker: int) -> Any:
        """What is yielded for a number."""
        return number, worker, self.epoch


class Sized(Stream):
    """Says how long it is, rightly or not."""

    def __init__(self, n: int, said: int) -> None:
        super().__init__(n)
        self.said = said

    def __len__(self) -> int:
        return self.said


class Sharded(Stream):
    """Every number from one worker only."""

    def mine(self, worker: int, workers: int) -> range | list[int]:
        return range(worker, self.n, workers)


class SizedSharded(Sharded):
    def __len__(self) -> int:
        return self.n


class Uneven(Stream):
    """The first worker has most, and the last of three nothing."""

    def mine(self, worker: int, workers: int) -> range | list[int]:
        shares = {1: [self.n], 2: [self.n - 2, 2], 3: [self.n - 3, 3, 0]}[workers]
        begin = sum(shares[:worker])
        return range(begin, begin + shares[worker])


class LateUneven(Uneven):
    """The same, and the first worker is the one that has nothing."""

    def mine(self, worker: int, workers: int) -> range | list[int]:
        return super().mine(workers - 1 - worker, workers)


class Drawing(Sharded):
    """Draws from every generator."""

    def sample(self, number: int, worker: int) -> Any:
        return number, random.random(), float(np.random.rand()), torch.rand(2)


class Informed(Sharded):
    """What the worker knows of itself."""

    def sample(self, number: int, worker: int) -> Any:
        info = get_worker_info()
        if info is None:
            return number, -1, -1, -1, True
        return number, info.id, info.num_workers, info.seed, info.dataset is self


class Large(Sharded):
    """Samples of more than a small leaf's size, with a text."""

    def sample(self, number: int, worker: int) -> Any:
        return {"data": torch.full((30_000,), float(number)), "text": f"{number}", "array": np.full((2, 2), number)}


class Cut(Stream):
    """Its start function says which part is whose, as in torch's documentation."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__(end - begin)
        self.begin = begin
        self.end = end

    def mine(self, worker: int, workers: int) -> range | list[int]:
        return range(self.begin, self.end)


def cut(worker: int) -> None:
    """The start function for `Cut`."""
    info = get_worker_info()
    assert info is not None
    stream: Any = info.dataset
    each = -(-(stream.end - stream.begin) // info.num_workers)
    begin = stream.begin + worker * each
    stream.begin, stream.end = begin, min(begin + each, stream.end)


class Itself(Stream):
    """Its own iterator: a second epoch goes on where the first one was left."""

    def __init__(self, n: int = 10) -> None:
        super().__init__(n)
        self.at = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at >= self.n:
            raise StopIteration
        return self.at


class Failing(Itself):
    """Fails at some numbers, and goes on after them."""

    def __init__(self, n: int, at: tuple[int, ...]) -> None:
        super().__init__(n)
        self.fails_at = at

    def __next__(self) -> int:
        number = super().__next__()
        if number in self.fails_at:
            raise ValueError(f"number {number} is bad")
        return number


class Broken(Stream):
    """A generator that fails: it is over then."""

    def sample(self, number: int, worker: int) -> Any:
        if number == 4:
            raise OSError(5, "Input/output error", "shard-4")
        return number


class Unopened(Stream):
    """Fails before its first number."""

    def __iter__(self) -> Iterator[Any]:
        raise LookupError("no shards")
