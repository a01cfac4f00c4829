"""`examples/train_ddp.py` and `examples/train_resume.py` as they are run: on several ranks, with signals, and killed.

What torchrun does with a signal is torchrun's, so one test runs under it. The others' ranks are started as it does.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.ranks import Ranks, environment

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SAMPLES = 1797
EPOCHS = 2

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, written by the first program that finds nothing there."""
    return tmp_path_factory.mktemp("digits")


@pytest.fixture(scope="module")
def trainers(warm_with: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    """`subprocess`, for programs that train: with its first optimizer torch imports its compiler, which takes a
    processor several times as long as torch.
    """
    return warm_with("torch._dynamo", variables=environment())


#: Goes before the command of that name: its ranks are forked from one process that has imported what both need.
FORKING = """
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from tests.warm import Warmth
subprocess_handler.Popen = Warmth("torch._dynamo").subprocess.Popen
"""


@pytest.fixture
def torchrun(request: pytest.FixtureRequest) -> list[str]:
    """The launcher of two ranks, which comes before a script. Their sessions, and signals, are its own doing."""
    code = "from torch.distributed.run import main; main()"
    code = code if request.config.getoption("--cold") else FORKING + code
    return ["-c", code, "--standalone", "--nproc-per-node", "2"]


class Example(Ranks):
    """An example that runs. Its files lie in `folder`; nobody's output goes elsewhere."""

    def until(self, epoch: int, steps: int) -> None:
        """Read what rank 0 prints, until it is in an epoch and has gone so many steps from its start."""
        output = self.processes[0].stdout
        assert output is not None
        gone = 0
        for line in output:
            self.lines.append(line)
            found = re.match(r"epoch (\d+)  step", line)
            gone += found is not None
            if found is not None and int(found[1]) >= epoch and gone >= steps:
                return
        pytest.fail("it has ended:\n" + "".join(self.lines))

    def kill_all(self) -> None:
        """Of ranks and their workers, nobody gets a word in."""
        for rank in self.processes:
            for process in [psutil.Process(rank.pid), *psutil.Process(rank.pid).children(recursive=True)]:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass  # a worker whose rank has been killed just now
        self.end()


def test_ranks_see_equally_many_batches_and_every_sample(trainers: SimpleNamespace, tmp_path: Path, data: Path) -> None:
    command = [EXAMPLES / "train_ddp.py", "--data", data, "--epochs", EPOCHS]
    running = Example(command, tmp_path, 2, trainers.Popen)
    assert running.end() == 0, "".join(running.lines)
    reports = [line for line in running.lines if line.startswith("epoch")]
    assert len(reports) == EPOCHS
    for line in reports:
        assert "2 ranks had 15 batches each, with 1,797 of 1,797 samples, 1 twice" in line
    accuracy = re.search(r"accuracy +([\d.]+)%", reports[-1])
    assert accuracy is not None
    assert float(accuracy[1]) > 75  # measured: 88 and 93


def test_alone_it_is_the_same_program(trainers: SimpleNamespace, tmp_path: Path, data: Path) -> None:
    command = [EXAMPLES / "train_ddp.py", "--data", data, "--epochs", 1]
    running = Example(command, tmp_path, None, trainers.Popen)
    assert running.end() == 0, "".join(running.lines)
    assert "1 ranks had 29 batches each, with 1,797 of 1,797 samples\n" in "".join(running.lines)


class Resumed:
    """One training, over as many runs as it takes."""

    def __init__(self, trainers: SimpleNamespace, folder: Path, data: Path) -> None:
        self.folder = folder
        self._trainers = trainers
        self._audit = folder / "audit"
        arguments: dict[str, object] = {"folder": folder / "saved", "data": data, "audit": self._audit}
        arguments |= {"epochs": EPOCHS, "batch-size": 32}
        self._command: list[object] = [EXAMPLES / "train_resume.py"]
        for name, value in arguments.items():
            self._command += [f"--{name}", value]

    def start(self, ranks: int | None, workers: int, launcher: Sequence[object] = ()) -> Example:
        command = [*launcher, *self._command, "--workers", workers]
        return Example(command, self.folder, ranks, self._trainers.Popen)

    def saved_step(self) -> int:
        (name,) = (path.name for path in (self.folder / "saved").glob("step-*"))
        return int(name.removeprefix("step-"))

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._audit.read_text().splitlines()]


def assert_once_each(lines: list[dict[str, Any]]) -> None:
    for epoch in range(EPOCHS):
        times = Counter(index for line in lines if line["epoch"] == epoch for index in line["indices"])
        assert times == Counter(range(SAMPLES)), f"epoch {epoch}"


def test_stopped_by_sigterm_it_goes_on_with_other_ranks_and_every_sample_comes_once(
    trainers: SimpleNamespace, torchrun: list[str], tmp_path: Path, data: Path
) -> None:
    training = Resumed(trainers, tmp_path, data)
    running = training.start(None, workers=1, launcher=torchrun)
    running.until(epoch=0, steps=5)
    running.processes[0].send_signal(signal.SIGTERM)
    running.end()  # with status 1, as torchrun does that has been signalled
    assert not [line for line in running.lines if "SIGKILL" in line or "WorkerLost" in line]
    (saved,) = {max(line["step"] for line in training.audit() if line["rank"] == rank) for rank in range(2)}
    assert training.saved_step() == saved, "ranks did not stop at the same step, which is the one that was saved"
    last = training.start(None, workers=0)
    assert last.end() == 0, "".join(last.lines)
    lines = training.audit()
    assert {line["rank"] for line in lines if line["epoch"] == 0} == {0, 1}
    assert {line["rank"] for line in lines if line["epoch"] == 1} == {0}
    assert_once_each(lines)


def test_killed_it_goes_on_from_what_was_saved_last_and_misses_nothing(
    trainers: SimpleNamespace, tmp_path: Path, data: Path
) -> None:
    training = Resumed(trainers, tmp_path, data)
    running = training.start(None, workers=1)
    running.until(epoch=1, steps=1)  # the end of epoch 0 has been saved
    running.until(epoch=1, steps=5)
    running.kill_all()
    saved, before = training.saved_step(), training.audit()
    lost = [line for line in before if line["step"] > saved]
    assert lost, "it was killed before it had trained on anything that was not saved"
    again = training.start(2, workers=0)
    assert again.end() == 0, "".join(again.lines)
    after = training.audit()[len(before) :]
    assert_once_each([line for line in before if line["step"] <= saved] + after)
    assert {index for line in lost for index in line["indices"]} <= {i for line in after for i in line["indices"]}
