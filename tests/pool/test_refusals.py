"""Only what cannot be had is refused, and it is said what there is."""

from __future__ import annotations

from aloader.pool.limits import Memory
from aloader.pool.refusals import refusal

GB = 10**9


def test_what_may_fit_is_not_refused() -> None:
    assert refusal(3, 10 * GB, 0, Memory(64 * GB, 12 * GB)) == ""
    assert refusal(3, 10 * GB, 9 * GB, Memory(64 * GB, 2 * GB)) == "", "what the loader holds comes free"


def test_what_is_more_than_there_is_in_all_is_refused() -> None:
    text = refusal(3, 64 * GB, 64 * GB, Memory(64 * GB, 60 * GB))
    assert text.startswith("batch 3 takes 64.00 GB, and the machine, or the cgroup (container) of the program, has")


def test_what_is_more_than_will_be_left_is_refused() -> None:
    text = refusal(3, 10 * GB, 50 * 10**6, Memory(64 * GB, 2 * GB))
    assert "2.00 GB of 64.00 GB can be had now, and 50 MB that the loader holds for other batches" in text
    assert "loader holds" not in refusal(3, 10 * GB, 0, Memory(64 * GB, 2 * GB))
