"""The examples about devices, on the CPU and on the simulated accelerator: what they promise where there is no GPU."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def example() -> Iterator[Callable[[str], Any]]:
    """Imports an example, or a benchmark, as its own folder's programs do."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        patch.syspath_prepend(str(EXAMPLES / "benchmarks"))
        yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_timeline_in_the_docs_is_what_its_program_draws(example):
    timeline = example("device_timeline")
    assert timeline.as_svg(timeline.both()) == (ROOT / "docs" / "howto" / "gpu-timeline.svg").read_text()


@pytest.mark.parametrize("copy", [0.003, 0.010, 0.015])
def test_copies_of_the_loaders_stage_hide_behind_steps_as_far_as_they_can(example, copy):
    device = example("device")
    best = max(0.0, 1 - 0.010 / copy)  # of the time nothing can be computed, if copies take longer
    ours, theirs = (device.played(play, copy, 0.010) for play in (device.play_device, device.play_to))
    assert ours.idle == pytest.approx(best, abs=0.02)
    assert theirs.idle > ours.idle + 0.2
    assert ours.most <= 3


def test_the_benchmarks_docstring_has_the_schedule_that_it_prints(example):
    device = example("device")
    for line in device.schedule().splitlines():
        assert line in device.__doc__


def test_two_runs_of_the_transform_give_the_same_bytes(example):
    transform = example("device_transform")
    scenes, augment = transform.Scenes(48), transform.Augment("cpu")
    runs = {transform.digest(scenes, "cpu", augment, None, workers) for workers in (0, 1)}
    assert len(runs) == 1
    assert transform.decodes_on("cpu")  # says why not


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is something to ask")
def test_without_a_gpu_nothing_is_asked():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "gpu_questions.py")],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "no accelerator here\n"), done.stderr


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_question_that_fails_ends_or_hangs_is_answered_all_the_same(example):
    means = example("gpu_means")
    assert means.asked(lambda: means.Answer(True, "yes"), 10).verdict == "PASS"
    assert means.asked(lambda: 1 / 0, 10) == means.Answer(False, "ZeroDivisionError: division by zero")
    assert means.asked(lambda: sys.exit(3), 10).text == "SystemExit: 3"
    assert means.asked(threading.Event().wait, 0.01, grace=0.01).text == "no answer within 0 s"
