"""An order follows from (n, seed, epoch) alone, has every sample once, and any part of it can be had at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aloader.sampling.permutation import MOST, SORTED_UP_TO, Permutation

BORDER = SORTED_UP_TO
INTEGERS = st.integers(-(2**70), 2**70)


def whole(n: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return Permutation(n, seed, epoch).slice(0, n).tolist()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.one_of(st.integers(0, 3000), st.integers(BORDER - 3, BORDER + 3), st.integers(1, 2**18)), INTEGERS, INTEGERS)
@example(0, 0, 0)
@example(1, 0, 0)
@example(BORDER - 1, 1, 1)
@example(BORDER, 1, 1)
@example(BORDER + 1, 1, 1)
@example(2**17, 1, 1)
@example(2**17 + 1, 1, 1)
@example(65_539, 2, 3)  # primes
@example(131_101, 2, 3)
@example(65_521, 2, 3)
def test_every_sample_comes_once(n: int, seed: int, epoch: int) -> None:
    order = Permutation(n, seed, epoch).slice(0, n)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2**17), st.integers(0, 2**17), st.integers(0, 500), st.integers(1, 700), INTEGERS)
def test_a_part_is_that_of_the_whole(n: int, start: int, length: int, step: int, seed: int) -> None:
    permutation = Permutation(n, seed, 3)
    start = min(start, n)
    stop = min(n, start + length * step)
    assert permutation.slice(start, stop, step).tolist() == permutation.slice(0, n)[start:stop:step].tolist()


@pytest.mark.parametrize("n", [10**9, 2**40 - 1, 2**53 + 1, MOST - 1, MOST])
def test_a_part_of_a_long_order_takes_no_memory(n: int) -> None:
    tracemalloc.start()
    try:
        seen: set[int] = set()
        for start in range(0, n - 5000, n // 7):
            part = Permutation(n, 1, 2).slice(start, start + 1000).tolist()
            assert part == Permutation(n, 1, 2).slice(start - start % 2, start + 1000).tolist()[start % 2 :]
            assert all(0 <= index < n for index in part)
            seen.update(part)
        assert len(seen) == 1000 * len(range(0, n - 5000, n // 7)), "no sample twice"
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_the_order_is_fixed_for_ever() -> None:
    """Whoever changes one of these changes what everybody's runs read: take another version of the state for that."""
    assert whole(10) == [7, 0, 8, 5, 3, 6, 4, 1, 2, 9]
    assert whole(10, seed=1) == [0, 1, 2, 4, 5, 3, 7, 6, 9, 8]
    assert whole(10, epoch=1) == [4, 6, 7, 0, 9, 1, 3, 2, 5, 8]
    assert whole(10, seed=-1, epoch=2) == [0, 5, 4, 3, 6, 2, 9, 8, 7, 1]


@pytest.mark.parametrize(
    ("n", "seed", "epoch", "start", "expected"),
    [
        (BORDER, 5, 6, 60_000, [64659, 3757, 44683, 22752]),
        (BORDER + 1, 5, 6, 60_000, [43040, 27302, 17524, 20539]),
        (10**9, 0, 0, 0, [560302118, 109594329, 726912167, 926469228]),
        (10**9, 7, 3, 256_000_000, [746557311, 138902766, 142628753, 739064218]),
        (MOST, 0, 0, MOST - 3, [3650061827617834762, 2789020854341847148, 2853646524550287145]),
    ],
)
def test_long_orders_are_fixed_for_ever(n: int, seed: int, epoch: int, start: int, expected: list[int]) -> None:
    assert Permutation(n, seed, epoch).slice(start, start + len(expected)).tolist() == expected


@pytest.mark.parametrize("n", [50, 1000, BORDER, BORDER + 1, 100_003])
def test_seeds_epochs_and_lengths_have_nothing_in_common(n: int) -> None:
    """Any two orders agree in about one place, as two random ones do, and their ranks are not correlated."""
    named = [(n, 0, 0), (n, 1, 0), (n, 0, 1), (n, 1, 1), (n, 2, 0), (n, -1, 0), (n, 2**64, 0), (n + 1, 0, 0)]
    orders = [Permutation(*name).slice(0, name[0])[: n - 1] for name in named]
    for at, one in enumerate(orders):
        for other in orders[at + 1 :]:
            assert np.count_nonzero(one == other) <= 8  # 9 and more: once in a million pairs
            assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / np.sqrt(n)


def test_all_orders_of_four_come_equally_often() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2400):
        order = tuple(whole(4, seed=seed))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 49.7  # chi-square of 23: once in a thousand
