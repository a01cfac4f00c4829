"""`sample_timeout`: a sample that takes too long fails in its batch's place, and says where it was stuck."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
import time

import pytest

from aloader import DataLoader, LoaderTimeout, SampleTimeout, WorkerWarning

from .samples import AsyncNumbers, Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


def outcomes(loader):
    """What iterating gives: batches as lists, and errors in their places. Closes the loader."""
    got, batches = [], iter(loader)
    while True:
        try:
            got.append(next(batches).tolist())
        except StopIteration:
            break
        except SampleTimeout as error:
            got.append(error)
    loader.close()
    return got


class Never(AsyncNumbers):
    """Sample 5 never comes."""

    async def __getitem__(self, index):
        if index == 5:
            await asyncio.Event().wait()
        return index


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_async_sample_that_never_comes_fails_in_its_place(workers):
    got = outcomes(DataLoader(Never(12), batch_size=2, num_workers=workers, sample_timeout=0.2))
    error = got.pop(2)
    assert got == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
    assert (error.index, error.batch, error.worker) == (5, 2, 0 if workers else -1)
    assert "await asyncio.Event().wait()" in error.stack
    assert str(error).startswith("sample 5 has taken longer than 0.2 s, its sample_timeout.\n")
    assert error.stack in str(error)
    assert "while fetching sample 5 of batch 2" in "".join(error.__notes__)


class Locked(Numbers):
    """Two samples of each batch are stuck in a lock."""

    def __getitem__(self, index):
        if index % 4 < 2:
            threading.Event().wait()
        return index


@pytest.mark.slow
def test_threads_that_are_stuck_are_replaced():
    got = outcomes(DataLoader(Locked(24), batch_size=4, num_workers=1, concurrency=2, sample_timeout=0.1))
    assert [error.index for error in got] == [0, 4, 8, 12, 16, 20]
    assert all("threading.Event().wait()" in error.stack for error in got)


class Reading:
    """An async iterator whose third sample does not come at first."""

    def __init__(self, n):
        self.n = n

    def __aiter__(self):
        self.at, self.waited = -1, False
        return self

    async def __anext__(self):
        if self.at + 1 == 2 and not self.waited:
            self.waited = True
            await asyncio.Event().wait()
        self.at += 1
        if self.at == self.n:
            raise StopAsyncIteration
        return self.at


@pytest.mark.slow
def test_what_is_read_asynchronously_is_timed_too():
    got = outcomes(DataLoader(Reading(6), batch_size=2, sample_timeout=0.2))
    error = got.pop(1)
    assert got == [[0, 1], [2, 3], [4, 5]]
    assert error.batch == 1
    assert "in __anext__" in error.stack


def once(path):
    """Whether this is the first time in the test, in whichever process."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


WAYS = {
    5: lambda: time.sleep(60),  # sleep: a sample that never comes
    12: lambda: [ctypes.pythonapi.sleep(60) for _ in range(9)],  # sleep: keeps the GIL; a signal ends one of them
    18: lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


class StuckOnce(Numbers):
    """Some samples are stuck, each in its way, the first time that they are fetched; or always."""

    def __init__(self, n, flags=None):
        super().__init__(n)
        self.flags = flags

    def __getitem__(self, index):
        if index in WAYS and (self.flags is None or once(self.flags / str(index))):
            WAYS[index]()
        return index


@pytest.mark.slow
def test_a_worker_that_is_stuck_is_replaced_and_the_sample_tried_again(tmp_path):
    loader = DataLoader(StuckOnce(24, tmp_path), batch_size=2, num_workers=2, sample_timeout=0.3)
    with pytest.warns(WorkerWarning, match="has taken longer than 0.3 s, its sample_timeout") as warned:
        got = outcomes(loader)
    assert got == [[i, i + 1] for i in range(0, 24, 2)]
    texts = [str(warning.message) for warning in warned]
    assert [index for index in WAYS if any(text.startswith(f"sample {index} (batch") for text in texts)] == [5, 12, 18]
    assert any("in __getitem__" in text for text in texts)
    assert any("does not answer: it is stopped" in text for text in texts)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore::aloader.WorkerWarning")
async def test_a_sample_that_is_stuck_again_fails_in_its_place():
    got = []
    async with DataLoader(StuckOnce(12), batch_size=2, num_workers=2, sample_timeout=0.3) as loader:
        batches = aiter(loader)
        while True:
            try:
                got.append((await anext(batches)).tolist())
            except StopAsyncIteration:
                break
            except SampleTimeout as error:
                got.append(error)
    error = got.pop(2)
    assert got == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
    assert (error.index, error.batch) == (5, 2)
    assert "time.sleep(60)" in error.stack


class StuckTogether(Numbers):
    """A call for sample 5 and others never returns."""

    def __getitems__(self, indices):
        if 5 in indices:
            threading.Event().wait()
        return indices


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::aloader.WorkerWarning")
def test_a_call_for_many_that_is_stuck_costs_nobody_else_anything():
    loader = DataLoader(StuckTogether(12), batch_size=4, num_workers=1, sample_timeout=0.1)
    assert outcomes(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], "one by one it can be had"


@pytest.mark.slow
def test_a_worker_that_is_late_can_be_restarted_by_hand(tmp_path):
    loader = DataLoader(StuckOnce(12, tmp_path), batch_size=2, num_workers=2, timeout=0.3)
    batches, got = iter(loader), []
    got += [next(batches).tolist() for _ in range(2)]
    with pytest.raises(LoaderTimeout) as caught:
        next(batches)
    loader.restart_worker(caught.value.worker)
    with pytest.warns(WorkerWarning, match="was ended by restart_worker"):
        got += [batch.tolist() for batch in batches]
    assert got == [[i, i + 1] for i in range(0, 12, 2)]
    with pytest.raises(ValueError, match="number of a worker that is at work, but got worker=5"):
        loader.restart_worker(5)
    loader.close()
