"""How many requests may be in flight and in a second: decisions."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader.storage.wrappers.limits import DECREASE, LEAST, PAUSE, WINDOW, Limit, Meter


def throttled(limit: Limit, now: float, began: float, count: int = 20) -> int:
    """So many refusals at once. How often the bounds shrank for them."""
    return sum(limit.refused(now, began) for _ in range(count))


def serving(limit: Limit, now: float, seconds: float, rate: float) -> float:
    """So many requests a second are answered; the time afterwards."""
    for _ in range(round(seconds * rate)):
        now += 1 / rate
        limit.served(now)
    return now


@given(st.floats(1, 10_000), st.floats(0, 1000))
def test_a_meter_tells_the_rate_of_the_last_moment(rate: float, begin: float) -> None:
    meter, count = Meter(begin), int(rate * WINDOW * 3) + 2
    for i in range(count):
        meter.add(begin + i / rate)
    end = begin + (count - 1) / rate
    assert meter.rate(end) == pytest.approx(rate, rel=0.1, abs=2 / WINDOW)
    assert meter.rate(end + 2 * WINDOW) == 0


def test_there_is_no_bound_until_the_store_throttles() -> None:
    limit = Limit(64, 0.0, Random(0))
    assert limit.rate == inf
    assert [limit.room(63), limit.room(64)] == [True, False]
    assert all(limit.start(0.0) == 0.0 for _ in range(10_000))


def test_the_rate_becomes_a_little_less_than_what_comes_through() -> None:
    limit = Limit(64, 0.0, Random(0))
    now = serving(limit, 0.0, 2.0, 500.0)
    assert throttled(limit, now, now) == 1
    assert limit.rate == pytest.approx(500 * DECREASE, rel=0.05)
    assert int(limit.concurrency) == int(64 * DECREASE)


def test_the_bounds_shrink_once_for_all_refusals_of_one_round_trip() -> None:
    limit = Limit(64, 0.0, Random(0))
    now = serving(limit, 0.0, 1.0, 500.0)
    assert throttled(limit, now, now - 0.01, 500) == 1
    assert throttled(limit, now + 2 * WINDOW, now - 0.01, 500) == 0  # they had been sent before
    assert throttled(limit, now + 2 * WINDOW, now + WINDOW, 500) == 1


def test_a_refusal_in_a_hundred_changes_nothing() -> None:
    limit, now = Limit(64, 0.0, Random(0)), 0.0
    for _ in range(20):
        now = serving(limit, now, 0.1, 1000.0)
        assert not limit.refused(now, now)
    assert (limit.rate, limit.concurrency) == (inf, 64)


def test_the_rate_comes_back_to_where_it_was_stays_there_a_while_and_goes_beyond() -> None:
    limit = Limit(64, 0.0, Random(0))
    now = serving(limit, 0.0, 1.0, 500.0)
    throttled(limit, now, now)
    now = serving(limit, now, 0.5, 500.0)
    throttled(limit, now, now)  # the second time, it is known what the store allows: about 500
    rates = []
    for _ in range(8):
        now = serving(limit, now, 1.0, 500.0)
        rates.append(limit.rate)
    assert rates == sorted(rates)
    assert rates[0] < rates[2] == pytest.approx(500, rel=0.04)
    assert rates[4] < 1.15 * 500 < rates[-1] <= 2 * 502


def test_a_store_that_serves_nothing_is_asked_less_and_less_but_never_never() -> None:
    limit, now = Limit(64, 0.0, Random(0)), 0.0
    for _ in range(60):
        now += 1.0
        throttled(limit, now, now)
    assert (limit.rate, limit.concurrency) == (LEAST * 64, 1.0)
    assert limit.room(0)
    assert not limit.room(1)


def test_nothing_is_sent_for_a_moment_and_as_long_as_the_store_says() -> None:
    limit = Limit(64, 0.0, Random(0))
    now = serving(limit, 0.0, 1.0, 500.0)
    throttled(limit, now, now)
    assert PAUSE[0] <= limit.start(now) <= PAUSE[1]
    for _ in range(20):
        limit.refused(now + 1, now + 1, retry_after=7.0)
    assert limit.start(now + 1) == pytest.approx(7.0)
    for _ in range(20):
        limit.refused(now + 9, now + 9, retry_after=3600.0)
    assert limit.start(now + 9) == pytest.approx(10.0)


@given(st.floats(20, 5000), st.lists(st.floats(0, 0.05), min_size=50, max_size=300))
@settings(max_examples=40, deadline=None)
def test_no_more_are_sent_than_the_rate_allows(rate: float, steps: list[float]) -> None:
    limit = Limit(1000, 0.0, Random(0))
    limit.rate = rate
    now = sent = 0.0
    for step in steps:
        now += step
        while limit.start(now) == 0:
            sent += 1
    assert sent <= rate * (now + 0.02) + 1
    assert sent >= rate * now * 0.2 or max(steps) > 0.02  # who asks often enough may send nearly that


def test_a_share_from_outside_bounds_what_was_learned_but_leaves_one() -> None:
    limit = Limit(64, 0.0, Random(0))
    assert [limit.room(31, 0.5), limit.room(32, 0.5), limit.room(0, 0.0), limit.room(1, 0.0)] == [
        True, False, True, False,
    ]  # fmt: skip
