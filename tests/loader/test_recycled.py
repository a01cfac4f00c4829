"""`max_batches_per_worker`: processes are replaced after so many batches, and nobody sees it in the batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from aloader import DataLoader, WorkerPool

from .draws import AsyncDrawing, drawn
from .dying import AsyncStream, Fate, Stream, restarts, run_async
from .samples import AsyncNumbers, Numbers, as_list

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

N = 14


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


class Made(Numbers):
    """A sample is who made it, and what was drawn for it."""

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return os.getpid(), index, drawn()


class AsyncMade(AsyncNumbers):
    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return os.getpid(), index


class MadeStream(Stream):
    """The same of an iterable dataset."""

    def given(self, number: int) -> Any:
        return os.getpid(), number, drawn()


def lives(batches: list[Any]) -> list[int]:
    """How many batches each process has made, one after the other."""
    pids = [batch[0][0] for batch in batches]
    assert all(sample[0] == pid for batch, pid in zip(batches, pids, strict=True) for sample in batch)
    order = list(dict.fromkeys(pids))
    assert pids == sorted(pids, key=order.index), "who has gone does not come back"
    return [pids.count(pid) for pid in order]


def without_pids(batches: list[Any]) -> list[Any]:
    return [[sample[1:] for sample in batch] for batch in batches]


def made(dataset: Any, pool: WorkerPool | None, epochs: int = 1, **more: Any) -> list[Any]:
    """The batches of one worker, which is not told of."""
    torch.manual_seed(3)
    arguments = {"num_workers": 1, "collate_fn": as_list, "pool": pool}
    with DataLoader(dataset, 2, **arguments, **more) as loader, restarts() as told:
        batches = [batch for _ in range(epochs) for batch in loader]
    assert told == []
    return batches


def test_one_takes_over_from_another_with_its_generators(pool):
    whole = made(Made(N), pool)
    assert lives(whole) == [7]
    for most, expected in ((1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (100, [7])):
        batches = made(Made(N), pool, max_batches_per_worker=most)
        assert lives(batches) == expected
        assert without_pids(batches) == without_pids(whole)


def test_lives_go_on_from_epoch_to_epoch(pool):
    whole = made(Made(N), pool, 3, persistent_workers=True)
    batches = made(Made(N), pool, 3, persistent_workers=True, max_batches_per_worker=4)
    assert lives(batches) == [4, 4, 4, 4, 4, 1]
    assert without_pids(batches) == without_pids(whole)


def test_a_reader_goes_on_where_the_one_before_was(pool, tmp_path):
    fate = Fate(tmp_path / "nobody")
    whole = made(MadeStream(fate, N), pool)
    batches = made(MadeStream(fate, N), pool, max_batches_per_worker=3)
    assert lives(batches) == [3, 3, 1]
    assert without_pids(batches) == without_pids(whole)


@pytest.mark.asyncio
async def test_on_a_loop(pool, tmp_path):
    arguments = {"num_workers": 2, "pool": pool, "max_batches_per_worker": 2, "collate_fn": as_list}
    async with DataLoader(AsyncMade(2 * N), 2, **arguments) as loader:
        batches = await run_async(loader)
    assert [sample[1] for batch in batches for sample in batch] == list(range(2 * N))
    assert [lives(batches[slot::2]) for slot in (0, 1)] == [[2, 2, 2, 1]] * 2
    arguments |= {"in_order": False}
    async with DataLoader(AsyncStream(Fate(tmp_path / "nobody"), N), 2, **arguments) as loader:
        batches = await run_async(loader)
    assert sorted(sample for batch in batches for sample in batch) == list(range(N))


def test_samples_of_an_async_dataset_have_the_same_generators(pool):
    whole = made(AsyncDrawing(N), pool)
    assert made(AsyncDrawing(N), pool, max_batches_per_worker=2) == whole


@pytest.mark.usefixtures("nothing_left")
def test_with_processes_that_are_made_ready_ahead_of_their_time():
    whole = made(Made(N), None)
    batches = made(Made(N), None, 2, persistent_workers=True, max_batches_per_worker=3)
    assert lives(batches) == [3, 3, 3, 3, 2]
    assert without_pids(batches)[:7] == without_pids(whole)


def test_where_there_are_no_processes_it_says_nothing():
    for dataset in (Numbers(N), AsyncNumbers(N)):
        loader = DataLoader(dataset, 2, max_batches_per_worker=1)
        assert [index for batch in loader for index in batch.tolist()] == list(range(N))
