"""A state goes on with any number of ranks and workers: all of them together have each sample of the epoch once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from aloader import DataLoader, WorkerPool
from aloader.sampling import ShuffledSampler

from .resuming import read, whole
from .samples import Numbers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

N = 1001
#: Ranks, workers of each, batch size, and batches that each rank has before the next such part (None: the rest).
SAME_STEP = [(4, 3, 6, 10), (2, 1, 12, 8), (3, 5, 8, None)]
SAME_BATCH = [(4, 3, 6, 10), (2, 1, 6, 8), (3, 5, 6, None)]
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(3) as pool:
        yield pool


def by_loader(rank: int, world: int, **arguments: Any) -> Any:
    return DataLoader(Numbers(N), shuffle=True, seed=9, distributed=(rank, world), **arguments)


def evenly(rank: int, world: int, **arguments: Any) -> Any:
    sampler = ShuffledSampler(N, seed=9, rank=rank, world_size=world, ends="even")
    return DataLoader(Numbers(N), sampler=sampler, **arguments)


def by_torchs(rank: int, world: int, **arguments: Any) -> Any:
    return DataLoader(Numbers(N), sampler=DistributedSampler(range(N), world, rank, seed=2), **arguments)


def alike(loader: Any) -> Any:
    """The loader; what each rank's program draws from torch's global generator, all of them draw."""
    torch.manual_seed(3)
    return loader


def of_all_ranks(make: Make, parts: list[Any], workers_of: Callable[[int], dict[str, Any]]) -> list[list[int]]:
    """What all ranks together have in each part."""
    states: list[dict[str, Any]] = [{}]
    had = []
    for world, workers, batch_size, count in parts:
        loaders = [make(rank, world, batch_size=batch_size, **workers_of(workers)) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict(states[0])
        if count is None:
            ranks = [whole(loader)[0] for loader in loaders]
            assert len({len(batches) for batches in ranks}) == 1, "all ranks see the same number of batches"
        else:
            read_ones = [read(alike(loader), count) for loader in loaders]
            ranks, states = [got for got, _ in read_ones], [state for _, state in read_ones]
            assert all(state == states[0] for state in states), "all ranks have the same state"
        had.append([index for batches in ranks for batch in batches for index in batch])
    return had


@pytest.mark.parametrize("parts", [SAME_STEP, SAME_BATCH], ids=["same step", "same batch"])
@pytest.mark.parametrize("make", [by_loader, evenly, by_torchs])
def test_four_ranks_then_two_then_three(make: Make, parts: list[Any]) -> None:
    seen = of_all_ranks(make, parts, lambda _: {})
    counts = Counter(index for part in seen for index in part)
    assert set(counts) == set(range(N))
    repeats = sum(counts.values()) - N
    assert repeats == 0 if make is evenly else repeats <= 2, "only the very end is filled up, to three equal shares"
    assert len(set(seen[0] + seen[1])) == len(seen[0] + seen[1])


def test_the_same_with_three_workers_then_one_then_five(pool: WorkerPool) -> None:
    without = of_all_ranks(evenly, SAME_STEP, lambda _: {})
    assert of_all_ranks(evenly, SAME_STEP, lambda count: {"pool": pool, "num_workers": count}) == without


def test_a_rank_that_is_alone_goes_on_for_all_of_them() -> None:
    seen = of_all_ranks(by_loader, [(3, 0, 4, 11), (1, 0, 12, None)], lambda _: {})
    assert sorted(seen[0] + seen[1]) == list(range(N))


def test_ranks_of_a_sampler_that_cannot_tell_where_the_others_are_cannot_change() -> None:
    class Own:
        """Shares out in its own way."""

        num_replicas = 2

        def __iter__(self) -> Iterator[int]:
            return iter(range(0, N, self.num_replicas))

        def __len__(self) -> int:
            return -(-N // self.num_replicas)

    _, state = read(DataLoader(Numbers(N), 4, sampler=Own()), 3)
    sampler = Own()
    sampler.num_replicas = 3
    loader = DataLoader(Numbers(N), 4, sampler=sampler)
    with pytest.raises(ValueError, match=r"world_size was 2 and is 3 here.*strict=False"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, strict=False)


def test_what_came_before_its_turn_binds_a_state_to_its_ranks() -> None:
    loader = by_loader(0, 2, batch_size=4)
    _, state = read(by_loader(0, 2, batch_size=4), 3)
    loader.load_state_dict(state | {"beyond": "2"})
    with pytest.raises(ValueError, match="world_size was 2 and is 4 here"):
        by_loader(0, 4, batch_size=2).load_state_dict(state | {"beyond": "2"})
