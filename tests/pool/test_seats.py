"""Seats of a shared pool are taken in turn, given back, and exceeded only where nobody would ever give one back."""

from __future__ import annotations

from aloader.pool.seats import Seats


class Sitting:
    def __init__(self, *, idle: bool = False, fails: int = 0) -> None:
        self.idle = idle
        self.fails = fails
        self.launched: list[tuple[int, int]] = []

    def launch_now(self, slot: int, generation: int) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("no descriptors")
        self.launched.append((slot, generation))


def test_an_own_pool_has_as_many_as_it_likes():
    seats, crew = Seats(None), Sitting()
    assert all(seats.take(crew, slot, 0) for slot in range(100))
    seats.give_back()
    assert not seats.waits(crew)


def test_who_comes_first_is_seated_first():
    seats, first, second = Seats(2), Sitting(), Sitting()
    assert [seats.take(first, slot, 0) for slot in range(3)] == [True, True, False]
    assert not seats.take(second, 0, 7)
    seats.give_back()
    assert (first.launched, second.launched) == ([(2, 0)], [])
    seats.give_back()
    assert second.launched == [(0, 7)]
    assert seats.taken == 2


def test_nobody_overtakes_who_waits():
    seats, first, second = Seats(1), Sitting(), Sitting()
    assert seats.take(first, 0, 0)
    assert not seats.take(first, 1, 0)
    seats.forget(second)
    seats.taken -= 1  # as if it had just become free, and nobody had been told
    assert not seats.take(second, 0, 0)


def test_what_is_asked_twice_is_seated_once():
    seats, crew = Seats(1), Sitting()
    assert seats.take(crew, 0, 0)
    assert not seats.take(crew, 1, 0)
    assert not seats.take(crew, 1, 0)
    for _ in range(2):
        seats.give_back()
    assert crew.launched == [(1, 0)]


def test_who_ends_waits_no_more():
    seats, first, second = Seats(1), Sitting(), Sitting()
    assert seats.take(first, 0, 0)
    assert not seats.take(first, 1, 0)
    assert not seats.take(second, 0, 0)
    seats.forget(first)
    assert not seats.waits(first)
    seats.give_back()
    assert (first.launched, second.launched) == ([], [(0, 0)])


def test_insisting_seats_one_more_where_all_are_idle_and_only_there():
    seats, first, second = Seats(1), Sitting(), Sitting()
    assert seats.take(first, 0, 0)
    assert not seats.take(second, 0, 0)
    assert not seats.take(second, 1, 0)
    seats.insist(second, [first])
    assert second.launched == []
    first.idle = True
    seats.insist(second, [first])
    assert (second.launched, seats.taken) == ([(0, 0)], 2)
    seats.give_back()  # now there is one more than there should be: nobody takes its place
    assert second.launched == [(0, 0)]
    seats.give_back()
    assert second.launched == [(0, 0), (1, 0)]


def test_what_cannot_be_started_now_is_tried_again_first():
    seats, first, second = Seats(1), Sitting(fails=1), Sitting()
    assert seats.take(second, 9, 0)
    assert not seats.take(first, 0, 0)
    assert not seats.take(second, 0, 0)
    seats.give_back()
    assert (first.launched, seats.taken) == ([], 0)
    seats.taken += 1
    seats.give_back()
    assert (first.launched, second.launched) == ([(0, 0)], [])
