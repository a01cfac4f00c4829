"""A dataset that takes its share by `aloader.shard_info()` is told the loader's ranks, wherever it is read."""

from __future__ import annotations

import asyncio
import os
import signal
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from aloader import DataLoader, WorkerPool, WorkerWarning, shard_info

from .programs import Program
from .samples import Numbers, as_list

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

N = 23


def place() -> tuple[int, int, int, int]:
    info = shard_info()
    return info.rank, info.world_size, info.worker, info.num_workers


class Shares(IterableDataset[int]):
    """Each reader its share of 0 … 22."""

    def __iter__(self) -> Iterator[int]:
        yield from shard_info().of(range(N))


class AsyncShares:
    """The same, for `async for`."""

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in shard_info().of(range(N)):
            await asyncio.sleep(0)
            yield number


class Places(Numbers):
    """Who has fetched the sample."""

    def __getitem__(self, index: int) -> tuple[int, int, int, int]:  # type: ignore[override]
        return place()


class AsyncPlaces(Numbers):
    """Who has opened the dataset and who has fetched the sample: before it waits, after, and in a thread."""

    async def __aenter__(self) -> AsyncPlaces:
        self.opened_by = place()
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        before = place()
        await asyncio.sleep(0)
        return self.opened_by, before, place(), await asyncio.to_thread(place)


def with_place(samples: list[Any]) -> list[Any]:
    """Collates, and adds who has."""
    return [*samples, place()]


def numbers(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch]


async def anumbers(loader: Any) -> list[int]:
    return [int(number) async for batch in loader for number in batch]


@pytest.fixture
def rank_2_of_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")


