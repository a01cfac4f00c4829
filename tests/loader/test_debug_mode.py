"""`ALOADER_DEBUG=1`: the batches of workers, made in the caller's own thread; and `replay`, one sample of them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import traceback

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler, get_worker_info

from aloader import DataLoader, LoaderClosed

from .samples import AsyncNumbers, Failing, Numbers, Opened, TwoArguments, as_list

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def debug(monkeypatch):
    monkeypatch.setenv("ALOADER_DEBUG", "1")


class Augmented(Numbers):
    """A sample draws from every global generator, and says who drew; it counts what this copy of it has given."""

    given = 0

    def __getitem__(self, index):
        self.given += 1
        info = get_worker_info()
        who = (info.id, info.num_workers, info.seed, info.dataset is self) if info else None
        return index, random.random(), np.random.rand(), torch.rand(2), str((who, self.given, torch.get_num_threads()))


class Moody(Sampler):
    """Draws from the global generator, one index at a time."""

    def __len__(self):
        return 12

    def __iter__(self):
        for _ in range(12):
            yield int(torch.randint(0, 100, ()))


def init(worker):
    random.seed(worker + 100)
    assert get_worker_info().id == worker


def epochs(monkeypatch, on, number=2, **arguments):
    """Every batch of some epochs, and the states of the program's generators after each of them."""
    monkeypatch.setenv("ALOADER_DEBUG", "1" if on else "0")
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    seen = []
    with DataLoader(Augmented(20), **arguments) as loader:
        for _ in range(number):
            for batch in loader:
                seen.append((batch, random.random(), np.random.rand(), torch.rand(1)))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 3, "shuffle": True, "num_workers": 2},
        {"batch_size": 3, "shuffle": True, "num_workers": 2, "persistent_workers": True, "worker_init_fn": init},
        {"batch_size": 2, "sampler": Moody(), "num_workers": 2},
        {"batch_size": None, "num_workers": 2},
        {"batch_size": 4, "shuffle": True, "num_workers": 0},
    ],
)
def test_the_batches_are_those_of_workers(monkeypatch, arguments):
    with_workers = epochs(monkeypatch, False, **arguments)
    inline = epochs(monkeypatch, True, **arguments)
    assert repr(inline) == repr(with_workers)
    assert len({str(batch[-1]) for batch, *_ in inline}) > 1 or not arguments["num_workers"]


def test_everything_happens_here(debug):
    class Here(Numbers):
        def __getitem__(self, index):
            return os.getpid(), threading.get_ident()

    here = (os.getpid(), threading.get_ident())
    with DataLoader(Here(4), num_workers=2, batch_size=2, collate_fn=as_list) as loader:
        assert list(loader) == [[here, here]] * 2
    assert get_worker_info() is None


@pytest.mark.asyncio
async def test_async_for_is_here_too(debug):
    class Here(Numbers):
        def __getitem__(self, index):
            return threading.get_ident()

    for workers in (0, 2):
        async with DataLoader(Here(4), num_workers=workers, batch_size=2, collate_fn=as_list) as loader:
            assert [batch async for batch in loader] == [[threading.get_ident()] * 2] * 2


