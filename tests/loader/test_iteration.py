"""Batches: all of them, once, in order, intact; by `for` and `async for`, with any number of workers."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest
import torch

from aloader import DataLoader, LoaderBusy, LoaderClosed

from .samples import AsyncNumbers, Numbers, Opened, Stamped, Whole, as_list, check

pytestmark = pytest.mark.usefixtures("nothing_left")

KINDS = [(Numbers, 0), (Numbers, 1), (Numbers, 2), (AsyncNumbers, 0), (AsyncNumbers, 2)]


def flat(batches):
    return [int(i) for batch in batches for i in batch]


@pytest.mark.parametrize(("dataset", "workers"), KINDS)
def test_every_sample_once_in_order(dataset, workers):
    loader = DataLoader(dataset(103), batch_size=10, num_workers=workers)
    assert len(loader) == 11
    for _ in range(2):
        assert flat(loader) == list(range(103))
    loader.close()


@pytest.mark.parametrize(("dataset", "workers"), KINDS)
@pytest.mark.asyncio
async def test_every_sample_once_in_order_async(dataset, workers):
    async with DataLoader(dataset(103), batch_size=10, num_workers=workers) as loader:
        for _ in range(2):
            assert flat([batch async for batch in loader]) == list(range(103))


@pytest.mark.parametrize("persistent", [False, True])
def test_shuffling_draws_torchs_order(persistent):
    reference = torch.utils.data.DataLoader(Numbers(50), batch_size=4, shuffle=True)
    loader = DataLoader(Numbers(50), batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent)
    torch.manual_seed(5)
    expected = flat(reference)
    torch.manual_seed(5)
    assert flat(loader) == expected
    assert sorted(flat(loader)) == list(range(50))
    loader.close()


def test_large_leaves_are_intact_also_when_all_are_kept():
    with DataLoader(Stamped(64), batch_size=4, num_workers=2) as loader:
        batches = list(loader)
    assert [i for batch in batches for i in check(batch)] == list(range(64))


def test_a_consumer_that_keeps_every_tenth_batch_sees_no_byte_change():
    kept = []
    with DataLoader(Stamped(400), batch_size=4, num_workers=2) as loader:
        for n, batch in enumerate(loader):
            check(batch)
            if n % 10 == 0:
                kept.append(batch)
            for old in kept:
                check(old)
    assert [check(batch)[0] for batch in kept] == list(range(0, 400, 40))


def test_batches_may_be_changed_in_place():
    with DataLoader(Stamped(40), batch_size=4, num_workers=2) as loader:
        for data, indices in loader:
            assert (data == indices[:, None]).all()
            data.mul_(-1)
            indices.zero_()


def test_a_leaf_alone_is_saved_and_held(tmp_path):
    with DataLoader(Stamped(8), batch_size=4, num_workers=1) as loader:
        data, indices = next(iter(loader))
        assert data.untyped_storage().nbytes() == data.nbytes
        torch.save(indices, tmp_path / "labels")
        torch.save(data[:1].clone(), tmp_path / "row")
        assert (tmp_path / "labels").stat().st_size < 4000


def test_memory_that_was_kept_comes_back_when_it_is_dropped():
    with DataLoader(Stamped(200), batch_size=4, num_workers=1, persistent_workers=True) as loader:
        kept = list(loader)
        assert loader.stats().leased_bytes == sum(data.nbytes for data, _ in kept)
        kept.clear()
        gc.collect()
        assert loader.stats().leased_bytes == 0
        for batch in loader:
            check(batch)
        assert loader.stats().arena_bytes < 20 * 4 * 120_000


def test_keeping_labels_keeps_no_images():
    with DataLoader(Stamped(400), batch_size=4, num_workers=2) as loader:
        labels = [indices for _, indices in loader]
        assert loader.stats().leased_bytes <= 480_000
    assert len(labels) == 100


@pytest.mark.asyncio
async def test_many_cancellations_lose_no_batch_and_repeat_none():
    rng = random.Random(3)
    got = []
    async with DataLoader(Numbers(6000), batch_size=2, num_workers=2) as loader:
        batches = aiter(loader)
        while True:
            task = asyncio.ensure_future(anext(batches))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
            try:
                got.append(await task)
            except asyncio.CancelledError:
                continue
            except StopAsyncIteration:
                break
    assert flat(got) == list(range(6000))


@pytest.mark.asyncio
async def test_cancellations_without_workers_lose_no_batch():
    rng = random.Random(4)
    for dataset in (Numbers(600), AsyncNumbers(600)):
        got = []
        async with DataLoader(dataset, batch_size=2) as loader:
            batches = aiter(loader)
            while True:
                task = asyncio.ensure_future(anext(batches))
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    got.append(await task)
                except asyncio.CancelledError:
                    continue
                except StopAsyncIteration:
                    break
        assert flat(got) == list(range(600))


@pytest.mark.asyncio
async def test_two_tasks_in_one_iterator_are_refused():
    async with DataLoader(Numbers(8), num_workers=1) as loader:
        batches = aiter(loader)
        first = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        with pytest.raises(LoaderBusy, match="two tasks"):
            await anext(batches)
        assert int(await first) == 0


@pytest.mark.parametrize("dataset", [Numbers, AsyncNumbers])
def test_changed_data_is_seen_by_the_next_epoch(dataset):
    data = Whole()
    with DataLoader(data, batch_size=8, num_workers=2) as loader:
        assert [float(v) for v in next(iter(loader))[0]] == [0.0] * 8
        data.array[3] = 1.5
        data.epoch = 2
        values, epochs = next(iter(loader))
        assert float(values[3]) == 1.5
        assert epochs.tolist() == [2] * 8


def test_two_iterators_at_once():
    with DataLoader(Numbers(20), batch_size=5, num_workers=1) as loader:
        assert [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)] == [
            (list(range(k, k + 5)),) * 2 for k in range(0, 20, 5)
        ]


@pytest.mark.asyncio
async def test_two_loaders_at_once_on_one_loop():
    async def total(loader):
        return sum(flat([batch async for batch in loader]))

    one, two = DataLoader(Numbers(90), batch_size=7, num_workers=1), DataLoader(Opened(90), num_workers=1)
    two.collate_fn = first_of_all
    async with one, two:
        assert await asyncio.gather(total(one), total(two)) == [sum(range(90))] * 2


def first_of_all(samples):
    return [sample[0] for sample in samples]


@pytest.mark.asyncio
async def test_an_async_dataset_is_opened_once_per_worker_and_fetched_many_at_once():
    async with DataLoader(Opened(200), batch_size=10, num_workers=2, collate_fn=as_list) as loader:
        samples = [sample async for batch in loader for sample in batch]
    assert [sample[0] for sample in samples] == list(range(200))
    assert len({sample[1] for sample in samples}) == 2
    assert max(sample[2] for sample in samples) > 10, "never more than one batch at a time"


@pytest.mark.asyncio
async def test_concurrency_bounds_what_is_in_flight():
    async with DataLoader(Opened(100), batch_size=10, concurrency=6, collate_fn=as_list) as loader:
        most = max([sample[2] async for batch in loader for sample in batch])
    assert most == 6


def test_random_split_of_an_async_dataset():
    parts = torch.utils.data.random_split(AsyncNumbers(40), [30, 10])
    for part in parts:
        for workers in (0, 1):
            with DataLoader(part, batch_size=4, num_workers=workers) as loader:
                assert flat(loader) == list(part.indices)


def test_a_sync_dataset_in_threads():
    with DataLoader(Numbers(40), batch_size=4, num_workers=1, concurrency=8) as loader:
        assert flat(loader) == list(range(40))


def test_a_persistent_loader_keeps_its_workers_and_its_iterator():
    with DataLoader(Pids(40), batch_size=4, num_workers=2, persistent_workers=True) as loader:
        first = iter(loader)
        pids = {int(pid) for batch in first for pid in batch}
        second = iter(loader)
        assert first is second
        next(second)
        assert {int(pid) for batch in iter(loader) for pid in batch} == pids


class Pids(Numbers):
    def __getitem__(self, index):
        import os

        return os.getpid()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterator_outlives_its_loader(persistent):
    batches = iter(DataLoader(Numbers(20), batch_size=4, num_workers=1, persistent_workers=persistent))
    assert flat(batches) == list(range(20))


def test_stats_outlive_the_workers():
    with DataLoader(Numbers(20), batch_size=4, num_workers=2) as loader:
        list(loader)
        assert (loader.stats().batches, loader.stats().workers) == (5, 2)
    assert (loader.stats().batches, loader.stats().workers) == (5, 2)


@pytest.mark.asyncio
async def test_a_closed_loader_says_so():
    loader = DataLoader(Numbers(10), num_workers=1)
    batches = aiter(loader)
    await anext(batches)
    await loader.aclose()
    with pytest.raises(LoaderClosed):
        await anext(batches)
    with pytest.raises(LoaderClosed):
        aiter(loader)
    with pytest.raises(LoaderClosed):
        iter(loader)
    await loader.aclose()


def test_in_order_false_delivers_everything():
    with DataLoader(Numbers(100), batch_size=3, num_workers=2, in_order=False) as loader:
        assert sorted(flat(loader)) == list(range(100))


def test_unbatched_and_bulk_keys():
    with DataLoader(Numbers(5), batch_size=None, num_workers=1) as loader:
        assert list(loader) == list(range(5))
    with DataLoader(Bulk(), batch_size=None, sampler=[[1, 2], [3]], num_workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[10, 20], [30]]


class Bulk(Numbers):
    def __getitem__(self, index):
        return torch.tensor(index) * 10


def test_a_bulk_method_is_used():
    with DataLoader(Many(10), batch_size=5, num_workers=1) as loader:
        assert flat(loader) == [-i for i in range(10)]


class Many(Numbers):
    def __getitems__(self, indices):
        return [-i for i in indices]


def test_very_long_batches_of_indices():
    with DataLoader(Many(200_000), batch_size=100_000, num_workers=1) as loader:
        assert [len(batch) for batch in loader] == [100_000, 100_000]


def test_worker_info_and_seeds_are_torchs():
    def expected(num_workers):
        torch.manual_seed(9)
        return [
            [tuple(row) for row in batch]
            for batch in torch.utils.data.DataLoader(Seeds(8), 2, num_workers=num_workers, collate_fn=as_list)
        ]

    torch.manual_seed(9)
    with DataLoader(Seeds(8), 2, num_workers=2, collate_fn=as_list) as loader:
        got = [[tuple(row) for row in batch] for batch in loader]
    assert got == expected(2)


class Seeds(Numbers):
    def __getitem__(self, index):
        import numpy

        info = torch.utils.data.get_worker_info()
        return (
            info.id,
            info.num_workers,
            info.seed,
            random.random(),
            float(numpy.random.rand()),
            float(torch.rand(())),
            type(info.dataset).__name__,
        )


def test_worker_init_fn_runs_once_per_worker_after_seeding():
    def init(worker):
        torch.utils.data.get_worker_info().dataset.mark = worker

    with DataLoader(Marked(8), 2, num_workers=2, worker_init_fn=init) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 0], [1, 1], [0, 0], [1, 1]]


class Marked(Numbers):
    def __getitem__(self, index):
        return self.mark


@pytest.mark.asyncio
async def test_closing_wakes_whoever_waits():
    loader = DataLoader(Slow(8), num_workers=1)
    waiting = asyncio.ensure_future(anext(aiter(loader)))
    other = asyncio.ensure_future(anext(aiter(loader)))
    await asyncio.sleep(0)
    await loader.aclose()
    for task in (waiting, other):
        with pytest.raises(LoaderClosed):
            await task


class Slow(Numbers):
    def __getitem__(self, index):
        import time

        time.sleep(60)


@pytest.mark.parametrize("persistent", [False, True])
def test_dropping_the_loader_ends_its_processes_without_the_collector(persistent):
    import psutil

    gc.collect()
    gc.disable()
    others = set(psutil.Process().children(recursive=True))
    try:
        loader = DataLoader(Stamped(400), batch_size=4, num_workers=2, persistent_workers=persistent)
        batch = next(iter(loader))
        processes = list(set(psutil.Process().children(recursive=True)) - others)
        assert len(processes) >= 4
        del loader
        _, alive = psutil.wait_procs(processes, timeout=5)
        assert alive == []
        check(batch)
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 1])
def test_closing_leaves_the_datasets_async_with(workers, tmp_path):
    with DataLoader(Leaves(20, tmp_path / "left"), num_workers=workers) as loader:
        for _ in loader:
            break
    assert (tmp_path / "left").read_text() == "left"


class Leaves(AsyncNumbers):
    def __init__(self, n, path):
        super().__init__(n)
        self.path = path

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await asyncio.sleep(0)
        self.path.write_text("left")


@pytest.mark.asyncio
async def test_a_persistent_loader_that_is_iterated_twice_at_once_has_one_set_of_workers():
    async with DataLoader(Pids(8), batch_size=4, num_workers=1, persistent_workers=True) as loader:
        first, second = aiter(loader), aiter(loader)
        pids = {int(pid) async for batch in second for pid in batch}
        assert len(pids) == 1
        with pytest.raises(LoaderClosed):
            await anext(first)
        assert {int(pid) async for batch in loader for pid in batch} == pids