@pytest.fixture(params=[False, True], ids=["", "debug"])
def debug(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALOADER_DEBUG", str(int(request.param)))


# -- iterable datasets -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("debug")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Shares(), AsyncShares()], ids=["for", "async"])
def test_ranks_that_were_given_have_everything_once(dataset, workers):
    seen: list[int] = []
    for rank in range(2):
        with DataLoader(dataset, 4, num_workers=workers, distributed=(rank, 2)) as loader:
            share = numbers(loader)
            assert sorted(asyncio.run(anumbers(loader))) == sorted(share)
        seen += share
    assert sorted(seen) == list(range(N))


@pytest.mark.usefixtures("rank_2_of_3")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("distributed", [False, True])
def test_ranks_of_the_environment_are_told_whether_or_not_the_loader_deals_out(workers, distributed):
    with DataLoader(Shares(), 4, num_workers=workers, distributed=distributed) as loader:
        everybody = range(N)
        expected = [*everybody[4::6], *everybody[5::6]] if workers else everybody[2::3]
        assert sorted(numbers(loader)) == sorted(expected)


def test_two_loaders_that_are_read_in_turns_keep_their_ranks():
    loaders = [DataLoader(Shares(), 1, distributed=(rank, 3)) for rank in range(3)]
    found = [[int(batch) for batch in batches] for batches in zip(*loaders, strict=False)]
    assert found == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(N // 3)]
    assert shard_info().world_size == 1


@pytest.mark.asyncio
async def test_loaders_that_are_read_at_once_on_one_loop_keep_their_ranks():
    shares = await asyncio.gather(*(anumbers(DataLoader(AsyncShares(), 4, distributed=(r, 3))) for r in range(3)))
    assert shares == [list(range(rank, N, 3)) for rank in range(3)]


@pytest.mark.usefixtures("rank_2_of_3")
def test_workers_of_torchs_own_loader_share_by_rank_too():
    loader = TorchDataLoader(Shares(), 4, num_workers=2, multiprocessing_context="fork")
    assert sorted(numbers(loader)) == sorted([*range(4, N, 6), *range(5, N, 6)])


def test_a_dataset_that_has_asked_is_not_warned_of_and_one_that_has_not_is_told_whom_to_ask():
    class Whole(Shares):
        def __iter__(self) -> Iterator[int]:
            return iter(range(8))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dataset in (Shares(), AsyncShares()):
            with DataLoader(dataset, num_workers=2) as loader:
                assert len(numbers(loader)) == N
    with DataLoader(Whole(), num_workers=2) as loader:
        with pytest.warns(UserWarning, match=r"Whole has not asked .*aloader\.shard_info\(\)\.of\(samples\)"):
            numbers(loader)


def test_one_worker_of_many_ranks_is_not_warned_of():
    """The dataset may have been split by rank before the loader had it."""

    class Part(Shares):
        def __iter__(self) -> Iterator[int]:
            return iter(range(1, 8, 2))

    with DataLoader(Part(), num_workers=1, distributed=(1, 2)) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numbers(loader) == [1, 3, 5, 7]


# -- datasets with indices ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rank_2_of_3")
def test_without_workers_the_rank_is_known_in_samples_and_collating_and_nowhere_else():
    loader = DataLoader(Places(8), 2, collate_fn=with_place, distributed=(1, 4))
    (batch,) = loader
    assert batch == [(1, 4, 0, 1)] * 3
    assert place() == (2, 3, 0, 1)

    async def batches():
        found = [batch async for batch in loader]
        return found, place()

    assert asyncio.run(batches()) == ([batch], (2, 3, 0, 1))


@pytest.mark.usefixtures("debug")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_async_dataset_knows_its_rank_in_every_step(workers):
    loader = DataLoader(AsyncPlaces(8), 1, num_workers=workers, collate_fn=with_place, distributed=(1, 4))

    async def batches():
        return [batch async for batch in loader]

    with loader:
        expected = [(1, 4, worker if workers else 0, workers or 1) for worker in range(2)]
        for found in (asyncio.run(batches()), list(loader)):
            for (sample, collated_by), who in zip(found, expected, strict=True):
                in_debug_threads = os.environ["ALOADER_DEBUG"] == "1" and workers
                assert sample[:3] == (who,) * 3
                assert in_debug_threads or sample[3] == who
                assert collated_by == who


@pytest.mark.parametrize("context", ["fork", None])
def test_however_the_worker_was_started(context):
    arguments: Any = {"collate_fn": as_list, "num_workers": 1, "multiprocessing_context": context}
    with DataLoader(Places(1), distributed=(1, 4), **arguments) as loader:
        assert list(loader) == [[(1, 4, 0, 1)]]


STARTED = """
from aloader import DataLoader
from tests.loader.samples import as_list
from tests.loader.test_shards import Places

if __name__ == "__main__":
    for context in ("spawn", "forkserver"):
        arguments = dict(collate_fn=as_list, num_workers=1, multiprocessing_context=context)
        print(list(DataLoader(Places(1), distributed=(1, 4), **arguments)))
"""


@pytest.mark.slow
def test_also_by_multiprocessings_other_ways(tmp_path):
    """In a program of its own: multiprocessing leaves processes to the end of the one that it is used in."""
    with Program(tmp_path, STARTED, flags=()) as program:
        ended = program.end()
        assert ended.out.splitlines() == ["[[(1, 4, 0, 1)]]"] * 2, ended


def test_in_threads_of_workers_that_are_kept_on_a_shared_pool():
    arguments: Any = {"collate_fn": as_list, "num_workers": 2, "concurrency": 4, "persistent_workers": True}
    with WorkerPool(2) as pool:
        loaders = [DataLoader(Places(8), pool=pool, distributed=(rank, 4), **arguments) for rank in (1, 3)]
        for _ in range(2):
            for loader in loaders:
                rank = loader.ranks.rank
                assert list(loader) == [[(rank, 4, 0, 2)], [(rank, 4, 1, 2)]]
            for loader in loaders:
                loader.close()
            loaders = [DataLoader(Places(8), pool=pool, distributed=(rank, 4), **arguments) for rank in (1, 3)]


class Mortal(Places):
    """Its worker is killed at its first sample, once."""

    def __init__(self, n: int, file: str) -> None:
        super().__init__(n)
        self.file = file

    def __getitem__(self, index: int) -> Any:
        try:
            os.close(os.open(self.file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().__getitem__(index)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_in_a_dead_ones_place_has_its_rank(tmp_path):
    dataset = Mortal(12, str(tmp_path / "dead"))
    with DataLoader(dataset, collate_fn=as_list, num_workers=1, distributed=(1, 4)) as loader:
        with pytest.warns(WorkerWarning, match="SIGKILL"):
            assert list(loader) == [[(1, 4, 0, 1)]] * 3


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_what_is_no_rank_is_refused_at_once():
    for wrong in (1, None, (1,), [0, 2], "rank"):
        with pytest.raises(TypeError, match="distributed option should be a bool or"):
            DataLoader(Numbers(), distributed=wrong)
    for wrong in ((2, 2), (-1, 2), (0, 0), (0.0, 1)):
        with pytest.raises(ValueError, match=r"distributed option: a rank is one of"):
            DataLoader(Numbers(), distributed=wrong)


def test_an_environment_that_says_nonsense_is_refused_at_once(monkeypatch):
    monkeypatch.setenv("RANK", "two")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="unset them, or give"):
        DataLoader(Numbers(), distributed=True)
    assert DataLoader(Numbers(), distributed=(0, 2)).ranks == (0, 2)


@pytest.mark.parametrize("distributed", [True, (0, 2)])
def test_it_and_a_sampler_exclude_each_other(distributed):
    for sampling in ({"sampler": [1, 2]}, {"batch_sampler": [[1, 2]]}):
        with pytest.raises(ValueError, match="distributed option is mutually exclusive with sampler"):
            DataLoader(Numbers(), distributed=distributed, **sampling)
