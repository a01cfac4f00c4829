"""Outcomes in their order, those that are omitted among them: what is counted when, and had when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aloader.channel.messages import LeftOut
from aloader.channel.record import Record
from aloader.channel.tolerance import Tolerance
from aloader.engine import Deliver, Omit, Raise
from aloader.errors import SampleError
from aloader.pool.outcomes import Lost, Outcomes
from aloader.stats import EpochCounts

pytestmark = pytest.mark.filterwarnings("ignore::aloader.SampleWarning")


class Books:
    def __init__(self) -> None:
        self.record, self.counts = Record(), EpochCounts()
        self._crew = SimpleNamespace(who=SimpleNamespace(auto_collation=True))
        self._indices = {seq: [2 * seq, 2 * seq + 1] for seq in range(9)}
        self._slots = dict.fromkeys(range(9), 0)
        self._shares = False


def failed(*positions: int) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(position, ValueError(f"at {position}")) for position in positions)


def deliver(seq: int, *positions: int) -> Deliver:
    return Deliver(seq, SimpleNamespace(left_out=failed(*positions)))


def omit(seq: int) -> Omit:
    return Omit(seq, Lost(None, failed(0, 1), 0))


def take(outcomes: Outcomes, books: Books) -> Any:
    outcome = outcomes.popleft()
    given = isinstance(outcome, Deliver)
    outcomes.taken(outcome, (outcome.seq, books._indices.pop(outcome.seq, None), 0), given=given)
    if given:
        books.record.gave(outcome.seq)
    else:
        books.record.failed(outcome.seq)
    return outcome


def test_what_is_omitted_is_never_first_and_is_had_with_what_comes_behind_it() -> None:
    books = Books()
    outcomes = Outcomes(Tolerance("drop"), books)  # type: ignore[arg-type]
    assert outcomes.omit(omit(0))
    assert not outcomes
    for one in (deliver(1, 1), deliver(4)):
        outcomes.deliver(one)
        outcomes.omit(omit(one.seq + 1))
        outcomes.omit(omit(one.seq + 2))
    assert books.record.progress.low == 0, "nobody has had anything"
    assert take(outcomes, books).seq == 1
    assert (books.record.progress.low, outcomes.left_out, books.counts.samples_failed) == (2, (3,), 3)
    assert take(outcomes, books).seq == 4
    assert not outcomes
    assert (books.record.progress.low, outcomes.left_out, books.counts.samples_failed) == (5, (), 7)
    outcomes.tell(at_end=True)
    assert (books.record.progress.low, books.counts.samples_failed) == (7, 11)


def test_what_was_omitted_behind_an_error_is_not_had_with_it() -> None:
    books = Books()
    outcomes = Outcomes(Tolerance("drop"), books)  # type: ignore[arg-type]
    outcomes.append(Raise(0, ValueError()))
    outcomes.omit(omit(1))
    take(outcomes, books)
    assert books.record.progress.low == 0, "who stops because of the error begins with it when they go on"
    outcomes.deliver(deliver(2))
    take(outcomes, books)
    assert books.record.progress.low == 3


def test_too_many_are_an_error_in_the_place_of_a_batch_or_of_nothing() -> None:
    books = Books()
    outcomes = Outcomes(Tolerance("drop", 1), books)  # type: ignore[arg-type]
    outcomes.deliver(deliver(0, 1))
    assert not outcomes.omit(omit(1))
    outcomes.deliver(deliver(2, 0))
    outcomes.deliver(deliver(3))
    got = [take(outcomes, books) for _ in range(4)]
    assert [type(one) for one in got] == [Deliver, Raise, Raise, Deliver]
    assert [one.error.index for one in got[1:3]] == [2, 4]
    assert all(isinstance(one.error, SampleError) for one in got[1:3])
