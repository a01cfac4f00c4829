"""The datasets: every sample says which it is, and has a checksum over its bytes, which are a function of its index.

A sample is (index, bytes, checksum, a drawn number, faults that its store has had, process): `Field` has their places.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, Self

import numpy as np
import torch
from torch.utils.data import IterableDataset

import aloader
from aloader.errors import Corrupted
from aloader.storage import MemoryStore, Retrying, Verified
from aloader.testing import Faults, FaultyStore, Latency

from .scenario import Scenario

_WORD: Final = (1 << 64) - 1


class Field(IntEnum):
    """Places in a sample, and in a batch."""

    INDEX = 0
    DATA = 1
    CHECKSUM = 2
    DRAWN = 3
    FAULTS = 4
    PROCESS = 5


class Corrupt(ValueError):
    """What a corrupt sample raises."""


def content(index: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a sample: no two indices have a word in common at the same place."""
    words = np.arange((nbytes + 7) // 8, dtype=np.uint64)
    words *= np.uint64(0x9E3779B97F4A7C15)
    words += np.uint64((index + 1) * 0xBF58476D1CE4E5B9 & _WORD)
    return words.view(np.uint8)[:nbytes]


class Samples:
    """What all kinds share: `sample` makes one. Picklable; what it knows of the scenario travels with it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def __len__(self) -> int:
        return self.scenario.samples

    def sample(self, index: int, drawn: float, faults: int = 0, data: Any = None) -> tuple[Any, ...]:
        """The sample of an index; raises if it is a corrupt one."""
        if index in self.scenario.corrupt:
            raise Corrupt(f"sample {index} is corrupt")
        if index in self.scenario.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        data = content(index, self.scenario.size_of(index)) if data is None else data
        return index, data, zlib.crc32(data), drawn, faults, os.getpid()

    def seconds(self, index: int) -> float:
        """What it takes to fetch it."""
        return self.scenario.work if index % self.scenario.every == 0 else 0.0


class Plain(Samples):
    def __getitem__(self, index: int) -> Any:
        drawn = random.random()
        time.sleep(self.seconds(index))
        return self.sample(index, drawn)


class Together(Plain):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class InThreads(Samples):
    def __getitem__(self, index: int) -> Any:
        drawn = aloader.sample_rng().random()
        time.sleep(self.seconds(index))
        return self.sample(index, drawn)


class Awaited(Samples):
    async def __getitem__(self, index: int) -> Any:
        drawn = aloader.sample_rng().random()
        await asyncio.sleep(self.seconds(index))
        return self.sample(index, drawn)


class Stored(Samples):
    """Out of a store that fails often and is asked again."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        objects = {str(i): content(i, scenario.size_of(i)).tobytes() for i in range(scenario.samples)}
        latency = Latency(median=scenario.work, sigma=0.5)
        faults = Faults(
            latency=latency,
            server_error=0.04,
            slow_down=0.02,
            reset=0.03,
            truncated=0.03,
            flipped=0.03,
            wrong_length=0.02,
            stalled=0.01,
            stall=(0.005, 0.03),
        )
        self.faulty = FaultyStore(MemoryStore(objects), faults, seed=scenario.seed)
        again = Retrying(self.faulty, attempts=20, first_delay=0.0005, most_delay=0.01, budget=100_000)
        # A transfer that was resumed has no digest of the store's own, so what each object should be is told here.
        digests = {key: f"crc32:{zlib.crc32(data):08x}" for key, data in objects.items()}
        self.store = Verified(again, check="all", digests=digests)

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.__aexit__(None, None, None)

    async def fetched(self, key: str) -> bytes:
        """What fails twice in a row in this way is told, and asked for once more here."""
        while True:
            try:
                return bytes(await self.store.get(key))
            except Corrupted:
                continue

    async def __getitem__(self, index: int) -> Any:
        drawn = aloader.sample_rng().random()
        data = np.frombuffer(await self.fetched(str(index)), np.uint8).copy()  # collating wants what can be written to
        return self.sample(index, drawn, sum(self.faulty.counts().faults.values()), data)


class Stream(Samples, IterableDataset[Any]):
    """Each worker its share. The state lies on the dataset."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        share = range(len(self)) if info is None else range(info.id, len(self), info.num_workers)
        while self.at < len(share):
            index = share[self.at]
            self.at += 1
            drawn = random.random()
            time.sleep(self.seconds(index))  # sleep: stands for work
            yield self.sample(index, drawn)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def as_list(samples: list[Any]) -> list[Any]:
    """The batch of samples that have different sizes."""
    return samples


_KINDS: Final = {
    "plain": Plain,
    "together": Together,
    "threads": InThreads,
    "async": Awaited,
    "store": Stored,
    "stream": Stream,
}


def dataset(scenario: Scenario) -> Any:
    """A scenario's dataset."""
    return _KINDS[scenario.kind](scenario)


def listed(scenario: Scenario) -> list[int]:
    """The order that a sampler which is a list gives."""
    order = list(range(scenario.samples))
    random.Random(scenario.seed).shuffle(order)
    return order


def arguments(scenario: Scenario) -> dict[str, Any]:
    """What a scenario's loader is made with, without dataset and pool."""
    chosen = {**scenario.arguments, "batch_size": scenario.batch_size, "num_workers": scenario.workers}
    chosen["generator"] = torch.Generator().manual_seed(scenario.seed)
    if scenario.order == "listed":
        chosen["sampler"] = listed(scenario)
    elif scenario.order == "shuffled":
        chosen["shuffle"] = True
    if scenario.ragged:
        chosen["collate_fn"] = as_list
    return chosen


def rows(batch: Any) -> list[tuple[Any, ...]]:
    """The samples of a batch, whatever it was collated to; their bytes are views of it."""
    if isinstance(batch[0], torch.Tensor):
        columns = [field.numpy() if i == Field.DATA else field.tolist() for i, field in enumerate(batch)]
        return list(zip(*columns, strict=True))
    return [(*sample[:1], np.asarray(sample[1]), *sample[2:]) for sample in batch]
