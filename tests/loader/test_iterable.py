"""Iterable datasets: torch's batches, by `for` and `async for`, from `__iter__` and `__aiter__`."""

from __future__ import annotations

import asyncio
import itertools
import warnings

import pytest
import torch
from torch.utils.data import ChainDataset
from torch.utils.data import DataLoader as TorchDataLoader

from aloader import DataLoader, WorkerLost

from .streams import AsyncCounting, Awaitables, Counting, Dying, Failing, Uneven, Unopenable, Whole

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def listed(batches):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


async def alisted(loader):
    return listed([batch async for batch in loader])


def of_torch(dataset, **arguments):
    if arguments.get("num_workers"):
        arguments |= {"multiprocessing_context": "fork"}
    return listed(TorchDataLoader(dataset, **arguments))


SHAPES = [
    {"batch_size": 4},
    {"batch_size": None},
    {"batch_size": 4, "drop_last": True},
    {"batch_size": 3, "num_workers": 1},
    {"batch_size": 4, "num_workers": 2, "drop_last": True},
    {"batch_size": None, "num_workers": 2},
    {"batch_size": 2, "num_workers": 3},
]


@pytest.mark.parametrize("arguments", SHAPES, ids=str)
def test_batches_are_torchs(arguments):
    with DataLoader(Counting(23), **arguments) as loader:
        assert listed(loader) == of_torch(Counting(23), **arguments)
        assert asyncio.run(alisted(loader)) == of_torch(Counting(23), **arguments)


@pytest.mark.parametrize("arguments", SHAPES, ids=str)
def test_those_of_an_async_dataset_are_the_same(arguments):
    with DataLoader(AsyncCounting(23), **arguments) as loader:
        assert listed(loader) == of_torch(Counting(23), **arguments)
        if arguments.get("num_workers"):
            assert asyncio.run(alisted(loader)) == of_torch(Counting(23), **arguments)


@pytest.mark.parametrize("arguments", SHAPES, ids=str)
def test_they_are_the_same_in_the_programs_own_thread(arguments, monkeypatch):
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    for dataset in (Counting(23), AsyncCounting(23)):
        with DataLoader(dataset, **arguments) as loader:
            assert listed(loader) == of_torch(Counting(23), **arguments)
            assert asyncio.run(alisted(loader)) == of_torch(Counting(23), **arguments)


@pytest.mark.asyncio
@pytest.mark.parametrize("batch_size", [4, None])
async def test_without_workers_an_async_dataset_is_read_on_the_users_loop(batch_size):
    async with DataLoader(AsyncCounting(23), batch_size=batch_size) as loader:
        for _ in range(2):
            assert await alisted(loader) == of_torch(Counting(23), batch_size=batch_size)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("n", [0, 1])
def test_workers_end_one_after_the_other(n, in_order):
    arguments = {"batch_size": 2, "num_workers": 3}
    with DataLoader(Uneven(n), **arguments, in_order=in_order, persistent_workers=True) as loader:
        for _ in range(3):
            got, expected = listed(loader), of_torch(Uneven(n), **arguments)
            assert got == expected if in_order else sorted(got) == sorted(expected)


def test_nothing_at_all():
    with DataLoader(Counting(0), num_workers=2, persistent_workers=True) as loader:
        assert [listed(loader) for _ in range(3)] == [[], [], []]
        assert next(iter(loader), "nothing") == "nothing"


