"""What multiprocessing shares can only be inherited: workers of such a dataset are forks, as torch's are."""

from __future__ import annotations

import multiprocessing

import pytest

from aloader import DataLoader, WorkerPool

from .samples import Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


FORK = multiprocessing.get_context("fork")
KEPT = FORK.Value("i", 0)  # multiprocessing keeps the file that the first one makes: not in a test


class Counted(Numbers):
    """Counts, over all processes, how often it has been read."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.count = FORK.Value("i", 0)

    def __getitem__(self, index: int) -> int:
        with self.count.get_lock():
            self.count.value += 1
        return index


def test_a_dataset_with_a_counter_that_its_workers_share_works_and_says_how_they_are_started():
    dataset = Counted(12)
    with DataLoader(dataset, batch_size=3, num_workers=2) as loader:
        text = r'dataset\.count.*multiprocessing_context="fork".*forks of this program'
        with pytest.warns(RuntimeWarning, match=text):
            assert [int(i) for batch in loader for i in batch] == list(range(12))
        assert dataset.count.value == 12
        assert [int(i) for batch in loader for i in batch] == list(range(12))  # and is said once
        assert dataset.count.value == 24


@pytest.mark.asyncio
async def test_the_same_on_a_loop():
    dataset = Counted(12)
    async with DataLoader(dataset, batch_size=3, num_workers=2, persistent_workers=True) as loader:
        with pytest.warns(RuntimeWarning, match="forks of this program"):
            assert [int(i) async for batch in loader for i in batch] == list(range(12))
        assert [int(i) async for batch in loader for i in batch] == list(range(12))
    assert dataset.count.value == 24


def test_on_a_pool_that_others_use_it_is_refused_with_what_to_do():
    with WorkerPool(2) as pool, pytest.raises(RuntimeError, match=r'its pool\) multiprocessing_context="fork"'):
        iter(DataLoader(Counted(4), pool=pool))
    with WorkerPool(2, multiprocessing_context="fork") as pool:
        dataset = Counted(4)
        assert len(list(DataLoader(dataset, pool=pool))) == 4
        assert dataset.count.value == 4
