"""How many samples may fail, counted in order; and what is said of them, when."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from aloader.channel.messages import LeftOut
from aloader.channel.tolerance import Place, Tolerance
from aloader.errors import SampleError, SampleWarning


def place(seq: int, size: int = 4, **changes: Any) -> Place:
    indices = list(range(size * seq, size * (seq + 1)))
    return Place(seq, indices, True, False, 1)._replace(**changes)


def lost(*positions: int, error: type[Exception] = ValueError) -> list[LeftOut]:
    return [LeftOut(position, error(f"at {position}")) for position in positions]


def said(tolerance: Tolerance) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tolerance.warn()
    assert all(one.category is SampleWarning for one in caught)
    return [str(one.message) for one in caught]


def test_the_batch_that_goes_beyond_is_an_error_and_so_is_each_with_failed_samples_behind_it() -> None:
    tolerance = Tolerance("drop", 2)
    assert tolerance.count(place(0), lost(1)) is None
    assert tolerance.count(place(1), []) is None
    error = tolerance.count(place(2), lost(0, 3))
    assert isinstance(error, SampleError)
    assert (error.index, error.batch, error.worker, str(error.__cause__)) == (11, 2, 1, "at 3")
    assert "3 samples of this epoch have failed, and max_errors=2 allows for no more" in str(error)
    assert "loader.replay(11)" in str(error)
    assert tolerance.count(place(3), []) is None
    assert tolerance.count(place(4), lost(2)) is not None
    assert tolerance.failed == 4


def test_no_error_at_all_may_be_allowed() -> None:
    assert Tolerance("skip", 0).count(place(0), []) is None
    assert Tolerance("skip", 0).count(place(0), lost(1)) is not None
    assert Tolerance("skip", 0.0).count(place(0), lost(1)) is not None, "whatever the length"


def test_a_fraction_is_of_the_epochs_samples() -> None:
    tolerance = Tolerance("drop", 0.1, total=20)
    assert [tolerance.count(place(seq), lost(0)) is None for seq in range(4)] == [True, True, False, False]


def test_a_fraction_of_what_nobody_knows_is_of_what_has_been_seen_and_ten_more() -> None:
    tolerance = Tolerance("drop", 0.25)
    assert all(tolerance.count(place(seq), lost(0)) is None for seq in range(40))
    tolerance = Tolerance("drop", 0.25, share=4)
    each = [tolerance.count(place(seq, indices=None, iterable=True), lost(0, 1)) is None for seq in range(40)]
    assert each == [2 * (seq + 1) <= seq + 1 + 10 for seq in range(40)]


def test_the_first_of_each_type_is_told_and_the_number_at_the_end() -> None:
    tolerance = Tolerance("skip", epoch=3)
    tolerance.count(place(0), lost(1, 2))
    tolerance.count(place(1), lost(0, error=KeyError))
    first, second = said(tolerance)
    assert first.startswith("In epoch 3, sample 1 of batch 0 failed: ValueError: at 1")
    assert 'on_error="skip"' in first
    assert "loader.replay(1)" in first
    assert "sample 4 of batch 1 failed: KeyError" in second
    assert said(tolerance) == []
    tolerance.end()
    tolerance.end()
    (total,) = said(tolerance)
    assert "3 samples failed (2 ValueError, 1 KeyError)" in total


def test_nothing_is_told_at_the_end_that_has_been_told() -> None:
    tolerance = Tolerance("drop")
    tolerance.count(place(0), lost(1))
    assert len(said(tolerance)) == 1
    tolerance.end()
    assert said(tolerance) == []


def test_a_warning_that_is_an_error_loses_none_behind_it() -> None:
    tolerance = Tolerance("drop")
    tolerance.count(place(0), [*lost(1), *lost(2, error=KeyError)])
    with pytest.raises(SampleWarning, match="ValueError"):
        tolerance.warn()
    with pytest.raises(SampleWarning, match="KeyError"):
        tolerance.warn()
    tolerance.warn()


def test_samples_are_called_by_index_and_by_position_where_they_have_none() -> None:
    assert place(1).names(lost(0, 2)) == (4, 6)
    assert place(1, indices={7: 0, 8: 0}).names(lost(1)) == (8,)
    assert place(1, indices="key", batched=False).names(lost(0)) == ("key",)
    assert place(1, indices=None, iterable=True).names(lost(3)) == (3,)
    assert place(1, indices=iter([5, 6, 7, 8])).names(lost(0, 1)) == (0, 1), "what can be read once is not read here"


def test_where_an_index_is_not_known_no_other_one_is_named() -> None:
    tolerance = Tolerance("drop", 0)
    error = tolerance.count(place(2, indices=iter([5, 6])), lost(1))
    assert "this one is the sample at position 1 of batch 2" in str(error)
    assert "replay" not in str(error)
