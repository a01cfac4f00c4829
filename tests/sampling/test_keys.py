"""Numbers that follow from names: the same for ever, and nothing to do with each other."""

from __future__ import annotations

import itertools

import numpy as np

from aloader.sampling.keys import epoch_key, sample_key, worker_seed


def test_they_never_change() -> None:
    """Runs that are gone on with draw what they would have drawn."""
    assert epoch_key(0, 0) == 14_078_857_527_052_557_026
    assert sample_key(epoch_key(0, 0), 17) == 3_964_627_883_753_088_191
    assert worker_seed(0) == 8_161_984_083_935_143_778


def test_an_index_is_known_by_its_value() -> None:
    assert sample_key(1, np.int64(5)) == sample_key(1, 5)
    names = [5, "5x", b"5y", (5, 0), 5.0, True, None, -5]
    assert len({sample_key(1, name) for name in names}) == len(names)


def test_neighbours_have_nothing_in_common() -> None:
    """Bit by bit, half of them differ: over 4,000 pairs within five standard errors of 32 of 64."""
    keys = [epoch_key(seed, epoch) for seed in range(20) for epoch in range(10)]
    numbers = [sample_key(key, index) for key in keys for index in range(21)]
    apart = [(a ^ b).bit_count() for a, b in itertools.pairwise(numbers)]
    assert len(set(numbers)) == len(numbers)
    assert abs(np.mean(apart) - 32) < 5 * 4 / len(apart) ** 0.5


def test_a_purpose_has_numbers_of_its_own() -> None:
    assert sample_key(1, 5, "collate") != sample_key(1, 5)


def test_workers_seeds_leave_room_for_their_number() -> None:
    assert all(0 <= worker_seed(seed) < 1 << 63 for seed in range(100))
