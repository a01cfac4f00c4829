"""A batch that does not come in time: the error names it, its samples and its worker, and says where that is stuck."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time

import pytest

from aloader import DataLoader, LoaderError, LoaderTimeout

from .samples import AsyncNumbers, Numbers, Stuck

pytestmark = pytest.mark.usefixtures("nothing_left")


def late(loader):
    """The error that iterating ends with."""
    with pytest.raises(LoaderTimeout) as caught:
        for _ in loader:
            pass
    loader.close()
    return caught.value


def line_of(text, function):
    """`File …, line n, in f` of the first line that has this text in a function of this file."""
    lines, first = function.__code__.co_filename, function.__code__.co_firstlineno
    with open(lines) as file:
        numbered = list(enumerate(file, 1))
    number = next(n for n, line in numbered if n >= first and text in line)
    return f'File "{lines}", line {number}, in {function.__name__}'


class Nested(Numbers):
    """Sample 5 never comes: it sleeps in a function that `__getitem__` calls."""

    def __getitem__(self, index):
        return self.read(index)

    def read(self, index):
        if index == 5:
            time.sleep(60)  # sleep: a sample that never comes
        return index


@pytest.mark.slow
@pytest.mark.parametrize("context", [None, "fork"])
def test_the_stack_of_a_stuck_worker_is_told(context):
    error = late(DataLoader(Nested(), batch_size=2, num_workers=2, timeout=0.5, multiprocessing_context=context))
    assert isinstance(error, RuntimeError)
    assert isinstance(error, LoaderError)
    assert isinstance(error, TimeoutError)
    assert (error.worker, error.indices) == (0, [4, 5])
    inner, outer = line_of("time.sleep(60)", Nested.read), line_of("return self.read", Nested.__getitem__)
    assert error.stack.splitlines()[0] == "Worker 0 (most recent call last):"
    assert [line.strip() for line in error.stack.splitlines()[1::2]] == [outer, inner], "no others"
    assert "time.sleep(60)" in error.stack.splitlines()[-1]
    assert str(error).startswith("DataLoader timed out after 0.5 seconds; batch 2 is waited for: samples 4, 5; ")
    assert str(error).endswith(error.stack)


@pytest.mark.slow
def test_a_call_that_keeps_the_interpreters_lock_is_told():
    error = late(DataLoader(Stuck(True), num_workers=1, timeout=0.3))
    assert line_of("pythonapi.sleep", Stuck.__getitem__) in error.stack


@pytest.mark.slow
def test_a_batch_can_be_waited_for_after_its_worker_was_asked():
    loader = DataLoader(Slow(), num_workers=1, timeout=0.4)
    got, errors = [], []
    batches = iter(loader)
    while len(got) < 4:
        try:
            got.append(int(next(batches)))
        except LoaderTimeout as error:
            errors.append(error.stack)
    loader.close()
    assert got == [0, 1, 2, 3]
    assert len(errors) >= 2
    assert all(line_of("time.sleep(1.5)", Slow.__getitem__) in stack for stack in errors)


class Slow(Numbers):
    def __getitem__(self, index):
        if index == 2:
            time.sleep(1.5)
        return index


class Waiting(AsyncNumbers):
    """Samples from 5 on wait for something that never comes, in a task that `__getitem__` waits for."""

    async def never(self):
        await asyncio.gather(asyncio.sleep(0), asyncio.Event().wait())

    async def __getitem__(self, index):
        if index >= 5:
            async with asyncio.timeout(None):
                await asyncio.create_task(self.never())
        return index


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_tasks_of_an_async_dataset_are_told_once_for_each_place(workers):
    error = late(DataLoader(Waiting(40), batch_size=4, num_workers=workers, timeout=0.4))
    assert (error.worker, error.indices) == (1 if workers else 0, [4, 5, 6, 7])
    head, *lines = error.stack.splitlines()
    assert head == f"Worker {error.worker}, samples 5, 6, 7 (most recent call last):"
    outer, inner = line_of("create_task", Waiting.__getitem__), line_of("gather", Waiting.never)
    assert [line.strip() for line in lines[::2]] == [outer, inner]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_asking_does_not_hold_the_users_loop_up():
    async with DataLoader(Waiting(40), batch_size=4, num_workers=1, timeout=0.4) as loader:
        ticks, batches = [], aiter(loader)
        await anext(batches)

        async def tick():
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        with pytest.raises(LoaderTimeout, match="in never"):
            await anext(batches)
        ticking.cancel()
    gaps = [later - earlier for earlier, later in itertools.pairwise(ticks)]
    assert max(gaps) < 0.5, "ten times the 50 ms that are promised"


@pytest.mark.slow
def test_samples_that_have_not_begun_are_told_apart():
    loader = DataLoader(Waiting(40), batch_sampler=[range(8), range(8, 16)], num_workers=1, concurrency=2, timeout=0.4)
    error = late(loader)
    assert error.indices == list(range(8))
    begun, waiting = (line for line in error.stack.splitlines() if line.startswith("Worker 0"))
    assert begun == "Worker 0, samples 5, 6 (most recent call last):"
    assert waiting.startswith("Worker 0, sample 7: not begun")


class Opening(AsyncNumbers):
    async def __aenter__(self):
        await asyncio.Event().wait()

    async def __aexit__(self, *exc):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_never_opens_is_told(workers, monkeypatch):
    monkeypatch.setattr("aloader.options.STARTING_GRACE", 10.0)
    error = late(DataLoader(Opening(40), batch_size=4, num_workers=workers, timeout=0.2))
    assert line_of("Event().wait()", Opening.__aenter__) in error.stack


class Locked(Numbers):
    def __getitem__(self, index):
        if index == 5:
            threading.Event().wait()
        return index


@pytest.mark.slow
def test_threads_are_told():
    error = late(DataLoader(Locked(40), batch_size=4, num_workers=1, concurrency=4, timeout=0.4))
    assert error.indices == [4, 5, 6, 7]
    assert [line.strip() for line in error.stack.splitlines()[1::2]] == [line_of("Event().wait()", Locked.__getitem__)]


def stuck_collating(samples):
    if 4 in samples:
        time.sleep(1)  # sleep: collating that is late (and ends: without workers, its thread cannot be killed)
    return samples


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [Numbers(40), AsyncNumbers(40)])
def test_collating_is_told(dataset):
    workers = 1 if type(dataset) is Numbers else 0
    error = late(DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=stuck_collating, timeout=0.4))
    assert line_of("time.sleep(", stuck_collating) in error.stack


class Stopped(Numbers):
    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        return index


@pytest.mark.slow
def test_a_worker_that_is_stopped_does_not_answer_and_goes_on_when_it_is_let():
    loader = DataLoader(Stopped(12), batch_size=2, num_workers=1, timeout=0.4)
    batches, got = iter(loader), []
    for _ in range(2):
        got.append(next(batches))
    for _ in range(2):
        with pytest.raises(LoaderTimeout) as caught:
            next(batches)
        assert "does not answer: it is stopped" in caught.value.stack
    pid = int(caught.value.stack.split("kill -CONT ")[1].split("`")[0])
    os.kill(pid, signal.SIGCONT)
    got += list(batches)
    loader.close()
    assert [batch.tolist() for batch in got] == [[i, i + 1] for i in range(0, 12, 2)]


@pytest.mark.slow
def test_an_unbatched_sample_and_a_batch_that_is_fetched_at_once():
    error = late(DataLoader(Nested(), batch_size=None, num_workers=1, timeout=0.4))
    assert error.indices == [5]
    error = late(DataLoader(Together(40), batch_size=4, num_workers=1, timeout=0.4))
    assert error.indices == [4, 5, 6, 7]
    assert line_of("time.sleep(60)", Together.__getitems__) in error.stack


class Together(Numbers):
    def __getitems__(self, indices):
        if 5 in indices:
            time.sleep(60)
        return indices


@pytest.mark.slow
def test_without_order_the_lowest_batch_that_a_worker_holds_is_told():
    error = late(DataLoader(Nested(8), batch_size=2, num_workers=2, in_order=False, timeout=0.5))
    assert error.indices == [4, 5]
    assert "in read" in error.stack
