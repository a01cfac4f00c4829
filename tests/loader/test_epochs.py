"""From one epoch to the next: `set_epoch`, and a dataset's length."""

from __future__ import annotations

import os

import numpy as np
import pytest
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler, Subset

from aloader import DataLoader, WorkerLost

from .samples import AsyncNumbers, Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


def flat(batches):
    return [int(i) for batch in batches for i in batch]


class Epochs(Numbers):
    """Sample i is the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        return self.epoch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(4))])
def test_the_replicas_of_a_dataset_are_told(workers, wrap):
    data = Epochs(4)
    with DataLoader(wrap(data), num_workers=workers, persistent_workers=workers > 0) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            assert flat(loader) == [epoch] * 4


class Told(SequentialSampler):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_samplers_are_told_wherever_they_are():
    data = Numbers(4)
    for options in ({"sampler": Told(data)}, {"batch_sampler": BatchSampler(Told(data), 2, False)}):
        loader = DataLoader(data, **options)
        loader.set_epoch(np.int64(7))
        (told,) = [s for s in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)) if type(s) is Told][:1]
        assert told.epoch == 7
        assert type(told.epoch) is int


@pytest.mark.parametrize("epoch", ["1", 1.0, None])
def test_an_epoch_is_an_integer(epoch):
    with pytest.raises(TypeError, match="epoch should be an integer, but got epoch="):
        DataLoader(Numbers(4)).set_epoch(epoch)


def rank(loader_options):
    data = Numbers(8)
    return DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0), **loader_options)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_distributed_sampler_that_is_never_told_is_named_once(workers, persistent):
    with rank({"num_workers": workers, "persistent_workers": persistent and workers > 0}) as loader:
        first = flat(loader)
        with pytest.warns(UserWarning, match="DistributedSampler's epoch 0 again.*call loader.set_epoch"):
            assert flat(loader) == first
        assert flat(loader) == first


@pytest.mark.parametrize("workers", [0, 1])
def test_one_that_is_told_shuffles_anew(workers):
    with rank({"num_workers": workers}) as loader:
        orders = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            orders.append(flat(loader))
    assert orders[0] != orders[1] or orders[1] != orders[2]


class Deadly(Numbers):
    """Every sample ends its worker."""

    def __getitem__(self, index: int) -> int:
        os._exit(3)


def test_an_epoch_that_is_given_up_says_nothing_of_the_length():
    with DataLoader(Deadly(50), num_workers=1, max_worker_restarts=0) as loader:
        batches = iter(loader)
        lost = 0
        while True:
            try:
                next(batches)
            except WorkerLost:
                lost += 1
            except StopIteration:
                break
    assert 0 < lost < 50


class Counting(Numbers):
    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return self.n


#: Without workers, it is torch's own `RandomSampler` that draws. It asks three times, and goes by the last answer.
LENGTHS = [
    (Numbers, 0, False),
    (Numbers, 2, False),
    (Numbers, 2, True),
    (AsyncNumbers, 0, False),
    (AsyncNumbers, 0, True),
]


@pytest.mark.parametrize(("workers", "shuffle"), [(0, False), (2, False), (2, True)])
def test_an_epoch_asks_for_the_length_once_to_draw_and_once_at_its_end(workers, shuffle):
    data = Counting(20)
    with DataLoader(data, batch_size=4, shuffle=shuffle, num_workers=workers) as loader:
        for _ in range(2):
            data.asked = 0
            assert sorted(flat(loader)) == list(range(20))
            assert data.asked == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_dataset_that_grows_between_epochs_is_drawn_whole(workers, shuffle):
    data = Numbers(4)
    with DataLoader(data, batch_size=4, shuffle=shuffle, num_workers=workers) as loader:
        assert len(loader) == 1
        for n in (4, 9, 6):
            data.n = n
            assert sorted(flat(loader)) == list(range(n))
            assert len(loader) == -(-n // 4)


@pytest.mark.parametrize(("dataset", "workers", "shuffle"), LENGTHS)
def test_one_that_changes_in_an_epoch_is_reported_with_what_was_used(dataset, workers, shuffle):
    data = dataset(8)
    with DataLoader(data, batch_size=2, shuffle=shuffle, num_workers=workers) as loader:
        batches = iter(loader)
        got = [*next(batches)]
        data.n = 11
        with pytest.warns(UserWarning, match="it is 11 now, and the epoch had 8 samples"):
            got += flat(batches)
        assert sorted(map(int, got)) == list(range(8))
        assert sorted(flat(loader)) == list(range(11))
