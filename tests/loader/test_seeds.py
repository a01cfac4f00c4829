"""With `seed=`, and for async datasets, a sample's random numbers are a function of (seed, epoch, index) alone."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import StackDataset, Subset

import aloader
from aloader import DataLoader
from aloader.datasets import ObjectDataset
from aloader.sampling.keys import epoch_key, sample_key
from aloader.storage import MemoryStore

from . import draws
from .draws import AsyncDrawing, AsyncReading, AsyncTogether, Drawing, Reading, Together, Turning, collate, left_alone
from .samples import Numbers, as_list

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

N = 14

KINDS: dict[str, Any] = {
    "ordinary": Drawing(N),
    "async": AsyncDrawing(N),
    "together": Together(N),
    "async together": AsyncTogether(N),
    "turning": Turning(N),
    "subset": Subset(Drawing(N), range(N)),
    "subset of async": Subset(AsyncDrawing(N), range(N)),
    "stack": StackDataset(AsyncDrawing(N), Drawing(N)),
}


def epochs(dataset: Any, how: str = "for", count: int = 1, **arguments: Any) -> list[Any]:
    """The batches of so many epochs of one loader. The user's own generators are left alone."""
    arguments = {"batch_size": 4, "shuffle": False, "seed": 7, "collate_fn": collate} | arguments
    if arguments["batch_size"] is None:
        arguments["collate_fn"] = as_list

    async def awaited() -> list[Any]:
        async with DataLoader(dataset, **arguments) as loader:
            return [[batch async for batch in loader] for _ in range(count)]

    def plainly() -> list[Any]:
        with DataLoader(dataset, **arguments) as loader:
            return [list(loader) for _ in range(count)]

    return left_alone(plainly if how == "for" else lambda: asyncio.run(awaited()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_the_same_wherever_and_whenever_samples_are_made(kind, monkeypatch):
    dataset = KINDS[kind]
    if kind == "turning":  # in this process, one has to show that one is async
        expected = epochs(dataset, num_workers=1, count=2)
        assert epochs(dataset, "async for", 2, num_workers=3, persistent_workers=True) == expected
        return
    expected = epochs(dataset, num_workers=0, count=2)
    assert epochs(dataset, "async for", 2, num_workers=0) == expected
    assert epochs(dataset, "async for", 2, num_workers=3, persistent_workers=True) == expected
    if kind == "async":
        for concurrency, workers in ((1, 0), (1, 2), (8, 2), (64, 0)):
            assert epochs(dataset, "async for", 2, num_workers=workers, concurrency=concurrency) == expected
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    for workers, how in itertools.product((0, 2), ("for", "async for")):
        assert epochs(dataset, how, 2, num_workers=workers) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ordinary", "async", "turning"])
def test_unbatched_samples_draw_what_they_draw_in_batches(kind, monkeypatch):
    """Only the batch has generators of its own."""
    dataset, here = KINDS[kind], int(kind == "turning")
    [batches] = epochs(dataset, num_workers=here)
    expected = [sample for samples, _ in batches for sample in samples]
    for workers in (here, 2):
        assert epochs(dataset, "async for", num_workers=workers, batch_size=None) == [expected]
    [batches] = epochs(dataset, num_workers=here, batch_size=3)
    assert [sample for samples, _ in batches for sample in samples] == expected
    if kind != "turning":
        monkeypatch.setenv("ALOADER_DEBUG", "1")
        assert epochs(dataset, num_workers=2, batch_size=None) == [expected]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "workers"), [(Reading(), 2), (AsyncReading(), 1)], ids=["ordinary, 2 workers", "async, 1 worker"]
)
def test_an_iterable_datasets_numbers_go_by_the_share_and_the_place_in_it(dataset, workers, monkeypatch):
    expected = epochs(dataset, num_workers=workers, count=2)
    assert epochs(dataset, "async for", 2, num_workers=workers, persistent_workers=True) == expected
    if workers == 1:
        assert epochs(dataset, num_workers=0, count=2) == expected
        assert epochs(dataset, "async for", 2, num_workers=0) == expected
    [alone] = epochs(dataset, num_workers=workers, batch_size=None)
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    assert epochs(dataset, num_workers=workers, count=2) == expected
    assert epochs(dataset, "async for", num_workers=workers, batch_size=None) == [alone]


def flat(batches: Any) -> list[float]:
    return list(itertools.chain(*([*first, *second] for samples, _ in batches for _, first, second in samples)))


def test_samples_epochs_and_seeds_have_numbers_of_their_own():
    first, second = epochs(Drawing(N), count=2)
    [other] = epochs(Drawing(N), seed=8)
    for_batches = [number for batches in (first, second, other) for _, numbers in batches for number in numbers]
    numbers = [*flat(first), *flat(second), *flat(other), *for_batches]
    assert len(set(numbers)) == len(numbers)


