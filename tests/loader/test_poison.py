"""A sample that ends whichever process meets it is found and named, and the rest of the epoch comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aloader import DataLoader, WorkerLost, WorkerPool

from .dying import Async, Fate, Mortal, Together, restarts, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

N = 24
IN_ORDER = [[i, i + 1] for i in range(0, N, 2)]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


def poisoned(dataset: Any, pool: WorkerPool, **more: Any) -> tuple[dict[int, Any], int]:
    """By the places of errors, the sample that each names; and how often a worker was replaced. The rest is there."""
    with DataLoader(dataset, 2, num_workers=2, pool=pool, **more) as loader, restarts() as told:
        got = run(loader)
    errors = {seq: one for seq, one in enumerate(got) if isinstance(one, Exception)}
    assert all(isinstance(error, WorkerLost) for error in errors.values()), errors
    assert all(f"sample {error.sample}" in str(error) for error in errors.values())
    assert [one for one in got if not isinstance(one, Exception)] == [
        batch for seq, batch in enumerate(IN_ORDER) if seq not in errors
    ]
    return {seq: error.sample for seq, error in errors.items()}, len(told)


@pytest.mark.parametrize("dataset", [Mortal, Async])
def test_it_is_named_after_three_deaths_and_nothing_else_is_lost(pool, tmp_path, dataset):
    assert poisoned(dataset(Fate(tmp_path / "fate", always=(5,))), pool) == ({2: 5}, 3)


def test_also_where_one_call_fetches_the_whole_batch(pool, tmp_path):
    places, told = poisoned(Together(Fate(tmp_path / "fate", always=(5,))), pool)
    assert places == {2: 5}
    assert told <= 4


def test_also_in_threads(pool, tmp_path):
    places, told = poisoned(Mortal(Fate(tmp_path / "fate", always=(5,))), pool, concurrency=4)
    assert places == {2: 5}
    assert told <= 4


def test_two_of_them_take_nothing_from_the_restarts_of_others(pool, tmp_path):
    fate = Fate(tmp_path / "fate", always=(1, 22), once=(23,))
    with DataLoader(Mortal(fate), 1, num_workers=2, pool=pool, max_worker_restarts=3) as loader, restarts() as told:
        got = run(loader)
    assert [one.sample if isinstance(one, WorkerLost) else one for one in got] == [
        index if index in (1, 22) else [index] for index in range(N)
    ]
    assert len(told) == 7


def test_two_in_one_batch_are_one_error(pool, tmp_path):
    assert poisoned(Mortal(Fate(tmp_path / "fate", always=(4, 5))), pool) == ({2: 4}, 3)


def test_three_deaths_at_three_samples_of_a_batch_are_nobodys_fault(pool, tmp_path):
    fate = Fate(tmp_path / "fate", once=(8, 9, 10, 11))
    with DataLoader(Mortal(fate), 4, num_workers=2, pool=pool, max_worker_restarts=9) as loader, restarts() as told:
        assert run(loader) == [list(range(i, i + 4)) for i in range(0, N, 4)]
    assert len(told) == 4


@pytest.mark.parametrize("on_error", ["skip", "drop"])
def test_where_bad_samples_are_left_out_it_is_left_out(pool, tmp_path, on_error):
    dataset = Mortal(Fate(tmp_path / "fate", always=(5,)))
    with DataLoader(dataset, 2, num_workers=2, pool=pool, on_error=on_error) as loader, restarts() as told:
        got = run(loader)
    assert got[:2] + got[3:] == IN_ORDER[:2] + IN_ORDER[3:]
    assert got[2] == ([4, 4] if on_error == "skip" else [4])
    assert len(told) == 3
