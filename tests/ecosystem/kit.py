"""What the programs of these tests share: samples that say which process made them. Imports no framework."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data import dataloader as torch_loader


@cache
def owner_of(pid: int) -> int:
    """The process whose template a process descends from, or -1 if it is no worker of aloader's."""
    lineage = [psutil.Process(pid), *psutil.Process(pid).parents()]
    templates = ["aloader.worker.template" in " ".join(process.cmdline()) for process in lineage]
    return lineage[templates.index(False)].pid if templates[0] else -1


class Stamped:
    """Sample i says so, and who made it: the process, and the program that started this one for its loader."""

    def __init__(self, n: int = 48) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = float(index) / self.n
        return {
            "x": torch.tensor([x]),
            "labels": torch.tensor(2 * x),
            "index": index,
            "pid": os.getpid(),
            "owner": owner_of(os.getpid()),
        }


class AsyncStamped(Stamped):
    """The same, and async: torch's own loader cannot get a sample out of it."""

    async def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]
        await asyncio.sleep(0.001)
        return super().__getitem__(index)


class Stream(IterableDataset[dict[str, Any]]):
    """The same samples, from the front; dealt out to workers."""

    def __init__(self, n: int = 48) -> None:
        self.stamped = Stamped(n)

    def __len__(self) -> int:
        return len(self.stamped)

    def share(self) -> range:
        worker = get_worker_info()
        return range(len(self))[worker.id :: worker.num_workers] if worker else range(len(self))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.stamped.__getitem__, self.share())


class AsyncStream:
    """The same, for `async for`, and no kin of torch's class."""

    def __init__(self, n: int = 48) -> None:
        self.stream = Stream(n)

    def __len__(self) -> int:
        return len(self.stream)

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        for index in self.stream.share():
            await asyncio.sleep(0)
            yield self.stream.stamped[index]


DATASETS = {"map": Stamped, "async": AsyncStamped}


class Seen:
    """The samples that a process has got, and whether they are from where they should be."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.pids: set[int] = set()
        self.owners: set[int] = set()

    def add(self, batch: dict[str, Any]) -> None:
        self.indices += batch["index"].tolist()
        self.pids |= set(batch["pid"].tolist())
        self.owners |= set(batch["owner"].tolist())

    def report(self) -> dict[str, Any]:
        """`by_own_workers`: all are from workers that were forked from this process's own template."""
        return {
            "indices": self.indices,
            "workers": len(self.pids - {os.getpid()}),
            "by_own_workers": self.owners == {os.getpid()},
        }


@contextmanager
def without_torch_loader() -> Iterator[None]:
    """An iteration of torch's own loader fails, with workers and without."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("torch's own loader is being iterated")

    with patch.object(torch_loader, "_MultiProcessingDataLoaderIter", refuse):
        with patch.object(torch_loader, "_SingleProcessDataLoaderIter", refuse):
            yield


def save(report: dict[str, Any]) -> None:
    """What a rank has to say, for `launch`."""
    folder, rank = Path(sys.argv[1]), os.environ.get("RANK", "0")
    (folder / f"{rank}.json").write_text(json.dumps(report))
