"""Our orders look random: by each of many statistics, they are where torch's permutations are.

What is allowed follows from torch's own: the mean of ours may be five standard errors off, and a single one seven
standard deviations. Seeds are fixed, so that nothing here fails by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from aloader.sampling.permutation import MOST, ROUNDS, SORTED_UP_TO, Permutation

Order = npt.NDArray[np.int64]

RUNS = 24
LENGTHS = [1000, 20_011, SORTED_UP_TO, SORTED_UP_TO + 1, 100_003, 2**17]
LONG = [n for n in LENGTHS if n > SORTED_UP_TO]


def displacement(order: Order) -> float:
    """How far samples are from where they were, on average."""
    return float(np.abs(order - np.arange(len(order))).mean())


def rank_correlation(order: Order) -> float:
    """Spearman's, of position and sample."""
    return float(np.corrcoef(order, np.arange(len(order)))[0, 1])


def neighbours_kept(order: Order) -> float:
    """Neighbours that were neighbours, either way round."""
    return float(np.count_nonzero(np.abs(np.diff(order)) == 1))


def inversions(order: Order) -> float:
    """Pairs in the wrong order, of a sample of pairs that is the same for all."""
    chosen = np.random.default_rng(0).integers(0, len(order), (2, 50_000))
    first, second = chosen.min(0), chosen.max(0)
    return float(np.count_nonzero(order[first] > order[second]))


def uneven_places(order: Order) -> float:
    """Chi-square of a grid of 32 × 32 cells, position against sample."""
    n = len(order)
    cells = np.arange(n) * 32 // n * 32 + order * 32 // n
    return chi_square(cells, 1024)


def uneven_low_bits(order: Order) -> float:
    """The same of the low five bits of position and sample."""
    return chi_square((np.arange(len(order)) & 31) * 32 + (order & 31), 1024)


