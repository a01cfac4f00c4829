"""Where going on is harder: errors in what is read again, orders that take long to make, datasets that count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from aloader import DataLoader, WorkerPool

from .resuming import in_parts, plain, through_json, whole
from .samples import Numbers
from .streams import Counting, share

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create")]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


def on(pool: WorkerPool, workers: int) -> dict[str, Any]:
    return {"pool": pool, "num_workers": workers} if workers else {}


class Breaking(Counting):
    """0 … 11, and an error in the place of `n`: each time that it is read."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == 12:
            raise StopIteration
        self.at += 1
        if self.at == self.n + 1:
            raise LookupError(self.n)
        return self.at - 1


class BreakingWithState(Breaking):
    """It goes on where it was."""

    def __iter__(self) -> Iterator[int]:
        return self

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


async def _past_the_error(loader: Any, more: int) -> tuple[list[Any], dict[str, Any]]:
    async with loader:
        iterator = aiter(loader)
        got = [plain(await anext(iterator))]
        with pytest.raises(LookupError):
            await anext(iterator)
        got += [plain(await anext(iterator)) for _ in range(more)]
        return got, through_json(loader.state_dict())


def past_the_error(loader: Any, more: int, how: str) -> tuple[list[Any], dict[str, Any]]:
    """The first batch, the error, and so many more batches."""
    if how == "async for":
        return asyncio.run(_past_the_error(loader, more))
    iterator = iter(loader)
    got = [plain(next(iterator))]
    with pytest.raises(LookupError):
        next(iterator)
    got += [plain(next(iterator)) for _ in range(more)]
    state = through_json(loader.state_dict())
    loader.close()
    return got, state


@pytest.mark.parametrize("kind", [Breaking, BreakingWithState])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["for", "async for"])
def test_what_an_iterable_dataset_failed_in(pool: WorkerPool, kind: Any, workers: int, how: str) -> None:
    """It is read again where the program ended with the error; where it went on, the error does not come again."""
    got, state = past_the_error(DataLoader(kind(5), 4, **on(pool, workers)), 0, how)
    mended = DataLoader(kind(-1), 4, **on(pool, workers))
    mended.load_state_dict(state)
    assert got + whole(mended, how)[0] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    got, state = past_the_error(DataLoader(kind(5), 4, **on(pool, workers)), 1, how)
    same = DataLoader(kind(5), 4, **on(pool, workers))
    same.load_state_dict(state)
    assert got + whole(same, how)[0] == [[0, 1, 2, 3], [6, 7, 8, 9], [10, 11]]


class OneLate(Counting):
    """Each worker gives a share of eight; the second one takes its time."""

    def __iter__(self) -> Iterator[int]:
        worker = next(iter(share(range(10))))
        if worker == 1:
            time.sleep(0.2)  # sleep: what comes late
        return iter(range(100 * worker, 100 * worker + 8))


def test_shares_that_come_without_order(pool: WorkerPool) -> None:
    def make() -> Any:
        return DataLoader(OneLate(8), 2, in_order=False, **on(pool, 2))

    loader = make()
    iterator = iter(loader)
    got = [plain(next(iterator)) for _ in range(3)]
    state = through_json(loader.state_dict())
    del iterator
    loader.close()
    other = make()
    other.load_state_dict(state)
    expected = [[first + at, first + at + 1] for first in (0, 100) for at in range(0, 8, 2)]
    assert sorted(got + whole(other)[0]) == expected


class Own:
    """A user's sampler of many indices, all of which have to be drawn again."""

    n = 3000

    def __iter__(self) -> Iterator[int]:
        return iter([index * 7 % self.n for index in range(self.n)])

    def __len__(self) -> int:
        return self.n


@pytest.mark.parametrize("how", ["for", "async for"])
@pytest.mark.parametrize("workers", [(0,), (2, 0)])
def test_far_into_orders_that_take_long(pool: WorkerPool, how: str, workers: tuple[int, ...]) -> None:
    """They are made in a thread, and a state may be asked for meanwhile."""
    kinds: list[tuple[int, dict[str, Any]]] = [
        (3000, {"batch_size": 2, "sampler": Own()}),
        (70_000, {"batch_size": 1000, "shuffle": True}),
        (70_000, {"batch_size": 1000, "sampler": DistributedSampler(range(70_000), 1, 0)}),
    ]
    for n, arguments in kinds:

        def make(count: int, n: int = n, arguments: Any = arguments) -> Any:
            return DataLoader(Numbers(n), **arguments, **on(pool, count))

        torch.manual_seed(5)
        expected = whole(make(0))[0]
        last = len(expected)
        torch.manual_seed(5)
        assert in_parts(make, [0, last // 2, last // 2, last - 1, last], workers, how)[0] == expected


class Calls(Numbers):
    """One with indices that has a state: which call it is."""

    calls = 0

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return 1000 * self.calls + index

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


@pytest.mark.parametrize("how", ["for", "async for"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_with_indices_that_has_a_state(pool: WorkerPool, how: str, workers: int) -> None:
    def make(_: int) -> Any:
        return DataLoader(Calls(40), 3, seed=1, **on(pool, workers))

    expected = whole(make(0), how)[0]
    assert in_parts(make, [0, 1, 5, 6, len(expected)], how=how)[0] == expected


@pytest.mark.parametrize("how", ["for", "async for"])
@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_with_a_state_in_debug_mode(how: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    for dataset in (Calls, BreakingWithState):

        def make(_: int, dataset: Any = dataset) -> Any:
            return DataLoader(dataset(40), 3, num_workers=workers)

        expected = whole(make(0), how)[0]
        assert in_parts(make, [0, 1, 3], how=how)[0] == expected
