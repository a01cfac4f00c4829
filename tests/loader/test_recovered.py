"""Workers die in the midst of everything, and nothing is lost: every batch comes, whole, once, in its place."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from aloader import DataLoader, WorkerLost, WorkerPool
from aloader.errors import WorkerWarning

from .dying import Async, AsyncStream, Fate, Mortal, Stream, Together, restarts, run, run_async
from .samples import Numbers, Stamped, as_list, check

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

N = 24
IN_ORDER = [[i, i + 1] for i in range(0, N, 2)]
#: Of two workers, each with its share.
SHARES = [[i + worker, i + worker + 2] for i in range(0, N, 4) for worker in (0, 1)]

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ordinary": (Mortal, {}),
    "together": (Together, {}),
    "async": (Async, {}),
    "threads": (Mortal, {"concurrency": 4}),
    "iterable": (Stream, {}),
    "async iterable": (AsyncStream, {}),
}


def in_place(kind: str, got: list[Any]) -> bool:
    return got == (SHARES if "iterable" in kind else IN_ORDER)


def all_there(kind: str, got: list[Any]) -> bool:
    return sorted(got) == sorted(SHARES if "iterable" in kind else IN_ORDER)


def test_every_kind_in_two_epochs_of_the_same_workers(tmp_path):
    with WorkerPool(2) as pool:
        for kind, (dataset, more) in KINDS.items():
            fate = Fate(tmp_path / kind, once=(5, 14))
            arguments = {"batch_size": 2, "num_workers": 2, "persistent_workers": True, "pool": pool, **more}
            loader = DataLoader(dataset(fate), **arguments)
            with restarts() as told:
                got = run(loader)
            assert in_place(kind, got), (kind, got)
            assert len(told) == fate.deaths > 0, (kind, told)
            fate.again(5)
            with restarts() as told:
                got = run(loader)
            assert in_place(kind, got), (kind, got)
            assert len(told) == 1, (kind, told)
            loader.close()


@pytest.mark.asyncio
async def test_every_kind_on_a_loop_as_the_batches_arrive(tmp_path):
    async with WorkerPool(2) as pool:
        for kind, (dataset, more) in KINDS.items():
            fate = Fate(tmp_path / kind, once=(0, 9, 22))
            arguments = {"batch_size": 2, "num_workers": 2, "pool": pool, "in_order": False, **more}
            async with DataLoader(dataset(fate), **arguments) as loader:
                with restarts() as told:
                    got = await run_async(loader)
            assert all_there(kind, got), (kind, got)
            assert len(told) == fate.deaths > 0, (kind, told)