def uneven_differences(distance: int) -> Callable[[Order], float]:
    """Chi-square of the differences of samples that are so far from one another in the order."""

    def statistic(order: Order) -> float:
        n = len(order)
        return chi_square((order[distance:] - order[:-distance]) % n * 64 // n, 64)

    return statistic


def uneven_changed_bits(distance: int) -> Callable[[Order], float]:
    """The same of the low six bits of their exclusive-or."""

    def statistic(order: Order) -> float:
        return chi_square((order[distance:] ^ order[:-distance]) & 63, 64)

    return statistic


def chi_square(cells: npt.NDArray[Any], kinds: int) -> float:
    counts = np.bincount(cells, minlength=kinds)
    return float(((counts - len(cells) / kinds) ** 2).sum() / (len(cells) / kinds))


def statistics(n: int) -> dict[str, Callable[[Order], float]]:
    distances = [d for d in (1, 2, 16, 256, 512, n // 2) if d < n // 2 + 1]
    named = [displacement, rank_correlation, neighbours_kept, inversions, uneven_places, uneven_low_bits]
    found: dict[str, Callable[[Order], float]] = {statistic.__name__: statistic for statistic in named}
    found |= {f"differences at {distance}": uneven_differences(distance) for distance in distances}
    return found | {f"changed bits at {distance}": uneven_changed_bits(distance) for distance in distances}


def measured(orders: Sequence[Order]) -> dict[str, npt.NDArray[np.float64]]:
    return {
        name: np.array([statistic(order) for order in orders]) for name, statistic in statistics(len(orders[0])).items()
    }


def torchs(n: int, first_seed: int) -> list[Order]:
    seeds = range(first_seed, first_seed + RUNS)
    return [torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy() for seed in seeds]


@pytest.fixture(scope="module")
def usual() -> Callable[[int], dict[str, npt.NDArray[np.float64]]]:
    """What the statistics are of torch's permutations."""
    kept: dict[int, dict[str, npt.NDArray[np.float64]]] = {}

    def of(n: int) -> dict[str, npt.NDArray[np.float64]]:
        if n not in kept:
            kept[n] = measured(torchs(n, 1000))
        return kept[n]

    return of


def unusual(orders: Sequence[Order], usual: dict[str, npt.NDArray[np.float64]]) -> list[str]:
    """The statistics by which these are not like torch's."""
    found = []
    for name, values in measured(orders).items():
        mean, deviation = usual[name].mean(), usual[name].std(ddof=1)
        off = abs(values.mean() - mean) > 5 * deviation * np.sqrt(2 / RUNS)
        if off or (np.abs(values - mean) > 7 * deviation).any():
            found.append(name)
    return found


def ours(n: int, rounds: int = ROUNDS) -> list[Order]:
    return [Permutation(n, 11, epoch, rounds=rounds).slice(0, n) for epoch in range(RUNS)]


@pytest.mark.slow
@pytest.mark.parametrize("n", LENGTHS)
def test_our_orders_are_as_random_as_torchs(n, usual):
    assert unusual(ours(n), usual(n)) == []


@pytest.mark.slow
@pytest.mark.parametrize("n", LENGTHS)
def test_other_seeds_of_torchs_pass_too(n, usual):
    """What is allowed is not so narrow that randomness itself would fail."""
    assert unusual(torchs(n, 5000), usual(n)) == []


@pytest.mark.slow
@pytest.mark.parametrize("n", LENGTHS)
def test_what_is_not_random_is_seen(n, usual):
    straight = np.arange(n)
    rotated = [np.roll(straight, 1 + run * n // RUNS) for run in range(RUNS)]
    assert {"displacement", "rank_correlation", "neighbours_kept", "inversions"} <= {*unusual([straight], usual(n))}
    assert {"neighbours_kept", "uneven_places", "differences at 1"} <= {*unusual(rotated, usual(n))}
    halves = [np.concatenate([order[order < n // 2], order[order >= n // 2]]) for order in torchs(n, 3000)]
    assert {"displacement", "rank_correlation", "inversions"} <= {*unusual(halves, usual(n))}, "each half by itself"


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize("n", LONG)
def test_fewer_rounds_are_seen(n, rounds, usual):
    assert unusual(ours(n, rounds), usual(n))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [6, 7])
@pytest.mark.parametrize("n", LONG)
def test_two_rounds_fewer_than_we_take_cannot_be_told_from_random(n, rounds, usual):
    """So there is something to spare."""
    assert unusual(ours(n, rounds), usual(n)) == []


HUGE = [10**9, 2**33, 2**40 - 1, MOST]


def uneven_part(n: int, step: int, rounds: int = ROUNDS) -> float:
    """The worst of some chi-squares of 50,000 samples at such steps, in standard deviations from what is expected."""
    start = n // 3
    part = Permutation(n, 3, 4, rounds=rounds).slice(start, start + 50_000 * step, step)
    shifted = (part >> np.int64(max(0, n.bit_length() - 40))) if n > 2**40 else part  # so that nothing overflows
    bound = int(shifted.max()) + 1
    differences = np.diff(shifted) % bound
    found = [shifted * 256 // bound, differences * 256 // bound, part & 255, (part[1:] ^ part[:-1]) & 255]
    return max(abs(chi_square(cells, 256) - 255) / np.sqrt(2 * 255) for cells in found)


def steps_of(n: int) -> list[int]:
    """Neighbours, ranks' strides, and where halves of the bits stay as they are."""
    half = 2 ** ((n - 1).bit_length() // 2)
    return [step for step in (1, 2, 8, 1000, half // 2, half, 2 * half) if n // 3 + 50_000 * step <= n]


@pytest.mark.parametrize("n", HUGE)
def test_parts_of_orders_that_nobody_can_look_at_whole_are_even(n):
    assert [step for step in steps_of(n) if uneven_part(n, step) > 5] == []
    assert max(uneven_part(n, step, rounds=2) for step in steps_of(n)) > 5, "two rounds are seen"
