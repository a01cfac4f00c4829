"""`loader.broadcast`: a method of the dataset is called here and in every replica, whenever its worker was started."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, get_worker_info

from aloader import DataLoader, WorkerLost, WorkerWarning

from .programs import Program
from .samples import Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


class Tunable(Numbers):
    """Sample i is what has been added up so far, and its worker."""

    total = 0

    def add(self, value: object) -> None:
        self.total += int(value)  # type: ignore[call-overload]

    async def reopen(self) -> None:
        """Cannot be broadcast."""

    def only_here(self) -> None:
        if get_worker_info() is not None:
            raise LookupError("no such thing in a worker")

    def only_there(self) -> None:
        if get_worker_info() is None:
            raise LookupError("no such thing in the program")

    def __getitem__(self, index: int) -> int:
        return self.total


class AsyncTunable(Tunable):
    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return self.total


class Mortal(Tunable):
    """Sample 3 kills its worker."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # sleep: the signal ends it
        return self.total


@pytest.mark.parametrize("dataset", [Tunable, AsyncTunable])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_between_epochs_it_reaches_every_replica(dataset, workers, persistent):
    data = dataset(8)
    with DataLoader(data, batch_size=None, num_workers=workers, persistent_workers=persistent) as loader:
        loader.broadcast("add", 1)
        assert list(loader) == [1] * 8
        loader.broadcast("add", 10)
        loader.broadcast("add", 100)
        assert list(loader) == [111] * 8
        assert data.total == 111


@pytest.mark.asyncio
@pytest.mark.parametrize("dataset", [Tunable, AsyncTunable])
@pytest.mark.parametrize("workers", [0, 2])
async def test_with_async_for(dataset, workers):
    persistent = workers > 0
    async with DataLoader(dataset(8), batch_size=None, num_workers=workers, persistent_workers=persistent) as loader:
        for expected in (0, 5, 10):
            assert [x async for x in loader] == [expected] * 8
            loader.broadcast("add", 5)


ONCE = """
import os, signal, time
from aloader import DataLoader

class Mortal:  # here: what `spawn` starts imports this file, and no more
    total = 0

    def __len__(self):
        return 6

    def add(self, value):
        self.total += value

    def __getitem__(self, index):
        if index == 3 and self.total > 1:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # sleep: the signal ends it
        return self.total

if __name__ == "__main__":
    options = dict(num_workers=1, persistent_workers=True, multiprocessing_context="{context}")
    loader = DataLoader(Mortal(), batch_size=None, **options)
    for _ in range(2):
        loader.broadcast("add", 1)
        batches, got = iter(loader), []
        for index in range(6):
            try:
                got.append(next(batches))
            except RuntimeError as error:
                got.append(type(error).__name__)
        print(got)
    loader.close()
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_torchs_ways_of_starting_make_a_call_once_in_each_worker(tmp_path, context):
    """A replacement is made of the program's dataset as it is then, and has no call to repeat."""
    with Program(tmp_path, ONCE.format(context=context), flags=()) as program:
        ended = program.end()
        assert ended.out.splitlines() == [str([1] * 6), str([2, 2, 2, "WorkerLost", 2, 2])], ended


def test_a_replacement_makes_the_calls_that_the_lost_one_had_made():
    with DataLoader(Mortal(9), batch_size=None, num_workers=1, persistent_workers=True) as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(3)] == [0, 0, 0]
        loader.broadcast("add", 7)
        with pytest.warns(WorkerWarning), pytest.raises(WorkerLost):
            next(batches)
        assert list(batches) == [7] * 5
        loader.broadcast("add", 7)
        batches = iter(loader)
        assert [next(batches) for _ in range(3)] == [14] * 3
        with pytest.warns(WorkerWarning), pytest.raises(WorkerLost):
            next(batches)
        assert list(batches) == [14] * 5


def test_in_a_running_epoch_it_is_for_what_is_not_begun():
    with DataLoader(Tunable(200), batch_size=None, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        loader.broadcast("add", 1)
        rest = list(batches)
    assert rest == sorted(rest)
    assert rest[-1] == 1


def test_large_arguments_and_those_of_the_program_itself_arrive():
    class Bump(int):
        """Known in this function only."""

    with DataLoader(Weighted(3), batch_size=None, num_workers=1, persistent_workers=True) as loader:
        assert list(loader) == [0.0] * 3
        loader.broadcast("weigh", np.full(100_000, 2.0), Bump(3))
        assert list(loader) == [600_000.0] * 3


class Weighted(Numbers):
    weights = np.zeros(1)

    def weigh(self, weights: np.ndarray, factor: int) -> None:
        weights *= factor  # a replica's arguments are its own
        self.weights = weights

    def __getitem__(self, index: int) -> float:  # type: ignore[override]
        return float(self.weights.sum())


def test_it_reaches_through_torchs_wrappers():
    first, second = Tunable(3), Tunable(3)
    data = ConcatDataset([Subset(first, [0, 1]), second, Numbers(1)])
    with DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True) as loader:
        list(loader)
        loader.broadcast("add", 4)
        assert list(loader) == [4] * 5 + [0]
    assert (first.total, second.total) == (4, 4)


class Outer(Tunable):
    """Has the method, and passes it on itself if it likes."""

    def __init__(self, inner: Tunable) -> None:
        super().__init__(2)
        self.dataset = inner


def test_what_lies_inside_a_dataset_that_has_the_method_is_that_ones_concern():
    inner = Tunable(2)
    outer = Outer(inner)
    DataLoader(Subset(outer, [0])).broadcast("add", 1)
    assert (outer.total, inner.total) == (1, 0)


def test_errors_of_the_caller_are_raised_at_once():
    data = Tunable(4)
    with DataLoader(data, batch_size=None, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        with pytest.raises(AttributeError, match="'Tunable' object has no method 'shuffle'"):
            loader.broadcast("shuffle")
        with pytest.raises(AttributeError, match="no method 'total'"):
            loader.broadcast("total")
        with pytest.raises(TypeError, match=r"Tunable\.reopen is a coroutine function"):
            loader.broadcast("reopen")
        with pytest.raises(TypeError, match=r"arguments of broadcast\('add'\)\[0\]: generator cannot be pickled"):
            loader.broadcast("add", (x for x in ()))
        with pytest.raises(LookupError, match="in the program"):
            loader.broadcast("only_there")
        assert data.total == 0
        assert list(loader) == [0] * 4


@pytest.mark.parametrize("dataset", [Tunable, AsyncTunable])
def test_what_a_replica_raises_is_its_next_batchs_error(dataset):
    with DataLoader(dataset(4), batch_size=None, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        loader.broadcast("only_here")
        loader.broadcast("add", 1)
        batches = iter(loader)
        with pytest.raises(LookupError, match="no such thing in a worker") as caught:
            next(batches)
        assert "broadcast('only_here', …) in this worker's replica" in "\n".join(caught.value.__notes__)
        assert list(batches) == [1] * 3


def test_a_tensor_can_be_an_argument():
    with DataLoader(Tunable(2), batch_size=None, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        loader.broadcast("add", torch.tensor(6))
        assert list(loader) == [6, 6]
