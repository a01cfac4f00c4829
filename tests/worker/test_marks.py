"""A dataset is asked behind each ticket, as long as that costs next to nothing."""

from __future__ import annotations

import time
from typing import Any

from aloader import options
from aloader.channel.marks import Mark, unpack_mark
from aloader.worker.marks import Marker


class Says:
    """Counts how often it is asked, and takes so many seconds to answer."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.asked = 0
        self._seconds = seconds

    def state_dict(self) -> dict[str, int]:
        self.asked += 1
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass
        return {"asked": self.asked}

    def load_state_dict(self, state: Any) -> None: ...


def test_one_that_answers_at_once_is_asked_behind_each_ticket() -> None:
    marker = Marker(Says())
    marks = [marker.take(position=at) for at in range(50)]
    assert [unpack_mark(packed) for packed in marks if packed is not None] == [
        Mark({"asked": at + 1}, None, at) for at in range(50)
    ]


def test_one_that_takes_its_time_is_asked_until_that_is_used_up() -> None:
    dataset = Says(options.MARK_GRACE / 4)
    marker = Marker(dataset)
    for _ in range(100):
        marker.take()
    assert 2 <= dataset.asked <= 6  # a busy machine makes it slower


def test_at_the_end_it_is_asked_whatever_it_costs() -> None:
    marker = Marker(Says(options.MARK_GRACE * 1.5))
    assert marker.take() is not None
    assert marker.take() is None
    packed = marker.take(ended=True)
    assert packed is not None
    assert unpack_mark(packed).ended


def test_an_iterator_of_its_own_is_asked_too_and_one_that_is_the_dataset_is_not_asked_twice() -> None:
    dataset, iterator = Says(), Says()
    packed = Marker(dataset).take(iterator)
    assert packed is not None
    assert unpack_mark(packed) == Mark({"asked": 1}, {"asked": 1})
    packed = Marker(dataset).take(dataset)
    assert packed is not None
    assert unpack_mark(packed) == Mark(None, {"asked": 2})


def test_one_that_has_no_state_is_left_alone() -> None:
    assert Marker(object()).take(iter([])) is None
