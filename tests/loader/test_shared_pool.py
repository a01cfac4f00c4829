"""Loaders that share a pool: each gets its own batches, and all together no more processes than there are seats."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time

import pytest

from aloader import DataLoader, LoaderClosed, WorkerLost, WorkerPool

from .dying import restarts
from .samples import AsyncNumbers, Numbers
from .streams import Counting

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Made(Numbers):
    """Sample i is i, and the process that made it."""

    def __init__(self, n: int, base: int = 0) -> None:
        super().__init__(n)
        self.base = base

    def __getitem__(self, index: int) -> tuple[int, int]:  # type: ignore[override]
        return self.base + index, os.getpid()


class Deadly(Numbers):
    """Sample 3 kills its worker."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


async def gathered(loader):
    numbers, pids = [], set()
    async for batch, made_by in loader:
        numbers += batch.tolist()
        pids |= set(made_by.tolist())
    return numbers, pids


@pytest.mark.asyncio
async def test_many_loaders_at_once_on_few_processes_of_one_template(children):
    most = 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, pool.seats.taken)
            await asyncio.sleep(0.005)  # sleep: how many there are is looked at again and again

    before = children()
    async with WorkerPool(2) as pool:
        loaders = [DataLoader(Made(40, 100 * k), batch_size=8, pool=pool) for k in range(6)]
        watcher = asyncio.create_task(watch())
        got = await asyncio.gather(*(gathered(loader) for loader in loaders))
        watcher.cancel()
        templates = children() - before
    assert [numbers for numbers, _ in got] == [[100 * k + i for i in range(40)] for k in range(6)]
    assert all(len(pids) == 1 for _, pids in got), "six loaders on two processes have one each"
    assert most == 2
    assert len(templates) == 1
    assert not any(template.is_running() for template in templates)


def test_alone_a_loader_has_the_whole_pool_and_beside_others_its_share():
    with WorkerPool(4) as pool:
        loader = DataLoader(Made(80), batch_size=2, pool=pool)
        assert loader.num_workers == 4
        iterator = iter(loader)
        assert next(iterator)[0].tolist() == [0, 1]
        assert loader.stats().workers == 4
        del iterator
        other = DataLoader(Made(8), batch_size=2, pool=pool, num_workers=3)
        iterator = iter(loader)
        assert next(iterator)[0].tolist() == [0, 1]
        assert loader.stats().workers == 2
        del iterator
        assert len(list(other)) == 4
        assert other.stats().workers == 3


def test_iterators_taken_in_turns_do_not_wait_for_each_other_for_ever():
    with WorkerPool(1) as pool:
        loaders = [DataLoader(Numbers(60), batch_size=2, pool=pool, num_workers=2) for _ in range(2)]
        for _ in range(2):
            assert [(int(a[0]), int(b[0])) for a, b in zip(*loaders, strict=True)] == [(i, i) for i in range(0, 60, 2)]


def test_workers_that_were_not_started_yet_leave_their_seats_when_their_loader_is_dropped():
    with WorkerPool(2) as pool:
        dropped = iter(DataLoader(Numbers(60), batch_size=2, pool=pool, num_workers=2))  # its job is being loaded
        del dropped
        assert len(list(DataLoader(Numbers(60), batch_size=2, pool=pool, num_workers=1))) == 30


@pytest.mark.asyncio
async def test_the_same_on_a_loop():
    async with WorkerPool(1) as pool:
        iterators = [aiter(DataLoader(Numbers(60), batch_size=2, pool=pool, num_workers=2)) for _ in range(2)]
        for i in range(0, 60, 2):
            assert [int((await anext(iterator))[0]) for iterator in iterators] == [i, i]


def test_kept_workers_and_kinds_of_datasets_side_by_side():
    with WorkerPool(3) as pool:
        kept = DataLoader(Made(24), batch_size=4, pool=pool, num_workers=1, persistent_workers=True)
        streamed = DataLoader(Counting(24), batch_size=4, pool=pool, num_workers=2)
        fetched = DataLoader(AsyncNumbers(24), batch_size=4, pool=pool, num_workers=2)
        pids = set()
        for _ in range(3):
            for _, made_by in kept:
                pids |= set(made_by.tolist())
            assert sorted(int(i) for batch in streamed for i in batch) == list(range(24))
            assert [int(i) for batch in fetched for i in batch] == list(range(24))
        assert len(pids) == 1


def test_a_changed_dataset_is_seen_though_others_came_between():
    with WorkerPool(2) as pool:
        first, second = Made(4), Made(4, 100)
        loaders = [DataLoader(dataset, batch_size=4, pool=pool) for dataset in (first, second)]
        assert [next(iter(loader))[0].tolist()[0] for loader in loaders] == [0, 100]
        first.base = 50
        assert [next(iter(loader))[0].tolist()[0] for loader in loaders] == [50, 100]


def test_a_closed_loader_leaves_the_pool_to_others():
    with WorkerPool(2) as pool:
        first = DataLoader(Numbers(400), batch_size=2, pool=pool, num_workers=2, persistent_workers=True)
        second = DataLoader(Numbers(8), batch_size=2, pool=pool, num_workers=2)
        iterator = iter(first)
        next(iterator)
        first.close()
        with pytest.raises(LoaderClosed):
            next(iterator)
        assert len(list(second)) == 4
        with pytest.raises(LoaderClosed):
            iter(first)


def test_a_lost_worker_is_its_loaders_loss_alone():
    with WorkerPool(2) as pool:
        deadly = DataLoader(Deadly(8), batch_size=2, pool=pool, num_workers=1)
        healthy = DataLoader(Numbers(60), batch_size=2, pool=pool, num_workers=1)
        iterator = iter(healthy)
        assert int(next(iterator)[0]) == 0
        with restarts() as told, pytest.raises(WorkerLost):
            list(deadly)
        assert len(told) == 3
        assert [int(batch[0]) for batch in iterator] == list(range(2, 60, 2))


@pytest.mark.asyncio
async def test_closing_the_pool_wakes_whoever_waits():
    pool = WorkerPool(1)
    loader = DataLoader(Made(8), batch_size=2, pool=pool, collate_fn=_wait)
    iterator = aiter(loader)
    waiting = asyncio.create_task(anext(iterator))
    async with asyncio.timeout(20):
        await loader.start()
        await asyncio.sleep(0.2)  # sleep: the consumer waits, and the worker is on its way
        await pool.aclose()
        with pytest.raises(LoaderClosed):
            await waiting
    with pytest.raises(LoaderClosed, match="pool"):
        aiter(loader)


def _wait(samples):
    time.sleep(30)  # sleep: longer than anybody is patient


def test_what_cannot_be_a_pool_is_said_at_once():
    with pytest.raises(TypeError, match=r"pool option should be an aloader\.WorkerPool"):
        DataLoader(Numbers(), pool=4)
    with pytest.raises(ValueError, match="multiprocessing_context option and pool option"):
        DataLoader(Numbers(), pool=WorkerPool(1), multiprocessing_context="fork", num_workers=1)
    with pytest.raises(TypeError, match="WorkerPool belongs to its process"):
        pickle.dumps(WorkerPool(1))


def test_a_pool_may_start_its_processes_as_torch_does():
    with WorkerPool(2, multiprocessing_context="fork") as pool:
        loaders = [DataLoader(Numbers(8), batch_size=2, pool=pool) for _ in range(2)]
        assert [[int(batch[0]) for batch in loader] for loader in loaders] == [[0, 2, 4, 6]] * 2
