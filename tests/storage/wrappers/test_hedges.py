"""When a second request is sent: decisions."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader.storage.wrappers.hedges import BURST, FIRST, PROBE, RESERVE, URGENT, Hedges, Latencies


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.floats(0.001, 10.0), st.floats(0.1, 1.0), st.integers(0, 100))
def test_the_threshold_is_the_quantile_of_what_was_observed(
    quantile: float, median: float, sigma: float, seed: int
) -> None:
    random, latencies = Random(seed), Latencies(quantile)
    for _ in range(1000):
        latencies.add(median * random.lognormvariate(0, sigma))
    above = sum(median * random.lognormvariate(0, sigma) > latencies.threshold for _ in range(1000)) / 1000
    assert above == pytest.approx(1 - quantile, abs=0.08)


def test_there_is_none_before_enough_was_observed() -> None:
    latencies = Latencies(0.95)
    for _ in range(FIRST - 1):
        latencies.add(1.0)
    assert latencies.threshold == inf
    latencies.add(1.0)
    assert latencies.threshold == pytest.approx(1.0, rel=0.1)


def test_it_follows_a_store_that_becomes_slower_and_faster() -> None:
    latencies = Latencies(0.95)
    for seconds in (0.03, 3.0, 0.03):
        for _ in range(4000):
            latencies.add(seconds)
        assert latencies.threshold == pytest.approx(seconds, rel=0.1)


def test_impossible_times_are_taken_as_the_nearest_possible_and_weights_never_overflow() -> None:
    latencies = Latencies(0.95)
    latencies._next = 1e99  # after 228,000 observations
    for _ in range(10_000):
        latencies.add(0.0)
    assert latencies._next < 1e99
    assert latencies.threshold < 1e-3
    for _ in range(10_000):
        latencies.add(1e9)
    assert 1000 < latencies.threshold < inf


def learned(hedges: Hedges, count: int = 400, nbytes: int = 1000, seconds: float = 1.0) -> float:
    """The threshold, after so many requests."""
    for _ in range(count):
        latencies, threshold = hedges.ask(nbytes)
        hedges.first_took(latencies, threshold, seconds * (0.9 if threshold < inf else 1))
    return hedges.ask(nbytes)[1]


def test_sizes_are_told_apart_by_powers_of_four() -> None:
    hedges = Hedges(0.95, 0.05)
    learned(hedges, nbytes=1000)
    assert hedges.ask(1023)[1] < inf
    assert hedges.ask(5000)[1] == inf


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.lists(st.sampled_from(["ask", "late", "stalled"]), max_size=400))
def test_second_requests_stay_within_the_budget(budget: float, events: list[str]) -> None:
    hedges = Hedges(0.95, budget)
    for event in events:
        if event == "ask":
            hedges.ask(1)
        else:
            hedges.decide(1.0, 1.0 if event == "late" else URGENT)
        assert hedges.hedged <= budget * hedges.asked + 1e-6


def test_tokens_are_saved_up_but_not_for_ever() -> None:
    hedges = Hedges(0.95, 0.5)
    threshold = learned(hedges, 1000)
    sent = 0
    while hedges.decide(threshold, URGENT * threshold) == 0:
        sent += 1
    assert sent == int(BURST)


def test_the_last_tokens_are_kept_for_requests_that_take_very_long() -> None:
    hedges = Hedges(0.95, 0.05)
    threshold = learned(hedges)
    while hedges.decide(threshold, threshold) == 0:
        pass
    assert hedges.decide(threshold, threshold) == threshold / 2  # look again: it may become urgent
    urgent = 0
    while hedges.decide(threshold, URGENT * threshold) == 0:
        urgent += 1
    assert urgent == int(RESERVE)


def test_it_is_off_while_the_store_as_a_whole_is_slow_and_on_when_that_has_become_usual() -> None:
    hedges = Hedges(0.95, 1.0)
    threshold = learned(hedges)
    assert not hedges.off
    for _ in range(100):
        latencies, threshold = hedges.ask(1000)
        hedges.first_took(latencies, threshold, 10.0)
    assert hedges.off
    sent = sum(hedges.decide(threshold, threshold) == 0 for _ in range(2 * PROBE))
    assert sent == 2
    learned(hedges, 2000, seconds=10.0)
    assert not hedges.off


def test_it_is_off_while_second_requests_never_win_and_on_when_they_do() -> None:
    hedges = Hedges(0.95, 1.0)
    learned(hedges)
    for _ in range(200):
        hedges.raced(won=False)
    assert hedges.off
    for _ in range(10):
        hedges.raced(won=True)
    assert not hedges.off


def test_what_was_not_sent_is_not_counted() -> None:
    hedges = Hedges(0.95, 0.05)
    threshold = learned(hedges)
    before = hedges.hedged
    assert hedges.decide(threshold, threshold) == 0
    hedges.withdraw()
    assert hedges.hedged == before
