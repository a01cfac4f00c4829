"""What `Faults` and `Latency` decide: how often, how long, and the same again with the same seed."""

from __future__ import annotations

import itertools
import math
import pickle
import statistics
from collections import Counter
from random import Random

import pytest

from aloader.testing import Faults, Latency
from aloader.testing.faults import DRAWN, Bucket, Fault, Plan, Plans, plan

MIB = 1 << 20


def quantiles(latency: Latency, count: int = 20_000) -> list[float]:
    """By percent."""
    random = Random(1)
    return statistics.quantiles([latency.draw(random) for _ in range(count)], n=100)


def plans(faults: Faults, count: int = 5_000) -> list[Plan]:
    planned = Plans(faults)
    return [planned.next(f"{number}") for number in range(count)]


def test_first_bytes_of_s3_come_when_they_were_measured_to() -> None:
    found = quantiles(Latency(median=0.027, sigma=0.62, floor=0.010))
    assert found[49] == pytest.approx(0.027, rel=0.05)
    assert found[89] == pytest.approx(0.060, rel=0.05)
    assert found[98] == pytest.approx(0.114, rel=0.10)
    assert found[0] == 0.010


def test_one_request_of_a_hundred_is_slow() -> None:
    standard = Latency.preset("standard")
    assert quantiles(standard)[98] > 0.12
    assert quantiles(standard.times(10))[94] == pytest.approx(0.25, rel=0.25)


@pytest.mark.parametrize(
    ("name", "median"),
    [("none", 0), ("express", 0.0025), ("standard", 0.027), ("cross-region", 0.107), ("gcs", 0.2), ("nfs", 0.001)],
)
def test_presets_have_the_medians_that_their_names_promise(name: str, median: float) -> None:
    assert quantiles(Latency.preset(name), 5_000)[49] == pytest.approx(median, rel=0.05)
    assert Faults.preset(name).latency == Latency.preset(name)


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no preset 'glacier': there are 'none', 'express', 'standard'"):
        Faults.preset("glacier")


def test_each_fault_is_as_frequent_as_it_was_ordered() -> None:
    faults = Faults(**{fault.value: 0.05 for fault in DRAWN})
    found = Counter(each.fault for each in plans(faults))
    assert set(found) == {None, *DRAWN}
    for fault in DRAWN:
        assert found[fault] / 5_000 == pytest.approx(0.05, abs=0.015)


def test_a_plan_depends_on_the_request_and_not_on_what_else_is_asked() -> None:
    faults = Faults.preset("standard").times(50)
    requests = [(f"{number % 40}", 0, stop) for number in range(200) for stop in (None, 100)]
    first, second = Plans(faults, seed=7), Plans(faults, seed=7)
    found = Counter((request, first.next(*request)) for request in requests)
    again = Counter((request, second.next(*request)) for request in Random(3).sample(requests, len(requests)))
    assert found == again
    other = Plans(faults, seed=8)
    assert Counter((request, other.next(*request)) for request in requests) != found


def test_a_second_request_for_the_same_bytes_has_a_plan_of_its_own() -> None:
    planned = Plans(Faults(server_error=0.5))
    assert {planned.next("key").fault for _ in range(20)} == {None, Fault.SERVER_ERROR}


def test_more_of_one_fault_changes_no_other_request() -> None:
    """Delays, for one, stay what they were: experiments can be compared."""
    few, many = plans(Faults.preset("standard"), 500), plans(Faults(latency=Latency.preset("standard")), 500)
    assert [a.delay for a, b in zip(few, many, strict=True) if a.fault is None] == [
        b.delay for a, b in zip(few, many, strict=True) if a.fault is None
    ]


def test_stalls_are_before_the_first_byte_or_in_the_midst_and_last_as_long_as_said() -> None:
    found = plans(Faults(stalled=1.0, stall=(2, 10)), 500)
    before = [each.delay for each in found if not each.pause]
    amidst = [each.pause for each in found if each.pause]
    assert 0.4 < len(amidst) / 500 < 0.6
    for seconds in (before, amidst):
        assert 2 <= min(seconds) < 2.5
        assert 9.5 < max(seconds) <= 10
    assert all(0 <= each.at < 1 for each in found if each.pause)


