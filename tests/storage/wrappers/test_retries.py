"""What is tried again, when, and what for: decisions."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader import errors
from aloader.storage import Request, Response
from aloader.storage.wrappers.retries import KNOCKS, Assembly, Attempts, Budget, Kind, RetryPolicy, classify

FAILED = errors.ServerFailed("500")
UNREACHABLE = errors.StoreUnreachable("refused")


def attempts(budget: int = 100, answered: bool = True, **policy: float) -> Attempts:
    counts = Budget(budget)
    counts.reached = answered
    return Attempts(RetryPolicy(**policy), counts, 0.0)  # type: ignore[arg-type]


def again(
    state: Attempts, error: Exception, now: float = 0.0, left: float = 1e9, resumed: bool = False
) -> float | None:
    return state.again(error, now, left, resumed, Random(0))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.Throttled("x"), Kind.THROTTLED),
        (errors.ServerFailed("x"), Kind.SERVER),
        (errors.BrokenTransfer("x"), Kind.BROKEN),
        (errors.BrokenTransfer("x", stalled=True), Kind.STALLED),
        (errors.StoreUnreachable("x"), Kind.UNREACHABLE),
        (errors.CredentialsExpired("x"), Kind.EXPIRED),
        (errors.ObjectChanged("x"), Kind.CHANGED),
        *((kind("x"), Kind.FATAL) for kind in (
            errors.KeyNotFound, errors.StoreNotFound, errors.BadKey, errors.BadRange, errors.AccessDenied,
            errors.NotOpen, errors.Corrupted, errors.StorageError, ValueError, TypeError, OSError, TimeoutError,
        )),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
def test_what_each_error_says_about_another_attempt(error: Exception, kind: Kind) -> None:
    assert classify(error) is kind


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32))
def test_delays_double_up_to_the_most_with_full_jitter(count: int, seed: int) -> None:
    state = attempts(attempts=20, first_delay=0.5, most_delay=8.0)
    for _ in range(count - 1):
        again(state, FAILED)
    delay = state.again(FAILED, 0.0, 1e9, False, Random(seed))
    assert delay is not None
    assert 0 <= delay <= min(8.0, 0.5 * 2 ** (count - 1))


def test_the_last_attempt_is_the_last() -> None:
    state = attempts(attempts=3)
    assert [again(state, FAILED) is None for _ in range(3)] == [False, False, True]
    assert state.made == 3


def test_one_attempt_means_no_other_whatever_the_error() -> None:
    for error in (FAILED, errors.Throttled("x"), errors.CredentialsExpired("x")):
        assert again(attempts(attempts=1), error) is None


def test_an_address_where_nothing_ever_answered_is_left_soon() -> None:
    def tries(answered: bool) -> int:
        state = attempts(attempts=9, answered=answered)
        while again(state, UNREACHABLE) is not None:
            pass
        return state.made

    assert (tries(False), tries(True)) == (KNOCKS, 9)


def test_a_throttled_request_waits_as_long_as_it_was_told_and_takes_no_attempt() -> None:
    state = attempts(attempts=2, budget=0)
    delays = [again(state, errors.Throttled("x", retry_after=3.0)) for _ in range(10)]
    assert all(delay is not None and delay >= 3.0 for delay in delays)
    assert again(state, errors.Throttled("x"), left=0.0) is None
    assert state.why_not == "the next would be too late"


def test_a_store_that_says_to_wait_for_longer_than_there_is_time_is_asked_again_all_the_same() -> None:
    told = errors.Throttled("x", retry_after=60.0)  # MinIO says so with every 503
    delay = again(attempts(deadline=60.0), told, left=59.99)
    assert delay is not None
    assert 10.0 <= delay < 11.0
    delay = again(attempts(), told, left=4.0)
    assert delay is not None
    assert 2.0 <= delay < 4.0


def test_a_store_that_throttles_everybody_for_as_long_as_a_request_may_take_is_down() -> None:
    state = attempts(deadline=60.0)
    assert again(state, errors.Throttled("x"), now=59.0) is not None
    assert again(state, errors.Throttled("x"), now=60.0) is None
    assert state.why_not == "the store has served nothing for 60 s"
    state.budget.success(59.0, 0)
    assert again(state, errors.Throttled("x"), now=118.0) is not None


def test_expired_credentials_are_tried_once_more_and_at_once() -> None:
    state = attempts()
    assert [again(state, errors.CredentialsExpired("x")) for _ in range(2)] == [0.0, None]


def test_a_changed_object_is_read_again_only_if_its_version_was_our_own_wish() -> None:
    changed = errors.ObjectChanged("x")
    assert again(attempts(), changed, resumed=False) is None
    state = attempts()
    assert [again(state, changed, resumed=True) for _ in range(2)] == [0.0, None]


def test_no_attempt_begins_behind_the_deadline() -> None:
    state = attempts(first_delay=10.0)
    assert again(state, FAILED, left=0.0) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=300), st.integers(0, 20))
def test_retries_never_exceed_the_budget_and_a_tenth_of_the_successes(outcomes: list[bool], capacity: int) -> None:
    """Each request fails once; `outcomes` says whether its retry, if it gets one, succeeds."""
    budget = Budget(capacity)
    spent = successes = 0
    for works in outcomes:
        state = Attempts(RetryPolicy(attempts=2), budget, 0.0)
        if again(state, FAILED) is not None:
            if works:
                state.succeeded(0.0)
                successes += 1
            else:
                again(state, FAILED)
                spent += 1
        assert 0 <= budget.tokens <= capacity
    assert spent <= capacity + successes / 10


def test_when_the_budget_is_used_up_requests_fail_with_their_first_failure() -> None:
    budget = Budget(2)
    first, second = (Attempts(RetryPolicy(), budget, 0.0) for _ in range(2))
    assert again(first, FAILED) is not None
    assert again(first, FAILED) is not None
    assert again(second, FAILED) is None
    assert "too many requests" in second.why_not
    first.succeeded(0.0)
    assert budget.tokens == 2.0


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"deadline": 0.0}, {"first_delay": 9.0, "most_delay": 1.0}, {"budget": -1}],
)
def test_numbers_without_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


DATA = bytes(range(100))


def serve(request: Request, version: str = "1") -> Response:
    stop = len(DATA) if request.stop is None else min(request.stop, len(DATA))
    if request.most is not None:
        stop = min(stop, request.start + request.most)
    return Response(DATA[request.start : stop], len(DATA), version)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 99),
    st.none() | st.integers(1, 120),
    st.none() | st.integers(1, 120),
    st.lists(st.tuples(st.integers(0, 110), st.booleans()), max_size=8),
)
def test_a_body_that_breaks_anywhere_any_number_of_times_is_whole_in_the_end(
    start: int, length: int | None, most: int | None, breaks: list[tuple[int, bool]]
) -> None:
    request = Request("k", start, None if length is None else start + length, most=most)
    assembly, asked = Assembly(request), 0
    for at, tells_version in breaks:
        rest = assembly.rest()
        if rest is None:
            break
        received = serve(rest).data[:at]
        asked += len(received) if tells_version else 0
        version = "1" if tells_version else ""
        assembly.keep(errors.BrokenTransfer("x", "k", received=received, version=version, size=100))
    rest = assembly.rest()
    assert assembly.whole(None if rest is None else serve(rest)) == serve(request)
    assert rest is None or rest.start == start + asked  # what had come is not asked for again


def test_what_had_come_of_another_version_is_dropped() -> None:
    assembly = Assembly(Request("k"))
    assembly.keep(errors.BrokenTransfer("x", "k", received=b"ab", version="1", size=4))
    assert assembly.rest() == Request("k", 2, 4, "1")
    with pytest.raises(errors.ObjectChanged, match="was replaced while it was read"):
        assembly.whole(Response(b"cd", 4, "2"))
    assembly.keep(errors.ObjectChanged("x", "k"))
    assert assembly.rest() == Request("k")