def test_set_epoch_says_which_numbers_come():
    first, second = epochs(Drawing(N), count=2)
    with DataLoader(Drawing(N), 4, seed=7, collate_fn=collate) as loader:
        loader.set_epoch(1)
        assert list(loader) == second
        loader.set_epoch(0)
        assert list(loader) == first
        assert list(loader) == second


def test_the_generators_are_seeded_from_the_samples_number():
    [[(samples, _)]] = epochs(Drawing(1))
    number = sample_key(epoch_key(7, 0), 0)
    left_alone_by_others = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(number)
    np.random.seed(number >> 32)
    torch.manual_seed(number)
    expected = draws.drawn()
    random.setstate(left_alone_by_others[0])
    np.random.set_state(left_alone_by_others[1])
    torch.set_rng_state(left_alone_by_others[2])
    assert samples[0][1][:-1] == expected


@pytest.mark.slow
def test_an_async_dataset_without_a_seed_follows_torchs(monkeypatch):
    def loaded(workers: int, seed: int) -> Any:
        torch.manual_seed(seed)
        with DataLoader(AsyncDrawing(N), 4, num_workers=workers, collate_fn=as_list) as loader:
            return [list(loader) for _ in range(2)]

    expected = loaded(2, 5)
    assert loaded(0, 5) == loaded(1, 5) == expected
    assert loaded(0, 6) != expected
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    assert loaded(2, 5) == expected


def of_the_batch(samples: Any) -> Any:
    return float(aloader.sample_rng().random())


@pytest.mark.slow
def test_a_batchs_rng_without_a_seed_follows_torchs_too():
    def loaded(workers: int) -> Any:
        torch.manual_seed(5)
        with DataLoader(AsyncDrawing(N), 4, num_workers=workers, collate_fn=of_the_batch) as loader:
            return list(loader)

    assert loaded(0) == loaded(1)


class FromRng(Numbers):
    """For threads: draws from nothing but the sample's own generator."""

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        rng = aloader.sample_rng()
        return index, float(rng.random()), rng is aloader.sample_rng(), float(aloader.sample_rng().random())


class AsyncFromRng(FromRng):
    """The same in tasks and a thread of the sample's."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        async def part() -> float:
            return float(aloader.sample_rng().random())

        await asyncio.sleep(draws.in_any_time())
        first = [*await asyncio.gather(part(), part()), await asyncio.to_thread(lambda: aloader.sample_rng().random())]
        return index, first, aloader.sample_rng() is aloader.sample_rng()


@pytest.mark.slow
def test_threads_have_sample_rng():
    expected = epochs(FromRng(N), num_workers=0)
    assert all(same for samples, _ in expected[0] for _, _, same, _ in samples)
    assert epochs(FromRng(N), num_workers=2, concurrency=8) == expected


@pytest.mark.slow
def test_tasks_and_threads_of_a_sample_have_its_rng():
    expected = epochs(AsyncFromRng(N), num_workers=0)
    assert epochs(AsyncFromRng(N), "async for", num_workers=2) == expected


@pytest.mark.slow
def test_a_transform_of_our_own_datasets_draws_for_its_sample():
    store = MemoryStore({f"{n}": b"%d" % n for n in range(N)})

    def transform(data: bytes) -> Any:
        return data, draws.with_rng()

    dataset = ObjectDataset(store, [f"{n}" for n in range(N)], bytes, transform, decode_threads=2)
    expected = epochs(dataset, num_workers=0)
    assert epochs(dataset, "async for", num_workers=2) == expected


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_without_a_seed_sample_rng_follows_torchs_generator(workers):
    def loaded(seed: int) -> Any:
        torch.manual_seed(seed)
        with DataLoader(FromRng(N), 4, num_workers=workers, collate_fn=as_list) as loader:
            return [[(first, second) for _, first, _, second in batch] for batch in loader]

    numbers = [number for batch in loaded(5) for pair in batch for number in pair]
    assert len(set(numbers)) == 2 * N
    assert loaded(5) == loaded(5)
    assert loaded(6) != loaded(5)


def test_outside_of_samples_there_is_no_sample_rng():
    with pytest.raises(RuntimeError, match="call sample_rng\\(\\) first and hand the generator over"):
        aloader.sample_rng()
    with DataLoader(Drawing(3), seed=1, collate_fn=as_list) as loader:
        for _ in loader:
            with pytest.raises(RuntimeError, match="no"):
                aloader.sample_rng()


@pytest.mark.parametrize("kind", ["ordinary", "async", "subset of async"])
def test_replay_draws_again_what_was_drawn_in_the_latest_epoch(kind):
    with DataLoader(KINDS[kind], 4, seed=7, collate_fn=collate) as loader:
        for _ in range(2):
            samples = [sample for batch, _ in loader for sample in batch]
            assert left_alone(lambda: loader.replay(9)) == samples[9]


def test_replay_before_the_first_epoch_draws_for_it():
    with DataLoader(Drawing(N), seed=7, collate_fn=as_list) as loader:
        sample = loader.replay(3)
        assert list(loader)[3] == [sample]
