"""Whoever goes on from a state gets what would have come without an interruption: of every sampler, at every place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from aloader import DataLoader, WorkerPool

from .resuming import DRAWING, GLOBAL, SAMPLERS, Delayed, N, in_parts, read, whole
from .samples import Numbers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

#: The beginning, the first batch, somewhere in the middle, the last batch, the end: and all of these one after the
#: other, in one epoch.
PLACES = [[0], [1], [6], [11], [12], [0, 1, 6, 6, 11, 12]]

SEEDED: dict[str, dict[str, Any]] = {
    "seed": {"shuffle": True, "seed": 5},
    "seed, in order": {"seed": 5},
    "ranks": {"distributed": (1, 3)},
    "shuffled ranks": {"distributed": (1, 3), "shuffle": True},
    "ranks with a seed": {"distributed": (2, 3), "shuffle": True, "seed": 5},
}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


def on(pool: WorkerPool, workers: int) -> dict[str, Any]:
    """The arguments of a loader with so many workers."""
    return {"pool": pool, "num_workers": workers} if workers else {}


def as_torch_gives_it(name: str) -> list[list[Any]]:
    """Two epochs by torch's loader."""
    loader = TorchLoader(Numbers(N), **SAMPLERS[name]())
    epochs = []
    for epoch in range(2):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        epochs.append([batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader])
    return epochs


def same(name: str, got: list[list[Any]], expected: list[list[Any]]) -> bool:
    """The next epoch, too, where it does not follow from a global generator."""
    return got[0] == expected[0] if name in GLOBAL else got == expected


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("how", ["for", "async for"])
def test_every_sampler_at_every_place_without_workers(name: str, how: str) -> None:
    torch.manual_seed(5)
    expected = as_torch_gives_it(name)
    assert len(expected[0]) == 12
    for dataset in (Numbers(N), Delayed()):
        for cuts in PLACES:
            torch.manual_seed(5)
            got = in_parts(lambda _, dataset=dataset: DataLoader(dataset, **SAMPLERS[name]()), cuts, how=how)
            assert same(name, got, expected), (dataset, cuts)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_with_another_number_of_workers_each_time(pool: WorkerPool, name: str) -> None:
    at = list(SAMPLERS).index(name)
    how = ("for", "async for")[at % 2]
    dataset = (Numbers(N), Delayed())[at // 2 % 2]
    concurrency = {} if type(dataset) is Numbers else {"concurrency": (1, 8, 64)[at % 3]}
    torch.manual_seed(5)
    expected = as_torch_gives_it(name)
    torch.manual_seed(5)

    def make(workers: int) -> Any:
        return DataLoader(dataset, **SAMPLERS[name](), **on(pool, workers), **concurrency)

    got = in_parts(make, [0, 1, 6, 11, 12], ((2, 1, 0, 1, 2, 0), (1, 2, 0))[at % 2], how)
    assert same(name, got, expected)


@pytest.mark.parametrize("name", ["shuffle", "user's stateful", "unbatched"])
def test_seven_workers_draw_far_ahead(pool: WorkerPool, name: str) -> None:
    torch.manual_seed(5)
    expected = as_torch_gives_it(name)
    torch.manual_seed(5)
    got = in_parts(lambda workers: DataLoader(Numbers(N), **SAMPLERS[name](), **on(pool, workers)), [1, 6], (7, 7, 2))
    assert same(name, got, expected)


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("how", ["for", "async for"])
def test_with_a_seed_or_ranks_the_next_epochs_follow_too(pool: WorkerPool, name: str, how: str) -> None:
    arguments: dict[str, Any] = {"batch_size": 4 if "ranks" not in name else 2, **SEEDED[name]}
    expected = whole(DataLoader(Numbers(N), **arguments), epochs=2)
    last = len(expected[0])
    for cuts in ([0], [1], [last // 2], [last - 1], [last], [0, 1, last // 2, last - 1, last]):
        for dataset in (Numbers(N), Delayed()):
            got = in_parts(lambda _, dataset=dataset: DataLoader(dataset, **arguments), cuts, how=how)
            assert got == expected, (dataset, cuts)
    got = in_parts(lambda w: DataLoader(Numbers(N), **arguments, **on(pool, w)), [1, 5, last], (2, 1, 0, 2), how)
    assert got == expected


@pytest.mark.parametrize("how", ["for", "async for"])
@pytest.mark.parametrize("concurrency", [1, 8, 64])
def test_samples_that_come_in_any_order(pool: WorkerPool, how: str, concurrency: int) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "concurrency": concurrency}
    expected = whole(DataLoader(Numbers(N), batch_size=4, shuffle=True, seed=3), epochs=2)
    for cuts, workers in (([1, 6, 11], (0, 2)), ([0, 7, 12], (1, 0)), ([3, 4, 5, 6], (0,))):
        got = in_parts(lambda w: DataLoader(Delayed(), **arguments, **on(pool, w)), cuts, workers, how)
        assert got == expected


@pytest.mark.parametrize("name", [*SAMPLERS, *SEEDED])
def test_a_state_is_small_and_says_nothing_of_the_order(name: str) -> None:
    arguments: dict[str, Any] = SAMPLERS[name]() if name in SAMPLERS else {"batch_size": 4, **SEEDED[name]}
    small = "stateful" not in name and name not in DRAWING  # of which it holds a generator's state
    for at in (0, 3):
        _, state = read(DataLoader(Numbers(N), **arguments), at)
        assert len(json.dumps(state)) < (2048 if small else 8192), state


@pytest.mark.parametrize("name", ["shuffle, generator", "user's stateful", "torch's distributed", "user's, by epoch"])
@pytest.mark.parametrize("workers", [0, 2])
def test_after_the_end_both_this_loader_and_another_give_the_next_epoch(
    pool: WorkerPool, name: str, workers: int
) -> None:
    expected = as_torch_gives_it(name)
    loader = DataLoader(Numbers(N), **SAMPLERS[name](), **on(pool, workers))
    assert [batch.tolist() for batch in loader] == expected[0]
    loader.set_epoch(1)
    state = loader.state_dict()
    other = DataLoader(Numbers(N), **SAMPLERS[name]())
    other.load_state_dict(state)
    assert (state["epoch"], state["batches"], loader.epoch, other.epoch) == (1, 0, 1, 1)
    assert whole(loader) == whole(other) == [expected[1]]
