"""What has been given, by ticket and by worker, with marks of the dataset's between."""

from __future__ import annotations

import pickle

import pytest

from aloader.channel.marks import Mark, Resume, pack_mark, unpack_mark
from aloader.channel.record import Record, Share
from aloader.sampling.progress import Progress


def mark(at: int) -> bytes:
    return pack_mark(Mark(dataset={"read": at}, position=at))


def test_a_share_goes_on_from_the_newest_mark() -> None:
    share = Share()
    for number in range(3):
        share.gave(share.assigned(), mark(number + 1))
    share.gave(share.assigned(), None)  # it was not asked behind this one
    assert share.resume() == Resume(Mark({"read": 3}, position=3), reads_from=3, low=4)


def test_a_mark_counts_only_once_everything_before_it_has_been_given() -> None:
    """Without order, a later ticket comes first: what its mark says includes one that the user has not had."""
    share = Share()
    first, second, third = share.assigned(), share.assigned(), share.assigned()
    share.gave(second, mark(2))
    assert share.resume() == Resume(None, reads_from=0, low=0, beyond=(1,))
    share.gave(third, mark(3))
    share.gave(first, mark(1))
    assert share.resume() == Resume(Mark({"read": 3}, position=3), reads_from=3, low=3)


def test_a_share_that_goes_on_numbers_what_is_left() -> None:
    share = Share(Resume(None, reads_from=0, low=1, beyond=(2,)))
    assert [share.assigned() for _ in range(3)] == [1, 3, 4]


def test_a_worker_that_is_kept_takes_along_what_was_said_at_its_end() -> None:
    share = Share()
    share.gave(share.assigned(), pack_mark(Mark({"epoch": 0}, {"i": 4}, 4)))
    share.end = pack_mark(Mark({"epoch": 1}, {"i": 9}, 9, ended=True))
    kept = Share(None, share.carries)
    assert kept.resume() == Resume(Mark({"epoch": 1}, {"i": 9}, before=True))
    kept.gave(kept.assigned(), mark(1))
    assert kept.resume() == Resume(Mark({"read": 1}, position=1), reads_from=1, low=1)


def test_workers_take_turns_and_each_has_its_numbers() -> None:
    record = Record(shares=[Share(), Share()], numbered=True)
    for seq, slot in enumerate((0, 1, 0, 1)):
        record.assigned(seq, slot)
    record.gave(0, 0, mark(1))
    record.gave(1, 1, None)
    record.gave(2, 0, mark(2))
    assert (record.progress.low, record.last_slot) == (3, 0)
    assert [point.low for point in record.points()] == [2, 1]


def test_an_error_at_the_end_is_read_again() -> None:
    record = Record(shares=[Share()], numbered=True)
    for seq in range(2):
        record.assigned(seq, 0)
    record.gave(0, 0, None)
    record.failed(1)
    assert record.points()[0].low == 1


def test_places_in_the_epoch_leave_out_what_was_given_before() -> None:
    record = Record(Progress(2, {3}))
    assert [record.number_of(seq) for seq in (2, 3, 4)] == [2, 4, 5]


def test_a_mark_is_what_was_said_then() -> None:
    state = {"seen": [1]}
    packed = pack_mark(Mark(state))
    state["seen"].append(2)
    assert unpack_mark(packed).dataset == {"seen": [1]}


def test_why_there_is_no_mark_is_raised_when_it_is_needed() -> None:
    with pytest.raises(KeyError, match="read") as raised:
        unpack_mark(pack_mark(KeyError("read")))
    assert "in the dataset's state_dict" in "".join(raised.value.__notes__)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        unpack_mark(pack_mark(Mark(lambda: 0)))
