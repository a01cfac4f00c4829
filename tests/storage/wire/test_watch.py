"""When a request is given up, by times that are made up."""

from __future__ import annotations

import random

import pytest

from aloader.storage.wire.watch import Patience, Progress, Verdict

PATIENCE = Patience(read_timeout=30, min_rate=1000, stall_after=5)


def looked_at(arrivals: list[tuple[float, int]], until: float, step: float = 1.0, patience: Patience = PATIENCE) -> str:
    """What becomes of an answer of which so many bytes come at these times, and when: "slow at 7"."""
    progress = Progress(0.0)
    now = 0.0
    while now < until:
        now += step
        received = sum(count for at, count in arrivals if at <= now)
        verdict = progress.look(now, received, patience)
        if verdict is not Verdict.GOING:
            return f"{verdict.value} at {now:g}"
    return "going"


@pytest.mark.parametrize(
    ("arrivals", "end"),
    [
        ([], "silent at 30"),
        ([(29.5, 10_000), (30, 1)], "slow at 35"),
        ([(0.5, 10**9)], "slow at 6"),  # a burst, and then nothing
        ([(t, 1001) for t in range(100)], "going"),
        ([(t, 999) for t in range(100)], "slow at 6"),
        ([(t, 1) for t in range(100)], "slow at 6"),
        ([(20 + t, 1) for t in range(100)], "slow at 25"),  # a server may think, but not dribble
        ([(4 * t, 5000) for t in range(25)], "going"),
    ],
)
def test_silence_and_slowness_are_told_apart(arrivals: list[tuple[float, int]], end: str) -> None:
    assert looked_at(arrivals, 60) == end


def test_silence_in_mid_body_is_silence_where_that_is_shorter() -> None:
    assert looked_at([(1, 10)], 60, patience=Patience(2, 1, 50)) == "silent at 3"


def test_a_request_is_never_given_up_too_early() -> None:
    """Whenever somebody looks: not before the bytes had been missing for as long as was allowed."""
    generator = random.Random(0)
    for _ in range(200):
        progress, now, last, received = Progress(0.0), 0.0, 0.0, 0
        while True:
            now += generator.random() * 10
            if generator.random() < 0.7:
                received += 1_000_000
                last = now - generator.random()
            if progress.look(now, received, Patience(20, 0, 1e9)) is Verdict.SILENT:
                break
        assert now - last >= 20


def test_a_loop_that_stood_still_is_not_the_servers_fault() -> None:
    progress = Progress(0.0)
    assert progress.look(1, 5000, PATIENCE) is Verdict.GOING
    progress.excuse(100)
    assert progress.look(102, 5000, PATIENCE) is Verdict.GOING
    assert progress.look(130, 5000, PATIENCE) is Verdict.SLOW


@pytest.mark.parametrize(("read_timeout", "interval"), [(30, 1.25), (1, 0.25), (0.001, 0.01)])
def test_looks_are_as_frequent_as_the_shorter_time_needs(read_timeout: float, interval: float) -> None:
    assert Patience(read_timeout, 1, 5).interval == interval
