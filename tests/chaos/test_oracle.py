"""The oracle sees what it is there for: faults are planted, one by one, into what an honest loader would give."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aloader.errors import WorkerLost

from .consumer import wait_after
from .data import Corrupt, Field, content, dataset
from .leftovers import Inventory
from .oracle import EpochOracle, Kept, expected_of, losses
from .scenario import PLENTY, Scenario, scenario

Rows = list[list[Any]]


def chosen(**changed: Any) -> Scenario:
    """A scenario of 20 samples in 5 batches."""
    given = {"kind": "plain", "samples": 20, "batch_size": 4, "nbytes": 100, "ragged": False}
    given |= {"corrupt": (), "poison": ()}
    arguments = {"drop_last": False, "in_order": changed.pop("in_order", True), "seed": None}
    return replace(scenario(0), **{**given, "arguments": arguments, **changed})


def honest(scenario: Scenario) -> list[Rows]:
    """What should come."""
    samples = dataset(scenario)
    expected = expected_of(scenario, range(scenario.samples))
    made = [[list(samples.sample(index, index / 100)) for index in batch] for batch in expected.batches]
    for row in itertools.chain(*made):
        row[Field.DATA] = row[Field.DATA].copy()
    return made


def seen(batches: list[Rows], *, ended: bool = True, drawn: bool = True, **changed: Any) -> list[str]:
    """What the oracle says of that."""
    known = {index: index / 100 for index in range(20)} if drawn else None
    oracle = EpochOracle(expected_of(chosen(**changed), range(20), known))
    for batch in batches:
        oracle.got(batch)
    if ended:
        oracle.ended()
    return oracle.complaints


def flip(batches: list[Rows]) -> None:
    batches[2][1][Field.DATA][17] ^= 4


def draw(batches: list[Rows]) -> None:
    batches[2][1][Field.DRAWN] = 0.5


def double(batches: list[Rows]) -> None:
    batches.insert(3, batches[2])


def swap(batches: list[Rows]) -> None:
    batches[1], batches[2] = batches[2], batches[1]


def mix(batches: list[Rows]) -> None:
    batches[1][0], batches[2][0] = batches[2][0], batches[1][0]


def mistake(batches: list[Rows]) -> None:
    """A sample with another one's bytes, and that one's checksum."""
    batches[1][0][Field.DATA], batches[1][0][Field.CHECKSUM] = batches[2][0][Field.DATA], batches[2][0][Field.CHECKSUM]


@pytest.mark.parametrize("in_order", [True, False])
def test_an_honest_epoch_is_no_cause_for_complaint(in_order: bool) -> None:
    assert seen(honest(chosen()), in_order=in_order) == []
    assert seen(honest(chosen())[:2], ended=False) == []


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (lambda batches: batches.pop(2), "batches short"),
        (lambda batches: batches.pop(), "batches short"),
        (double, "again"),
        (flip, "bytes of sample 9"),
        (draw, "sample 9 drew 0.5"),
        (mix, "none of the epoch's"),
        (mistake, "bytes of sample 4"),
        (lambda batches: batches[1].pop(), "none of the epoch's"),
    ],
    ids=["lost", "lost at the end", "doubled", "flipped", "drawn", "mixed", "mistaken", "short"],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_what_is_planted_is_seen(plant: Callable[[Any], Any], says: str, in_order: bool) -> None:
    batches = honest(chosen())
    plant(batches)
    assert says in " ".join(seen(batches, in_order=in_order))


def test_order_counts_where_it_is_promised() -> None:
    batches = honest(chosen())
    swap(batches)
    assert "not [4, 5, 6, 7]" in " ".join(seen(batches))
    assert seen(batches, in_order=False) == []


def test_workers_take_turns_with_their_shares() -> None:
    stream = chosen(kind="stream", workers=2, samples=21)
    expected = expected_of(stream, []).batches
    assert [batch[0] for batch in expected] == [0, 1, 8, 9, 16, 17]
    assert expected[-2] == (16, 18, 20)
    dropping = replace(stream, arguments={**stream.arguments, "drop_last": True})
    assert [batch[0] for batch in expected_of(dropping, []).batches] == [0, 1, 8, 9]


def test_a_corrupt_sample_fails_in_its_place_and_nowhere_else() -> None:
    scenario = chosen(corrupt=(6,))
    batches = [batch for batch in honest(chosen()) if batch[0][Field.INDEX] != 4]

    def complaints(place: int) -> list[str]:
        oracle = EpochOracle(expected_of(scenario, range(20)))
        for number, batch in enumerate(batches):
            if number == place:
                oracle.failed(Corrupt("it is"))
            oracle.got(batch)
        oracle.ended()
        return oracle.complaints

    assert complaints(1) == []
    assert "failed at place 2" in " ".join(complaints(2))
    assert "batches short" in complaints(-1)[-1]


def test_no_more_fails_than_has_to() -> None:
    oracle = EpochOracle(expected_of(chosen(corrupt=(6,), in_order=False), range(20)))
    oracle.failed(Corrupt("it is"))
    assert oracle.complaints == []
    oracle.failed(Corrupt("so is another"))
    assert "no corrupt sample" in oracle.complaints[0]


def test_a_poison_sample_costs_its_batch_and_no_other() -> None:
    oracle = EpochOracle(expected_of(chosen(poison=(6,)), range(20)))
    batches = honest(chosen())
    oracle.got(batches[0])
    oracle.failed(WorkerLost("of sample 6"))
    for batch in batches[2:]:
        oracle.got(batch)
    oracle.ended()
    assert (oracle.complaints, oracle.lost) == ([], 0)
    oracle = EpochOracle(expected_of(chosen(poison=(6,)), range(20)))
    oracle.got(batches[0])
    oracle.got(batches[1])
    assert "a sample that fails" in oracle.complaints[0]


@pytest.mark.parametrize(
    ("on_error", "second", "sound"),
    [
        ("drop", [4, 5, 7], True),
        ("drop", [4, 5, 6, 7], False),
        ("drop", [4, 5], False),
        ("skip", [4, 5, 7, 7], True),
        ("skip", [4, 5, 4, 7], True),
        ("skip", [4, 5, 8, 7], False),
        ("skip", [4, 5, 6, 7], False),
        ("skip", [4, 5, 7], False),
    ],
)
@pytest.mark.parametrize("bad", ["corrupt", "poison"])
def test_samples_that_are_left_out(on_error: str, second: list[int], sound: bool, bad: str) -> None:
    scenario = chosen(**{bad: (6,)})
    scenario = replace(scenario, arguments={**scenario.arguments, "on_error": on_error})
    oracle = EpochOracle(expected_of(scenario, range(20)))
    batches, samples = honest(chosen()), dataset(chosen())
    batches[1] = [list(samples.sample(index, 0.0)) for index in second]
    for batch in batches:
        oracle.got(batch)
    oracle.ended()
    assert (not oracle.complaints) == sound, oracle.complaints


def test_a_lost_worker_costs_what_it_may_and_no_more() -> None:
    oracle = EpochOracle(expected_of(chosen(), range(20)))
    batches = honest(chosen())
    oracle.got(batches[0])
    oracle.failed(WorkerLost("killed"))
    for batch in batches[2:]:
        oracle.got(batch)
    oracle.ended()
    assert oracle.complaints == []
    assert losses(1, 1, PLENTY) is not None
    assert losses(1, 1, 0) is None  # it had no restarts
    assert losses(1, 3, PLENTY) is None  # three deaths at one batch: it may have been the batch's fault
    assert losses(0, 1, PLENTY) is None
    assert losses(1, 3, PLENTY, early=True) is not None  # that explains one batch, and not that others are missing


def test_an_epoch_without_workers_ends_early_and_only_with_a_loss() -> None:
    oracle = EpochOracle(expected_of(chosen(), range(20)))
    oracle.got(honest(chosen())[0])
    oracle.failed(WorkerLost("the last one"))
    oracle.ended()
    assert (oracle.complaints, oracle.ended_early) == ([], True)
    assert "4 batches short" in seen(honest(chosen())[:1])[0]


def test_another_error_is_a_complaint() -> None:
    oracle = EpochOracle(expected_of(chosen(), range(20)))
    oracle.failed(RuntimeError("what is this?"))
    assert "what is this?" in oracle.complaints[0]


def test_bytes_that_change_while_a_batch_is_kept() -> None:
    kept, batches = Kept(2), honest(chosen())
    for batch in batches:
        kept.keep(batch, batch)
    assert kept.changed() == []
    batches[0][0][Field.DATA][0] ^= 1  # it is no longer kept
    assert kept.changed() == []
    batches[-1][2][Field.DATA][99] ^= 1
    assert kept.changed() == ["the bytes of sample 18 have changed while its batch was kept"]
    kept.drop()
    assert kept.changed() == []


def test_nothing_is_kept_by_those_who_keep_nothing() -> None:
    kept, batch = Kept(0), honest(chosen())[0]
    kept.keep(batch, batch)
    batch[0][Field.DATA][0] ^= 1
    assert kept.changed() == []


def test_what_is_left_behind_is_seen(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path)
    before = inventory.take()
    assert inventory.left(before) == []
    ends, gate = os.pipe(), threading.Event()
    (tmp_path / "left").touch()
    thread = threading.Thread(target=gate.wait, name="left")
    with subprocess.Popen(["sleep", "60"]) as process:
        thread.start()
        left = inventory.left(before, grace=0.0)
        process.kill()
        gate.set()
        thread.join()
        for end in ends:
            os.close(end)
    told = " ".join(left)
    assert all(what in told for what in ("2 × descriptor of pipe", "process at depth 1", "thread left", str(tmp_path)))
    assert inventory.left(before, grace=0.05) == [f"left behind: 1 × file {tmp_path / 'left'}"]


def test_samples_differ_in_every_word() -> None:
    words = Counter(itertools.chain(*(content(index, 800).view("u8").tolist() for index in range(50))))
    assert len(words) == 50 * 100


def test_a_seed_is_a_scenario_and_scenarios_are_of_all_kinds() -> None:
    many = [scenario(seed) for seed in range(300)]
    assert many == [scenario(seed) for seed in range(300)]
    assert len({(one.kind, one.workers > 0) for one in many}) == 11  # threads need workers
    assert {one.habit for one in many} >= {"cancels", "breaks", "throws", "keeps"}
    strikes = {(strike.what, strike.when) for one in many for strike in one.strikes}
    assert strikes >= set(itertools.product(("kill", "stop"), ("start", "batch", "idle"))) | {("template", "batch")}
    assert {one.parent.signal for one in many if one.parent} == {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}


def test_the_wait_after_a_death_is_what_the_consumer_waited_for_the_next_batch() -> None:
    waits = [(0.0, 1.0), (1.5, 4.0), (4.0, 4.1)]
    assert wait_after([], waits) == 0
    assert wait_after([2.0, 4.05], waits) == pytest.approx(2.0)
    assert wait_after([1.2], waits) == pytest.approx(2.5)
    assert wait_after([9.0], waits) == 0
