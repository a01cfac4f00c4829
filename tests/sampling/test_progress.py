"""Which tickets have been given: a set and a mark, against a set alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aloader.sampling.progress import Progress


def whole(progress: Progress) -> set[int]:
    return set(range(progress.low)) | progress.beyond


@given(st.permutations(range(12)), st.integers(0, 12))
def test_it_knows_what_was_given_in_whatever_order(order: list[int], count: int) -> None:
    progress = Progress()
    for number in order[:count]:
        progress.gave(number)
    assert whole(progress) == set(order[:count])
    assert progress.low not in progress.beyond


@given(st.permutations(range(12)), st.integers(0, 12))
def test_the_others_come_in_their_order(order: list[int], count: int) -> None:
    """What is drawn from there on, are the numbers that had not been given, and then all that follow."""
    before = Progress()
    for number in order[:count]:
        before.gave(number)
    after = Progress(before.low, before.beyond)
    left = [number for number in range(20) if number not in order[:count]]
    assert [after.number_of(at) for at in range(len(left))] == left


def test_an_error_at_the_end_is_not_passed() -> None:
    progress = Progress()
    progress.gave(0)
    progress.failed(1)
    progress.failed(2)
    assert progress.low == 1


def test_an_error_is_passed_with_what_comes_behind_it() -> None:
    progress = Progress()
    progress.failed(0)
    progress.failed(1)
    progress.gave(2)
    assert (progress.low, progress.beyond) == (3, set())
