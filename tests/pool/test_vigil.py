"""A worker that stays at one sample for too long is named; one that moves on, waits or is debugged is not."""

from __future__ import annotations

import math

from aloader import options
from aloader.channel.status import Doing, Status
from aloader.pool.vigil import Seen, Vigil


def at(position: int, *, slot: int = 0, key: int = 7, doing: Doing = Doing.FETCHING, **more: int) -> Seen:
    return Seen(slot, key, Status(doing, 1, 3, position, 0.0), **more)


def looks(vigil: Vigil, seen: Seen, seconds: float, begin: float = 0.0, undisturbed: float = math.inf) -> float | None:
    """When the worker was named, of so many seconds in which it was looked at at every turn."""
    steps = math.ceil(seconds / vigil.pace)
    for step in range(steps + 1):
        now = begin + step * vigil.pace
        if vigil.look([seen], now, undisturbed):
            return now
    return None


def test_the_pace_is_a_quarter_of_the_time_and_at_most_a_second() -> None:
    assert Vigil(0.2).pace == 0.05
    assert Vigil(60.0).pace == 1.0


def test_who_stays_is_named_in_time() -> None:
    vigil = Vigil(8.0)
    assert looks(vigil, at(2), 60) == 8.0
    assert looks(vigil, at(2, key=8), 60, begin=100) == 108.0, "another process in its place"


def test_who_was_named_and_not_killed_is_named_again() -> None:
    """Who was told of it was cancelled meanwhile; or the sample had its end just then, and a later one has none."""
    vigil = Vigil(8.0)
    assert looks(vigil, at(2), 60) == 8.0
    assert looks(vigil, at(2), 60, begin=9.0) == 9.0
    assert looks(vigil, at(3), 60, begin=20.0) == 28.0


def test_who_moves_on_is_not_named() -> None:
    vigil = Vigil(8.0)
    for position in range(10):
        assert looks(vigil, at(position), 7, begin=8.0 * position) is None


def test_who_does_something_else_is_not_stuck_in_a_sample() -> None:
    for doing in (Doing.STARTING, Doing.IDLE, Doing.COLLATING, Doing.WAITING, Doing.DEBUGGING):
        assert looks(Vigil(8.0), at(2, doing=doing), 60) is None


def test_a_call_for_all_samples_has_the_time_of_all() -> None:
    assert looks(Vigil(8.0), at(-1, samples=4), 60) == 32.0
    assert looks(Vigil(8.0), at(0, samples=4), 60) == 8.0


def test_who_looks_after_his_samples_himself_is_named_when_he_does_not() -> None:
    named = looks(Vigil(8.0), at(0, timed=True), 60)
    assert named is not None
    assert 16.0 + options.CLOSE_GRACE <= named <= 17.0 + options.CLOSE_GRACE


def test_time_in_which_nobody_looked_does_not_count() -> None:
    vigil = Vigil(8.0)
    assert looks(vigil, at(2), 4) is None
    assert vigil.look([at(2)], 10_000.0) == [], "the program was stopped, or did something else"
    assert looks(vigil, at(2), 60, begin=10_000.0) is not None


def test_nobody_is_stuck_while_the_user_is_in_a_debugger() -> None:
    vigil = Vigil(8.0)
    assert looks(vigil, at(2), 60, undisturbed=0.0) is None
    assert looks(vigil, at(2), 7, begin=61.0) is None, "the time before has gone"
    assert looks(vigil, at(2), 3, begin=69.0) is not None


def test_each_worker_has_its_own_time() -> None:
    vigil = Vigil(8.0)
    for now in range(30):
        seen = [at(2, slot=0, key=1), at(now, slot=1, key=2)] + ([at(0, slot=2, key=3)] if now >= 10 else [])
        stuck = [one.slot for one in vigil.look(seen, float(now))]
        assert stuck == [0] * (now >= 8) + [2] * (now >= 18)