def test_epochs_that_are_left_early_begin_anew():
    with DataLoader(Counting(1000), batch_size=5, num_workers=2, persistent_workers=True) as loader:
        for _ in range(3):
            assert listed(itertools.islice(loader, 4)) == of_torch(Counting(1000), batch_size=5, num_workers=2)[:4]
        assert listed(loader) == of_torch(Counting(1000), batch_size=5, num_workers=2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.asyncio
async def test_an_async_generator_is_left_when_nobody_wants_more(tmp_path, workers):
    left = tmp_path / "left"
    dataset = AsyncCounting(1000, str(left))
    async with DataLoader(dataset, batch_size=5, num_workers=workers, persistent_workers=True) as loader:
        for _ in range(2):
            batches = aiter(loader)
            for _ in range(4):
                await anext(batches)
            del batches
    assert left.read_text() == "left\n" * 2 * max(1, workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_it_gives_may_have_to_be_awaited(workers):
    with DataLoader(Awaitables(64), batch_size=8, num_workers=workers) as loader:
        batches = list(loader)
    assert [batch[0].tolist() for batch in batches] == of_torch(Counting(64), batch_size=8, num_workers=workers)
    assert max(int(most) for batch in batches for most in batch[1]) >= 8, "they were not awaited at once"


def test_a_chain_of_both_kinds():
    class Feed(Counting):
        async def __aiter__(self):
            for i in range(self.n):
                yield -i

    chain = ChainDataset([Whole(3), Feed(2), Whole(1)])
    assert listed(DataLoader(chain, batch_size=None)) == [0, 1, 2, 0, -1, 0]
    assert listed(DataLoader(Whole(3) + Whole(2), batch_size=2)) == [[0, 1], [2, 0], [1]]


def test_an_aiter_that_is_awaited_for_its_iterator():
    class Feed:
        async def __aiter__(self):
            await asyncio.sleep(0)
            self.left = 3
            return self

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return self.left

    assert listed(DataLoader(Feed(), batch_size=2)) == [[2, 1], [0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_has_its_place_and_the_next_batch_can_be_had(workers):
    arguments = {"batch_size": 2, "num_workers": workers}
    dataset = Failing(12, 4, ValueError("bad"))
    with DataLoader(dataset, **arguments) as loader:
        batches, got, errors = iter(loader), [], []
        while True:
            try:
                got.append(next(batches).tolist())
            except StopIteration:
                break
            except ValueError as error:
                errors.append(error)
                got.append("error")
    assert [error.args for error in errors] == [("bad",)]
    assert any("at position" in note for note in errors[0].__notes__)
    expected = [[0, 1], [2, 3], "error", [5, 6], [7, 8], [9, 10], [11]]
    with_two = [[0, 2], [1, 3], "error", [5, 7], [6, 8], [9, 11], [10]]
    assert got == (with_two if workers else expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_begun_says_so_and_ends_no_epoch_in_silence(workers):
    loader = DataLoader(Unopenable(3), num_workers=workers)
    with loader, pytest.raises((RuntimeError, StopIteration), match=r"no more|StopIteration"):
        if workers:
            next(iter(loader))
        else:
            iter(loader)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_lost_worker_takes_its_share_with_it_and_that_is_said_once(in_order):
    with DataLoader(Dying(24), batch_size=2, num_workers=2, in_order=in_order) as loader:
        batches, got, losses = iter(loader), [], []
        while True:
            try:
                got.append(next(batches).tolist())
            except StopIteration:
                break
            except WorkerLost as lost:
                losses.append(lost)
    assert len(losses) == 1
    assert losses[0].worker == 0
    assert any("share of the iterable dataset is lost" in note for note in losses[0].__notes__)
    odd = [i for batch in got for i in batch if i % 2]
    assert odd == list(range(1, 24, 2))
    assert [0, 2] in got


def test_a_length_that_is_not_kept_is_warned_of_in_torchs_words():
    class Short(Counting):
        def __len__(self):
            return 3

    def warned(loader):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            length, batches = len(loader), listed(loader)
        texts = [str(w.message) for w in seen if "Length of Iterable" in str(w.message)]
        return length, batches, [text.replace(repr(loader.dataset), "it") for text in texts]

    for arguments in ({}, {"batch_size": 2}, {"num_workers": 2}):
        ours = warned(DataLoader(Short(9), **arguments))
        assert ours == warned(TorchDataLoader(Short(9), **arguments))
        assert ours[2]


@pytest.mark.parametrize("make", [lambda: Counting(8), lambda: AsyncCounting(8)])
def test_a_dataset_that_takes_its_share_is_not_warned_of(make):
    with DataLoader(make(), num_workers=2) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(listed(loader)) == 8


def test_one_that_does_not_is_shown_how():
    with DataLoader(Whole(8), num_workers=2, persistent_workers=True) as loader:
        with pytest.warns(UserWarning, match=r"Whole has not asked.*2 workers.*get_worker_info\(\)"):
            assert len(listed(loader)) == 16
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(listed(loader)) == 16  # said once
    with DataLoader(Whole(8), num_workers=1) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(listed(loader)) == 8