def test_it_is_said_once(debug, caplog):
    with caplog.at_level(logging.WARNING), DataLoader(Numbers(4), num_workers=2) as loader:
        for _ in range(2):
            assert len(list(loader)) == 4
    assert ["ALOADER_DEBUG is set" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_the_original_in_its_place(debug, workers):
    loader = DataLoader(Failing("two arguments"), batch_size=2, num_workers=workers, collate_fn=as_list)
    batches, got = iter(loader), []
    for _ in range(2):
        got.append(next(batches))
    with pytest.raises(TwoArguments) as caught:
        next(batches)
    assert "loader.replay(5)" in caught.value.__notes__[0]
    assert caught.value.__cause__ is None
    assert "_raise" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert got + list(batches) == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize("how", ["stop", "key"])
def test_what_would_end_the_epoch_does_not(debug, how):
    batches = iter(DataLoader(Failing(how), batch_size=2, num_workers=2, collate_fn=as_list))
    for _ in range(2):
        next(batches)
    with pytest.raises((RuntimeError, KeyError)):
        next(batches)
    assert next(batches) == [6, 7]


def test_an_init_function_that_fails_is_the_answer_to_every_batch(debug):
    def fails(worker):
        if worker == 1:
            raise LookupError("no such device")

    batches = iter(DataLoader(Numbers(8), batch_size=2, num_workers=2, worker_init_fn=fails))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(LookupError, match="no such device"):
        next(batches)
    assert next(batches).tolist() == [4, 5]


def test_each_worker_has_a_copy_with_the_same_code(debug):
    class Counting(Numbers):
        seen = 0

        def __init__(self, n):
            super().__init__(n)
            self.array = np.arange(100_000)
            self.transform = lambda index: index + 1
            self.how = type(self)

        def __getitem__(self, index):
            assert type(self) is self.how is Counting
            self.seen += 1
            self.array[0] += 1
            return self.transform(index), self.seen, int(self.array[0])

    dataset = Counting(6)
    got = list(DataLoader(dataset, batch_size=None, num_workers=2))
    assert got == [[1, 1, 1], [2, 1, 1], [3, 2, 2], [4, 2, 2], [5, 3, 3], [6, 3, 3]]
    assert (dataset.seen, int(dataset.array[0])) == (0, 0)


def test_a_dataset_that_cannot_be_copied_is_said(debug, caplog):
    dataset = Numbers(4)
    dataset.handle = (i for i in range(3))
    with pytest.raises(TypeError, match="handle"):
        iter(DataLoader(dataset, num_workers=2))
    with caplog.at_level(logging.WARNING):
        assert len(list(DataLoader(dataset, num_workers=2, multiprocessing_context="fork"))) == 4
    assert "share one dataset" in caplog.text
    assert "handle" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_async_datasets_are_awaited_one_sample_at_a_time(debug, workers):
    with DataLoader(Opened(8), batch_size=4, num_workers=workers) as loader:
        for _ in range(2):
            index, opened, most = zip(*[[t.tolist() for t in batch] for batch in loader], strict=True)
            assert [*index[0], *index[1]] == list(range(8))
            assert {*opened[0], *most[0]} == {os.getpid(), 1}


@pytest.mark.asyncio
@pytest.mark.parametrize("workers", [0, 2])
async def test_async_datasets_are_awaited_on_the_running_loop(debug, workers):
    entered = []

    class Here(Opened):
        async def __aenter__(self):
            entered.append(("in", asyncio.get_running_loop()))
            return await super().__aenter__()

        async def __aexit__(self, *exc):
            entered.append(("out", asyncio.get_running_loop()))
            await super().__aexit__(*exc)

    loop = asyncio.get_running_loop()
    async with DataLoader(Here(8), batch_size=4, num_workers=workers) as loader:
        for _ in range(2):
            assert [index.tolist() async for index, _, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        async for _ in loader:
            break
    times = 6 if workers else 1
    assert sorted(how for how, _ in entered) == ["in"] * times + ["out"] * times or workers
    assert {where for _, where in entered} == {loop}
    assert entered.count(("in", loop)) == entered.count(("out", loop))


@pytest.mark.asyncio
async def test_other_tasks_never_see_the_generators_of_a_worker(debug):
    class Draws(AsyncNumbers):
        async def __getitem__(self, index):
            first = random.random()
            await asyncio.sleep(0)
            return first, random.random()

    random.seed(5)
    expected = [random.random() for _ in range(40)]
    random.seed(5)
    drawn = []

    async def draws():
        while len(drawn) < 40:
            assert get_worker_info() is None
            drawn.append(random.random())
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks, DataLoader(Draws(8), batch_size=2, num_workers=2) as loader:
        tasks.create_task(draws())
        batches = [batch async for batch in loader]
    assert drawn == expected
    assert len({float(x) for pair in batches for half in pair for x in half}) == 16


@pytest.mark.asyncio
async def test_a_cancelled_batch_is_made_again(debug):
    class Slow(AsyncNumbers):
        tries = 0

        async def __getitem__(self, index):
            type(self).tries += 1
            if self.tries == 1:
                await asyncio.Event().wait()
            return index

    async with DataLoader(Slow(4), batch_size=2) as loader:
        batches = aiter(loader)
        task = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [batch.tolist() async for batch in batches] == [[0, 1], [2, 3]]


def test_a_sampler_that_fails_is_raised_after_what_it_gave(debug):
    def sampler():
        yield 1
        raise LookupError("no more")

    class Once:
        def __iter__(self):
            return sampler()

    batches = iter(DataLoader(Numbers(4), sampler=Once(), num_workers=2))
    assert next(batches).tolist() == [1]
    with pytest.raises(LookupError, match="no more"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_a_closed_loader_gives_no_more(debug):
    loader = DataLoader(Numbers(4), num_workers=2)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(LoaderClosed):
        next(batches)


def test_plain_for_works_where_a_loop_runs(debug):
    async def main():
        with DataLoader(Opened(4), batch_size=2, num_workers=1) as loader:
            return [index.tolist() for index, _, _ in loader]

    assert asyncio.run(main()) == [[0, 1], [2, 3]]


# -- replay ------------------------------------------------------------------------------------------------------------


class Together:
    def __len__(self):
        return 8

    def __getitems__(self, indices):
        return [index * 10 for index in indices]


class AsyncTogether(Together):
    async def __getitems__(self, indices):
        await asyncio.sleep(0)
        return [index * 10 for index in indices]


@pytest.mark.parametrize(
    ("dataset", "sample"),
    [
        (Numbers(8), 3),
        (AsyncNumbers(8), 3),
        (Together(), 30),
        (AsyncTogether(), 30),
        (Opened(8), (3, os.getpid(), 1)),
        (torch.utils.data.Subset(AsyncNumbers(8), [7, 6, 5, 4]), 4),
    ],
)
def test_a_sample_is_fetched_again_also_where_a_loop_runs(dataset, sample):
    loader = DataLoader(dataset, num_workers=2)
    assert loader.replay(3) == sample

    async def main():
        return loader.replay(3)

    assert asyncio.run(main()) == sample
    assert getattr(dataset, "opened", None) is None


@pytest.mark.parametrize("running", [False, True])
def test_its_error_is_the_original_with_its_frames(running):
    class Deep(AsyncNumbers):
        async def __getitem__(self, index):
            secret = index * 2  # noqa: F841
            raise TwoArguments(index, "deep")

    async def main():
        return DataLoader(Deep(8)).replay(3)

    with pytest.raises(TwoArguments, match="3: deep") as caught:
        asyncio.run(main()) if running else DataLoader(Deep(8)).replay(3)
    last = caught.value.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    assert last.tb_frame.f_locals["secret"] == 6, "a debugger can look at it"


def test_what_has_no_index_is_refused():
    loader = DataLoader(Numbers(4))
    loader.__dict__["dataset"] = object()
    with pytest.raises(TypeError, match="no __getitem__"):
        loader.replay(3)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Failing, None])
def test_the_note_of_an_error_says_how(kind, workers):
    class AsyncFailing(AsyncNumbers):
        async def __getitem__(self, index):
            if index == 5:
                raise ValueError("bad sample")
            return index

    dataset = Failing("value") if kind is Failing else AsyncFailing(12)
    with (
        DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=as_list) as loader,
        pytest.raises(ValueError, match="bad sample") as caught,
    ):
        list(loader)
    call = caught.value.__notes__[-1].splitlines()[-1].split(": ")[1]
    with pytest.raises(ValueError, match="bad sample"):
        eval(call, {"loader": DataLoader(dataset)})


def test_nothing_is_said_where_the_index_cannot_be_written_down():
    class Key:
        pass

    class Fails(Numbers):
        def __getitem__(self, index):
            raise ValueError("bad sample")

    with pytest.raises(ValueError, match="bad sample") as caught:
        list(DataLoader(Fails(2), sampler=[Key()]))
    assert "replay" not in caught.value.__notes__[0]
