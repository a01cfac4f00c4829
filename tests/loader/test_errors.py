"""Faults: a clear error that names the sample or the worker, at its place; the batches after it can still be had."""

from __future__ import annotations

import signal
import time

import pytest

from aloader import DataLoader, SampleError, WorkerLost
from aloader.errors import WorkerTraceback

from .dying import restarts
from .samples import AsyncNumbers, Failing, Numbers, Stuck, TwoArguments, Unpicklable, as_list

pytestmark = pytest.mark.usefixtures("nothing_left")


def run(loader):
    """What iterating gives: batches, and errors in their places."""
    got, batches = [], iter(loader)
    while True:
        try:
            got.append(next(batches))
        except StopIteration:
            return got
        except Exception as error:
            got.append(error)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("value", ValueError, "bad sample"),
        ("two arguments", TwoArguments, "7: because"),
        ("os error", FileNotFoundError, "x.jpg"),
        ("key", KeyError, "name"),
        ("unpicklable", Unpicklable, "odd"),
        ("stop", SampleError, "StopIteration"),
        ("exit", SampleError, "SystemExit"),
        ("interrupt", SampleError, "KeyboardInterrupt"),
        ("batch", TypeError, "generator"),
    ],
)
def test_a_sample_that_fails(how, kind, text, workers):
    with DataLoader(Failing(how), batch_size=2, num_workers=workers, collate_fn=as_list) as loader:
        got = run(loader)
    error = got[2]
    assert isinstance(error, kind)
    assert text in str(error)
    assert got[:2] + got[3:] == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
    notes = "\n".join(error.__notes__)
    assert "DataLoader worker process" in notes
    assert "batch 2" in notes
    if how != "batch":
        assert "sample 5" in notes
    assert isinstance(error.__cause__, WorkerTraceback)
    assert "samples.py" in str(error.__cause__) or how == "batch"


def test_attributes_of_the_original_survive():
    with DataLoader(Failing("two arguments"), batch_size=2, num_workers=1) as loader:
        (error,) = [e for e in run(loader) if isinstance(e, Exception)]
    assert (error.code, error.why) == (7, "because")
    with DataLoader(Failing("os error"), batch_size=2, num_workers=1) as loader:
        (error,) = [e for e in run(loader) if isinstance(e, Exception)]
    assert (error.errno, error.filename) == (2, "x.jpg")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("how", "number", "code", "text"),
    [
        ("kill", signal.SIGKILL, 0, "SIGKILL"),
        ("segv", signal.SIGSEGV, 0, "SIGSEGV"),
        ("os._exit", 0, 7, "code 7"),
    ],
)
def test_a_worker_that_dies(how, number, code, text, workers):
    with DataLoader(Failing(how), batch_size=2, num_workers=workers, collate_fn=as_list) as loader, restarts() as told:
        got = run(loader)
    error = got[2]
    assert isinstance(error, WorkerLost)
    assert isinstance(error, RuntimeError)
    assert text in str(error)
    assert "sample 5" in str(error)
    assert (error.signal, error.exit_code, error.sample) == (number, code, 5)
    assert error.pid > 0
    assert len(told) == 3, "it has been tried three times, and nobody else dies of it"
    assert all(text in line for line in told)
    assert got[:2] + got[3:] == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]], "others were lost with it"


def test_workers_that_die_again_and_again_end_in_an_error_each():
    with DataLoader(AllDie(20), batch_size=2, num_workers=2) as loader, restarts() as told:
        got = run(loader)
    assert len(told) >= 3
    assert len(got) <= 10
    assert all(isinstance(error, WorkerLost) for error in got)
    assert len(got) >= 3


class AllDie(Numbers):
    def __getitem__(self, index):
        import os

        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_async_sample_that_fails(asynchronous):
    for workers in (0, 2):
        with DataLoader(AsyncFailing(12), batch_size=2, num_workers=workers) as loader:
            got = run(loader)
        assert isinstance(got[2], ValueError)
        assert "sample 5" in "\n".join(got[2].__notes__)
        assert [batch.tolist() for batch in got[:2] + got[3:]] == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]


class AsyncFailing(AsyncNumbers):
    async def __getitem__(self, index):
        if index == 5:
            raise ValueError("async")
        return index


@pytest.mark.parametrize("how", ["value", "stop", "key"])
def test_without_workers_the_sample_is_named_too(how):
    got = run(DataLoader(Failing(how), batch_size=2, collate_fn=as_list))
    assert isinstance(got[2], Exception)
    assert "sample 5" in "\n".join([str(got[2]), *getattr(got[2], "__notes__", [])])
    assert got[3] == [6, 7]


@pytest.mark.asyncio
async def test_errors_are_raised_from_anext_and_the_next_batch_follows():
    async with DataLoader(Failing("value"), batch_size=2, num_workers=2, collate_fn=as_list) as loader:
        batches = aiter(loader)
        assert [await anext(batches) for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(ValueError, match="bad sample"):
            await anext(batches)
        assert await anext(batches) == [6, 7]


@pytest.mark.parametrize("workers", [1, 2])
def test_setting_up_that_fails_is_the_answer_to_every_batch(workers):
    def init(worker):
        raise LookupError("no such device")

    with DataLoader(Numbers(4), batch_size=2, num_workers=workers, worker_init_fn=init) as loader:
        got = run(loader)
    assert [type(error) for error in got] == [LookupError] * 2


def test_a_dataset_that_cannot_be_loaded_there_says_why():
    with DataLoader(Unloadable(4), batch_size=2, num_workers=2) as loader:
        got = run(loader)
    assert [type(error) for error in got] == [ImportError] * 2
    assert "not here" in str(got[0])


class Unloadable(Numbers):
    def __reduce__(self):
        return _unload, ()


def _unload():
    raise ImportError("not here")


def test_a_dataset_that_cannot_be_pickled_names_the_attribute():
    data = Numbers(4)
    data.handle = (i for i in range(3))
    with DataLoader(data, num_workers=1) as loader, pytest.raises(TypeError, match="handle"):
        iter(loader)


@pytest.mark.parametrize("gil", [False, True])
def test_a_late_batch_is_named_and_can_be_waited_for_again(gil):
    loader = DataLoader(Stuck(gil), num_workers=2, timeout=0.3)
    batches = iter(loader)
    assert [int(next(batches)) for _ in range(5)] == list(range(5))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.3 seconds.*sample 5 of batch 5"):
            next(batches)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 5


@pytest.mark.asyncio
async def test_a_late_batch_async():
    async with DataLoader(Stuck(False), num_workers=1, timeout=0.3) as loader:
        batches = aiter(loader)
        for _ in range(5):
            await anext(batches)
        with pytest.raises(RuntimeError, match="timed out"):
            await anext(batches)


def test_a_sampler_that_fails_is_raised_after_what_it_gave():
    def sampler():
        yield 1
        yield 2
        raise LookupError("no more")

    with DataLoader(Numbers(10), sampler=Once(sampler), batch_size=1, num_workers=1) as loader:
        got = run_until_error(loader)
    assert [int(x) for x in got[:2]] == [1, 2]
    assert isinstance(got[2], LookupError)


class Once:
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()


def run_until_error(loader):
    got = []
    try:
        for batch in loader:
            got.append(batch)
    except Exception as error:
        got.append(error)
    return got


def test_indices_that_cannot_be_sent_fail_at_their_place():
    with DataLoader(Numbers(10), sampler=[1, (i for i in range(2)), 3], batch_size=1, num_workers=1) as loader:
        got = run(loader)
    assert [type(x).__name__ for x in got] == ["Tensor", "TypeError", "Tensor"]