def test_bandwidths_spread_around_the_one_that_was_given() -> None:
    rates = [each.rate / MIB for each in plans(Faults(bandwidth=55 * MIB), 1_000)]
    assert 38.5 <= min(rates) < 40
    assert 70 < max(rates) <= 71.5
    assert {each.rate for each in plans(Faults(bandwidth=55 * MIB, loris=1.0), 10)} == {1024}


def test_a_flipped_bit_is_one_bit() -> None:
    for each in plans(Faults(flipped=1.0), 50):
        changed = each.spoilt(bytes(100))
        assert sum(byte.bit_count() for byte in changed) == 1
        assert len(changed) == 100
        assert each.spoilt(b"") == b""


def test_a_wrong_length_is_wrong_by_some_bytes_either_way() -> None:
    lengths = {len(each.spoilt(memoryview(bytes(100)))) for each in plans(Faults(wrong_length=1.0), 200)}
    assert lengths == {96, 97, 98, 99, 101, 102, 103, 104}


def test_ten_times_the_faults_are_ten_times_as_many_and_never_more_than_all_requests() -> None:
    standard = Faults.preset("standard")
    assert standard.times(10).total == pytest.approx(10 * standard.total)
    assert standard.times(10).latency.slow == pytest.approx(0.1)
    assert standard.times(10).throttle == standard.throttle
    capped = standard.times(1e6)
    assert capped.total == pytest.approx(1)
    assert capped.stalled / capped.reset == pytest.approx(2)
    assert Faults().times(10) == Faults()


def test_scaled_time_is_shorter_everywhere() -> None:
    faults = Faults(
        latency=Latency.preset("cross-region"), stalled=0.1, bandwidth=MIB, throttle=500, expired_at=60, expired_for=30
    )
    fast = faults.scaled(0.01)
    assert fast.stall == (0.02, 0.1)
    assert (fast.bandwidth, fast.throttle, fast.expired_at, fast.expired_for) == (100 * MIB, 50_000, 0.6, 0.3)
    assert fast.stalled == 0.1
    slow, quick = plans(faults, 200), plans(fast, 200)
    assert [each.delay for each in quick] == pytest.approx([each.delay / 100 for each in slow])
    assert [each.fault for each in quick] == [each.fault for each in slow]


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = Bucket(rate=10, burst=5)
    assert [bucket.take(0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert sum(bucket.take(number / 100) for number in range(100, 200)) == 5 + 10 - 1
    assert Bucket(rate=0, burst=0).take(0.0)


def test_credentials_expire_at_a_time_and_for_a_time() -> None:
    faults = Faults(expired_at=10, expired_for=5)
    assert [faults.expires(now) for now in (0, 9.9, 10, 14.9, 15)] == [False, False, True, True, False]
    assert Faults(expired_at=10).expires(math.inf) is False
    assert not Faults().expires(1e9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reset": 1.5}, r"Faults\(reset=…\) is a share, from 0 to 1: got 1.5"),
        ({"reset": 0.6, "stalled": 0.6}, "together at most 1, got 1.2"),
        ({"bandwidth": -1}, r"Faults\(bandwidth=…\) may not be negative"),
        ({"throttle": math.nan}, r"Faults\(throttle=…\) may not be negative"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Faults(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Latency\(slow=…\) is a share"):
        Latency(slow=2)


def test_a_repr_says_what_is_not_usual_and_pickles_come_back() -> None:
    faults = Faults(reset=0.5, throttle=10)
    assert repr(faults) == "Faults(reset=0.5, throttle=10)"
    assert pickle.loads(pickle.dumps(faults)) == faults


def test_where_nothing_is_ordered_nothing_happens() -> None:
    assert set(plans(Faults(), 10)) == {Plan()}
    assert {plan(Faults(), Random(number))[:2] for number in range(50)} == {(0.0, None)}


def test_faults_of_requests_are_independent_of_each_other() -> None:
    found = [each.fault is not None for each in plans(Faults(reset=0.5), 2_000)]
    both = sum(a and b for a, b in itertools.pairwise(found))
    assert both / 2_000 == pytest.approx(0.25, abs=0.04)
