"""`loader.with_info()`: what is known of each batch, by `for` and `async for`, with and without workers."""

from __future__ import annotations

import dataclasses

import pytest

from aloader import BatchInfo, DataLoader

from .samples import AsyncNumbers, Failing, Numbers, as_list

pytestmark = pytest.mark.usefixtures("nothing_left")

KINDS = [(Numbers, 0), (Numbers, 2), (AsyncNumbers, 0), (AsyncNumbers, 2)]


def look(pairs, workers):
    assert [info.seq for _, info in pairs] == list(range(6))
    for batch, info in pairs:
        assert batch.tolist() == info.indices == info.keys
        assert info.worker == (info.seq % workers if workers else None)
        assert info.waited >= 0
    assert sum(info.waited for _, info in pairs) > 0
    return {info.epoch for _, info in pairs}


@pytest.mark.parametrize(("dataset", "workers"), KINDS)
def test_each_batch_comes_with_what_it_is(dataset, workers):
    with DataLoader(dataset(23), batch_size=4, shuffle=True, num_workers=workers) as loader:
        informed = loader.with_info()
        assert look(list(informed), workers) == {1}
        for _ in loader:
            pass
        assert look(list(informed), workers) == {3}


@pytest.mark.asyncio
@pytest.mark.parametrize(("dataset", "workers"), KINDS)
async def test_each_batch_comes_with_what_it_is_async(dataset, workers):
    async with DataLoader(dataset(23), batch_size=4, num_workers=workers) as loader:
        assert look([pair async for pair in loader.with_info()], workers) == {1}
        assert look([pair async for pair in loader.with_info()], workers) == {2}


@pytest.mark.parametrize("workers", [0, 1])
def test_without_batches_the_index_is_one(workers):
    keys = ["b", "a"]
    with DataLoader({"a": 1, "b": 2}, batch_size=None, sampler=keys, num_workers=workers) as loader:
        assert [(value, info.keys) for value, info in loader.with_info()] == [(2, "b"), (1, "a")]


@pytest.mark.parametrize("workers", [0, 1])
def test_after_a_failure_the_next_one_is_told_right(workers):
    with DataLoader(Failing("value"), batch_size=2, num_workers=workers, collate_fn=as_list) as loader:
        pairs = iter(loader.with_info())
        got = [next(pairs)[1].seq for _ in range(2)]
        with pytest.raises(ValueError, match="bad sample"):
            next(pairs)
        got += [info.seq for batch, info in pairs if batch == info.indices]
    assert got == [0, 1, 3, 4, 5]


def test_by_arrival_each_has_its_own():
    with DataLoader(Numbers(40), batch_size=4, num_workers=2, in_order=False) as loader:
        pairs = list(loader.with_info())
    assert sorted(info.seq for _, info in pairs) == list(range(10))
    assert all(batch.tolist() == info.indices for batch, info in pairs)
    assert {info.worker for _, info in pairs} <= {0, 1}


def test_persistent_workers_and_the_length():
    with DataLoader(Numbers(8), batch_size=4, num_workers=1, persistent_workers=True) as loader:
        for epoch in (1, 2):
            pairs = iter(loader.with_info())
            assert len(pairs) == 2
            assert [info.epoch for _, info in pairs] == [epoch] * 2


def test_an_info_is_frozen():
    info = BatchInfo(0, [1], None, 0.0, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.seq = 1  # type: ignore[misc]
