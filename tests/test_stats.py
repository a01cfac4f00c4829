"""A snapshot says in words what its numbers say."""

from __future__ import annotations

import dataclasses

import pytest

from aloader.stats import LoaderStats


def test_the_share_of_waiting():
    assert LoaderStats().wait_share == 0.0
    assert LoaderStats(wait_seconds=1.0, user_seconds=3.0).wait_share == 0.25
    assert LoaderStats(wait_seconds=1.0).wait_share == 1.0
    assert LoaderStats(user_seconds=1.0).wait_share == 0.0


def test_every_number_is_told():
    text = str(
        LoaderStats(
            epoch=3, batches=41, errors=5, samples_failed=15, workers=6, workers_lost=7, payload_bytes=8_100_000,
            fetch_seconds=9.25, collate_seconds=10.75,
            wait_seconds=1.5, user_seconds=4.5, arena_bytes=11_500_000, leased_bytes=12_250_000,
            tickets_in_flight=13, batches_ready=14,
        )
    )  # fmt: skip
    for part in (
        "epoch 3: 41 batches", "8.1 MB", "5 errors", "15 samples failed", "7 workers lost",
        "6.00 s", "1.50 s (25%)", "6 workers", "9.25 s",
        "10.75 s", "13 batches under way", "14 ready", "11.5 MB of arena", "12.2 MB held",
    ):  # fmt: skip
        assert part in text, part


def test_a_snapshot_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LoaderStats().batches = 3  # type: ignore[misc]
