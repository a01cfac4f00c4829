"""The byte budget: undelivered batches stay within `memory_limit`, whoever makes them, and nothing gets stuck on it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import os
import pickle
import resource

import numpy as np
import psutil
import pytest
import torch

from aloader import BatchTooLarge, DataLoader
from aloader.channel.job import Carried, Job, load
from aloader.options import parse_bytes
from aloader.pool.limits import default_memory_limit

from .samples import AsyncNumbers, Numbers, Stamped, as_list, check

pytestmark = pytest.mark.usefixtures("nothing_left")

BATCH = 4 * 120_000  # bytes of a batch of four from `Stamped`


class AsyncStamped(AsyncNumbers):
    async def __getitem__(self, index):
        return torch.full((30_000,), float(index)), index


class Uneven(Numbers):
    """Every seventh batch is much larger than the others."""

    def __getitem__(self, index):
        return torch.full((200_000 if index // 4 % 7 == 3 else 20_000,), float(index)), index


@pytest.mark.parametrize(
    ("dataset", "workers"), [(Stamped, 1), (Stamped, 2), (AsyncStamped, 0), (AsyncStamped, 1), (AsyncStamped, 2)]
)
@pytest.mark.parametrize("limit", [1, 3 * BATCH])
def test_a_tight_limit_changes_nothing_but_the_pace(dataset, workers, limit):
    with DataLoader(dataset(80), batch_size=4, num_workers=workers, memory_limit=limit) as loader:
        for _ in range(2):
            assert [i for batch in loader for i in check(batch)] == list(range(80))


@pytest.mark.parametrize("in_order", [True, False])
def test_arenas_stay_within_the_limit(in_order):
    limit = 4 * BATCH
    most = 0
    with DataLoader(
        Stamped(240), batch_size=4, num_workers=2, prefetch_factor=8, memory_limit=limit, in_order=in_order
    ) as loader:
        for batch in loader:
            check(batch)
            most = max(most, loader.stats().arena_bytes)
    # One batch per worker beyond the limit, what the consumer holds, and the doubling of arenas, in whole pages.
    pages = -(-BATCH // mmap.PAGESIZE) * mmap.PAGESIZE
    assert most <= 2 * (limit // BATCH + 4) * pages


def test_sizes_that_vary_wildly_pass_through_a_tight_limit():
    with DataLoader(Uneven(160), batch_size=4, num_workers=2, memory_limit=1_000_000) as loader:
        assert [i for batch in loader for i in check(batch)] == list(range(160))


@pytest.mark.parametrize("collate", [as_list, None])
def test_a_users_collate_function_is_within_the_limit_too(collate):
    with DataLoader(Stamped(80), batch_size=4, num_workers=2, memory_limit=BATCH, collate_fn=collate) as loader:
        batches = list(loader)
    assert len(batches) == 20
    for n, batch in enumerate(batches):
        data = torch.stack([sample[0] for sample in batch]) if collate else batch[0]
        assert data[:, 0].tolist() == [4.0 * n + k for k in range(4)]


def test_batches_that_the_dataset_keeps_are_not_overwritten():
    with DataLoader(Hoarder(60), batch_size=2, num_workers=1, collate_fn=hoard) as loader:
        for n, (batch, first) in enumerate(loader):
            assert (batch == batch[:, :1]).all()
            assert batch[0, 0] == 2 * n
            assert (first == first[:, :1]).all()
            assert first[0, 0] == 0


class Hoarder(Numbers):
    def __getitem__(self, index):
        return torch.full((40_000,), float(index))


def hoard(samples, kept=[]):  # noqa: B006  (it is the point: state in the worker)
    kept.append(torch.utils.data.default_collate(samples))
    return kept[-1], kept[0]


def test_tiny_batches_need_no_arena():
    with DataLoader(Numbers(400), batch_size=32, num_workers=2) as loader:
        for _ in loader:
            assert loader.stats().arena_bytes == 0


def test_many_small_leaves_travel_in_one_block():
    class Forty(Numbers):
        def __getitem__(self, index):
            return {f"k{n}": torch.full((250,), index * 100 + n) for n in range(40)}

    with DataLoader(Forty(64), batch_size=8, num_workers=1) as loader:
        for n, batch in enumerate(loader):
            for k in range(40):
                assert batch[f"k{k}"][:, 0].tolist() == [(8 * n + i) * 100 + k for i in range(8)]
            stats = loader.stats()
            most = 650_000 * stats.batches_ready  # of those that nobody has unpacked
            assert stats.leased_bytes <= most, "small leaves hold no arena memory"


def test_a_job_is_written_once_and_compared_by_its_bytes():
    data = {"a": np.arange(100_000), "b": torch.arange(5), "c": "text"}
    first = Carried(Job(data, as_list, None, {}), b"")
    first.write()
    job = load(first.fd, first.size)
    assert job.dataset["a"].tolist() == data["a"].tolist()
    assert job.dataset["c"] == "text"
    job.dataset["a"][0] = 7  # a worker's own copy
    assert Carried(Job(data, as_list, None, {}), b"").same_as(first)
    data["a"][99_999] += 1
    assert not Carried(Job(data, as_list, None, {}), b"").same_as(first)
    first.close()
    del job
    gc.collect()


BIG = np.zeros(0, np.uint8)


def test_a_large_captured_global_is_named(monkeypatch):
    big = np.zeros(110 << 20, np.uint8)
    monkeypatch.setitem(globals(), "BIG", big)

    def collate(samples):
        return samples[0], BIG.nbytes

    collate.__module__ = "__main__"  # as in a script: carried by value, with the globals that it uses
    with DataLoader(Numbers(2), num_workers=1, collate_fn=collate) as loader:
        with pytest.warns(UserWarning, match=r"captured globals: BIG \(captured by function .*collate"):
            assert next(iter(loader)) == (0, big.nbytes)


@pytest.mark.parametrize(("text", "value"), [("8GiB", 8 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), (7, 7)])
def test_bytes_in_words(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("value", ["", "many", "-1", 0, -5, True, "0", "8 XB"])
def test_bytes_that_are_none(value):
    with pytest.raises(ValueError, match="memory_limit should be a positive number of bytes"):
        parse_bytes(value)


def test_the_default_limit_is_shared_by_the_ranks_of_a_machine(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = default_memory_limit()
    assert alone < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert default_memory_limit() == alone // 2


def test_iterators_are_not_pickled():
    with DataLoader(Numbers(4), num_workers=1) as loader, pytest.raises(NotImplementedError):
        pickle.dumps(iter(loader))


# -- batches that there is no memory for -------------------------------------------------------------------------------


def outcomes(loader):
    """What iterating gives: numbers of elements, and errors in their places."""
    got, batches = [], iter(loader)
    while True:
        try:
            got.append(next(batches).numel())
        except StopIteration:
            return got
        except MemoryError as error:
            got.append(error)


def row(floats):
    """So many floats that take no memory until they are copied."""
    return torch.zeros(1).expand(floats)


class Huge(Numbers):
    """The third batch of two takes more than any machine has, and the fifth more than its worker may have."""

    def __getitem__(self, index):
        return row({2: 1 << 43, 4: 50_000_000}.get(index // 2, 100_000))


class AsyncHuge(Huge):
    async def __getitem__(self, index):
        return super().__getitem__(index)


def little_memory(worker):
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (300 << 20), resource.RLIM_INFINITY))


@pytest.mark.parametrize("dataset", [Huge(12), AsyncHuge(12)])
def test_a_batch_that_no_memory_can_hold_fails_in_its_place(dataset):
    with DataLoader(dataset, batch_size=2, num_workers=1, worker_init_fn=little_memory) as loader:
        got = outcomes(loader)
        its_workers, anybodys = got.pop(4), got.pop(2)
        assert got == [200_000] * 4
        assert isinstance(anybodys, BatchTooLarge)
        assert str(anybodys).startswith("batch 2 takes 70368.74 GB, and ")
        assert "Use a smaller batch_size" in str(anybodys)
        assert isinstance(its_workers, BatchTooLarge)
        assert str(its_workers).startswith("400 MB of shared memory could not be had for a batch (")
        assert loader.stats().workers_lost == 0


def test_a_batch_that_no_memory_can_hold_fails_in_its_place_without_workers():
    with DataLoader(AsyncHuge(8), batch_size=2) as loader:
        got = outcomes(loader)
        assert isinstance(got.pop(2), BatchTooLarge)
        assert got == [200_000] * 3


# -- what processes really take ----------------------------------------------------------------------------------------


class Images(Numbers):
    """Samples that take memory, with next to no work: one byte of each page is written."""

    nbytes = 100

    def __getitem__(self, index):
        pixels = np.empty(self.nbytes, np.uint8)
        pixels[:: resource.getpagesize()] = 1
        return pixels

    def resize(self, nbytes):
        self.nbytes = nbytes


def memory_of_all():
    """Bytes of this process and those below it; what several share is counted once. Not of files that are mapped: who
    else has mapped a library changes its share here."""
    me, total = psutil.Process(), 0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/smaps_rollup") as file:
            total += sum(1024 * int(line.split()[1]) for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total


async def most_memory(loader):
    """At any step of a consumer that takes its time."""
    most = 0
    async for _ in loader:
        await asyncio.sleep(0.03)  # sleep: so that the workers get as far ahead as they may
        most = max(most, memory_of_all())
    return most


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
async def test_all_processes_together_stay_within_the_limit():
    limit, batch = 256_000_000, 64 * 602_112  # images of 3 × 224 × 224 floats
    kind = {"batch_size": 64, "num_workers": 4, "persistent_workers": True}
    async with DataLoader(Images(14 * 64), memory_limit=limit, **kind) as loader:
        base = await most_memory(loader)
        loader.broadcast("resize", batch // 64)
        most = await most_memory(loader)
    # Each worker has the samples of one batch, which it has not collated. The consumer has one batch and has just let
    # go of another; and one batch, the next, may go ahead where the limit is reached.
    assert most <= base + limit + (4 + 2 + 1) * batch + (16 << 20)


class Expanded:
    """Samples that are larger than any memory, and take none."""

    def __len__(self) -> int:
        return 4

    async def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1,), index).expand(1 << 46)


def test_what_a_collate_fn_makes_is_not_refused_for_the_size_of_the_samples():
    def firsts(samples: list[torch.Tensor]) -> list[int]:
        return [int(sample[0]) for sample in samples]

    assert list(DataLoader(Expanded(), batch_size=2, collate_fn=firsts)) == [[0, 1], [2, 3]]
    with pytest.raises(BatchTooLarge):
        next(iter(DataLoader(Expanded(), batch_size=2)))
