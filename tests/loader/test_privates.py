"""Private names of torch's iterators, used as torch's own tests and frameworks use them, with either loader."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
import torch

from aloader import DataLoader, WorkerWarning

from .samples import Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


class Pids(Numbers):
    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_workers_are_listed_by_slot_with_their_pids_at_once():
    with DataLoader(Pids(4), batch_size=None, num_workers=2) as loader:
        batches = iter(loader)
        workers = batches._workers
        assert [w.pid for w in workers] == [next(batches), next(batches)]
        assert all(w.is_alive() and w.exitcode is None and w.daemon for w in workers)
        assert len({w.name for w in workers}) == 2
        assert psutil.pid_exists(workers[0].pid)


def test_after_the_epoch_they_can_still_be_asked_for_and_have_exited():
    with DataLoader(Pids(4), batch_size=None, num_workers=2) as loader:
        batches = iter(loader)
        alive = batches._workers
        pids = list(batches)
        assert [w.pid for w in batches._workers] == pids[:2]
        for worker in (*alive, *batches._workers):
            worker.join(5)
            assert not worker.is_alive()
            assert worker.exitcode == 0


def test_when_iterator_and_loader_have_been_dropped_they_have_gone():
    loader = DataLoader(Pids(4), batch_size=None, num_workers=2)
    batches = iter(loader)
    workers = batches._workers
    list(batches)
    del batches, loader
    for worker in workers:
        worker.join(5)
        assert not worker.is_alive()
        assert worker.exitcode == 0


@pytest.mark.parametrize(("end", "number"), [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)])
def test_one_can_be_ended(end, number):
    with DataLoader(Pids(40), batch_size=None, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        (worker,) = batches._workers
        getattr(worker, end)()
        worker.join(5)
        assert worker.exitcode == -number
        with pytest.warns(WorkerWarning, match=signal.Signals(number).name):
            assert len(list(batches)) == 39
        getattr(worker, end)()  # of no effect any more
        (replacement,) = batches._workers
        assert replacement.pid != worker.pid


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, DataLoader])
def test_kept_workers_are_shut_down_as_frameworks_do_it(kind):
    loader = kind(Pids(2), batch_size=None, num_workers=1, persistent_workers=True)
    first = set(map(int, loader))
    assert {w.pid for w in loader._iterator._workers} == first
    loader._iterator._shutdown_workers()
    assert not psutil.pid_exists(first.pop())
    loader._iterator = None
    second = set(map(int, loader))
    assert len(second) == 1
    assert second != first
    loader._iterator._shutdown_workers()
    assert loader._auto_collation is False


@pytest.mark.asyncio
async def test_with_async_for_those_are_listed_that_are_ready():
    async with DataLoader(Pids(4), batch_size=None, num_workers=2) as loader:
        batches = aiter(loader)
        pids = [await anext(batches), await anext(batches)]
        workers = batches._workers
        assert [w.pid for w in workers] == pids
        batches._shutdown_workers()
        for worker in workers:
            worker.join(5)
            assert not worker.is_alive()
    async with DataLoader(Pids(1), batch_size=None) as loader:
        assert not hasattr(aiter(loader), "_workers")
