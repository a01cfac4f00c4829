"""A state may be asked for at any moment, and asking changes nothing."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from aloader import DataLoader, WorkerPool

from .resuming import SAMPLERS, Delayed, N, in_parts, plain, through_json, told, whole
from .samples import AsyncNumbers, Numbers
from .streams import Counting

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create")]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


def on(pool: WorkerPool, workers: int) -> dict[str, Any]:
    return {"pool": pool, "num_workers": workers} if workers else {}


class Held(AsyncNumbers):
    """Sample `held` does not come before the others that are wanted."""

    def __init__(self, n: int, held: int) -> None:
        super().__init__(n)
        self.held = held

    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0.25 if index == self.held else 0)  # sleep: a store that is slow for once
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_without_order_what_came_before_its_turn_does_not_come_again(pool: WorkerPool, workers: int) -> None:
    def make(held: int) -> Any:
        return DataLoader(Held(24, held), batch_size=2, in_order=False, **on(pool, workers))

    async def first(loader: Any, count: int) -> tuple[list[Any], dict[str, Any]]:
        async with loader:
            iterator = aiter(loader)
            return [plain(await anext(iterator)) for _ in range(count)], through_json(loader.state_dict())

    async def rest(loader: Any) -> list[Any]:
        async with loader:
            return [plain(batch) async for batch in loader]

    got, state = asyncio.run(first(make(3), 3))
    assert [2, 3] not in got
    assert state["batches"] <= 1
    assert state["batches"] + int(state["beyond"], 16).bit_count() == 3
    loader = make(14)
    loader.load_state_dict(state)
    assert through_json(loader.state_dict()) == state
    more, state = asyncio.run(first(loader, 4))
    assert state["batches"] + int(state.get("beyond", "0"), 16).bit_count() == 7
    loader = make(3)
    loader.load_state_dict(state)
    last = asyncio.run(rest(loader))
    assert sorted(got + more + last) == [[at, at + 1] for at in range(0, 24, 2)]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_are_kept_go_back_to_a_state(pool: WorkerPool, workers: int) -> None:
    loader = DataLoader(Numbers(N), 4, shuffle=True, seed=2, persistent_workers=True, **on(pool, workers))
    expected = whole(DataLoader(Numbers(N), 4, shuffle=True, seed=2), epochs=3)
    iterator = iter(loader)
    assert [plain(next(iterator)) for _ in range(5)] == expected[0][:5]
    state = through_json(loader.state_dict())
    assert [plain(next(iterator)) for _ in range(2)] == expected[0][5:7]
    loader.load_state_dict(state)
    assert [plain(batch) for batch in loader] == expected[0][5:]
    after = loader.state_dict()
    assert [plain(batch) for batch in loader] == expected[1]
    loader.load_state_dict(state)
    assert [plain(batch) for batch in loader] == expected[0][5:]
    loader.load_state_dict(after)
    assert [[plain(batch) for batch in loader] for _ in range(2)] == expected[1:]
    del iterator
    loader.close()


@pytest.mark.asyncio
@pytest.mark.usefixtures("nothing_left")
async def test_asked_by_another_task_while_a_batch_is_waited_for() -> None:
    opened = asyncio.Event()

    class Gated(Numbers):
        async def __getitem__(self, index: int) -> int:  # type: ignore[override]
            if index >= 8:
                await opened.wait()
            return index

    async with DataLoader(Gated(20), 4) as loader:
        iterator = aiter(loader)
        assert [plain(await anext(iterator)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        waiting = asyncio.create_task(anext(iterator))
        await asyncio.sleep(0)
        state = through_json(loader.state_dict())
        assert state["batches"] == 2
        assert not waiting.done()
        opened.set()
        assert plain(await waiting) == [8, 9, 10, 11]
        assert loader.state_dict()["batches"] == 3
    async with DataLoader(Gated(20), 4) as other:
        other.load_state_dict(state)
        assert [plain(batch) async for batch in other] == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("when", ["before the first epoch", "between epochs", "with an iterator"])
def test_a_state_before_the_first_batch_says_what_this_loader_is_going_to_give(name: str, when: str) -> None:
    """Also where the program draws random numbers before it begins."""
    loader = DataLoader(Numbers(N), **SAMPLERS[name]())
    if when == "between epochs":
        list(loader)
        loader.set_epoch(1)
    iterator = iter(loader) if when == "with an iterator" else None
    state = through_json(loader.state_dict())
    torch.rand(100)
    assert through_json(loader.state_dict()) == state
    got = [plain(batch) for batch in (iterator or loader)]
    torch.rand(100)
    other = DataLoader(Numbers(N), **SAMPLERS[name]())
    other.load_state_dict(state)
    assert [plain(batch) for batch in other] == got


class Fails(Numbers):
    """One sample cannot be had."""

    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise LookupError("gone")
        return index


class FailsAsync(Fails):
    """The same, async."""

    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [Fails, FailsAsync])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_failed_comes_again_unless_the_program_went_on(pool: WorkerPool, kind: Any, workers: int) -> None:
    loader = DataLoader(kind(20), 4, **on(pool, workers))
    iterator = iter(loader)
    assert [plain(next(iterator)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(LookupError):
        next(iterator)
    failed = through_json(loader.state_dict())
    assert plain(next(iterator)) == [12, 13, 14, 15]
    went_on = through_json(loader.state_dict())
    del iterator
    loader.close()
    for state, expected in (
        (failed, [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]),
        (went_on, [[16, 17, 18, 19]]),
    ):
        mended = DataLoader(Numbers(20), 4, **on(pool, workers))
        mended.load_state_dict(state)
        assert whole(mended) == [expected]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [Numbers(20), AsyncNumbers(20), Counting(20)])
def test_after_break_and_after_closing_it_is_behind_the_last_batch(
    pool: WorkerPool, workers: int, dataset: Any
) -> None:
    loader = DataLoader(dataset, 4, **on(pool, workers))
    for at, _ in enumerate(loader):
        if at == 1:
            break
    state = loader.state_dict()
    loader.close()
    assert state == loader.state_dict()
    other = DataLoader(dataset, 4, **on(pool, workers))
    other.load_state_dict(state)
    assert whole(other) == [[[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]]


@pytest.mark.parametrize("name", ["shuffle", "shuffle, generator", "user's stateful", "user's stateful iterator"])
@pytest.mark.parametrize("how", ["for", "async for"])
def test_in_debug_mode(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    expected = whole(DataLoader(Numbers(N), **SAMPLERS[name]()))[0]
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    for workers in (0, 2):
        for dataset in (Numbers(N), Delayed(worst=0)):
            torch.manual_seed(5)

            def make(count: int, dataset: Any = dataset) -> Any:
                return DataLoader(dataset, **SAMPLERS[name](), num_workers=count)

            assert in_parts(make, [0, 1, 6, 11, 12], (workers,), how)[0] == expected


def test_a_copy_of_a_loader_begins_anew_and_takes_a_state() -> None:
    loader = DataLoader(Numbers(20), 4, shuffle=True, seed=1)
    iterator = iter(loader)
    next(iterator)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict()["batches"] == 0
    copy.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in copy] == [plain(batch) for batch in iterator]


class Drawing(Numbers):
    """Draws from all global generators."""

    def __getitem__(self, index: int) -> list[float]:  # type: ignore[override]
        return [index, random.random(), float(np.random.rand()), float(torch.rand(()))]


def seeded() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def left() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


@pytest.mark.parametrize("name", SAMPLERS)
def test_asking_changes_neither_the_batches_nor_anybodys_random_numbers(name: str) -> None:
    def epochs(asked: bool) -> list[Any]:
        seeded()
        loader = DataLoader(Drawing(N), **SAMPLERS[name]())
        got: list[Any] = []
        for _ in range(2):
            for at, batch in enumerate(told(loader)):
                got.append(str(batch))
                if asked and at % 3 == 1:
                    loader.state_dict()
        return [*got, left()]

    assert epochs(asked=True) == epochs(asked=False)


@pytest.mark.parametrize("name", ["shuffle", "user's stateful", "subset, global"])
def test_the_same_with_workers(pool: WorkerPool, name: str) -> None:
    def epochs(asked: bool) -> list[Any]:
        seeded()
        loader = DataLoader(Drawing(N), **SAMPLERS[name](), **on(pool, 2))
        got: list[Any] = []
        for batch in loader:
            got.append(str(batch))
            if asked:
                loader.state_dict()
        loader.close()
        return [*got, left()]

    assert epochs(asked=True) == epochs(asked=False)


@pytest.mark.parametrize("name", ["shuffle", "weighted", "subset, global", "user's stateful"])
def test_going_on_draws_from_nobodys_generators(name: str) -> None:
    loader = DataLoader(Numbers(N), **SAMPLERS[name]())
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    other = DataLoader(Numbers(N), **SAMPLERS[name]())
    other.load_state_dict(state)
    seeded()
    list(other)
    drawn = left()
    seeded()
    assert left() == drawn


class OfTheGlobalGenerator(Numbers):
    """Its state is that of torch's global generator, from which the loader's sampler draws its seed, too."""

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])


def test_what_a_state_between_epochs_draws_is_drawn_before_the_dataset_is_asked():
    def loader() -> DataLoader[Any]:
        return DataLoader(OfTheGlobalGenerator(), batch_size=4, shuffle=True)

    def epochs(one: DataLoader[Any], count: int) -> list[Any]:
        return [[batch.tolist() for batch in one] for _ in range(count)]

    torch.manual_seed(0)
    whole = epochs(loader(), 4)
    torch.manual_seed(0)
    first = loader()
    begun = epochs(first, 2)
    second = loader()
    second.load_state_dict(through_json(first.state_dict()))
    assert begun + epochs(second, 2) == whole
