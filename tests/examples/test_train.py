"""`examples/train_ddp.py` and `examples/train_resume.py` under torchrun, as they are run: with signals, and killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SAMPLES = 1797
EPOCHS = 2
SECONDS = 100

#: The command of that name.
TORCHRUN = "from torch.distributed.run import main; main()"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, written by the first program that finds nothing there."""
    return tmp_path_factory.mktemp("digits")


def environment(folder: Path) -> dict[str, str]:
    """Temporary files of torch's lie in the test's folder, too: it leaves some."""
    ours = {"PYTHONPATH": str(EXAMPLES.parent), "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}
    return os.environ | ours | {"TMPDIR": str(folder)}


class Torchrun:
    """An example on so many ranks. Its files lie in `folder`; nobody's output goes elsewhere."""

    def __init__(self, ranks: int, example: str, folder: Path, *arguments: object) -> None:
        launcher = [sys.executable, "-c", TORCHRUN, "--standalone", "--nproc-per-node", str(ranks)]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*launcher, str(EXAMPLES / example), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(folder),
        )

    def until(self, epoch: int, steps: int) -> None:
        """Read what it prints, until it is in an epoch and has gone so many steps from its start."""
        assert self.process.stdout is not None
        gone = 0
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.match(r"epoch (\d+)  step", line)
            gone += found is not None
            if found is not None and int(found[1]) >= epoch and gone >= steps:
                return
        pytest.fail("it has ended:\n" + "".join(self.lines))

    def end(self) -> int:
        """Wait for its end: torchrun's own exit status."""
        rest, _ = self.process.communicate(timeout=SECONDS)
        self.lines += rest.splitlines(keepends=True)
        return self.process.returncode

    def kill_all(self) -> None:
        """Of torchrun, its ranks and their workers, nobody gets a word in."""
        for process in [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass  # a worker whose rank has been killed just now
        self.end()


@pytest.mark.parametrize("ranks", [2])
def test_ranks_see_equally_many_batches_and_every_sample(tmp_path: Path, data: Path, ranks: int) -> None:
    running = Torchrun(ranks, "train_ddp.py", tmp_path, "--data", data, "--epochs", EPOCHS)
    assert running.end() == 0, "".join(running.lines)
    reports = [line for line in running.lines if line.startswith("epoch")]
    assert len(reports) == EPOCHS
    batches = -(-SAMPLES // (64 * ranks))
    for line in reports:
        assert f"{ranks} ranks had {batches} batches each, with 1,797 of 1,797 samples" in line
        assert ("1 twice" in line) is (ranks == 2)
    accuracy = re.search(r"accuracy +([\d.]+)%", reports[-1])
    assert accuracy is not None
    assert float(accuracy[1]) > 75  # measured: 88 and 93


def test_without_torchrun_it_is_the_same_program(tmp_path: Path, data: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_ddp.py"), "--data", str(data), "--epochs", "1"]
    done = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 ranks had 29 batches each, with 1,797 of 1,797 samples\n" in done.stdout


class Resumed:
    """One training, over as many runs as it takes."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        self._audit = folder / "audit"
        arguments: dict[str, object] = {"folder": folder / "saved", "data": data, "audit": self._audit}
        arguments |= {"epochs": EPOCHS, "batch-size": 32}
        self._arguments = [part for name, value in arguments.items() for part in (f"--{name}", value)]

    def start(self, ranks: int, workers: int) -> Torchrun:
        return Torchrun(ranks, "train_resume.py", self.folder, *self._arguments, "--workers", workers)

    def saved_step(self) -> int:
        (name,) = (path.name for path in (self.folder / "saved").glob("step-*"))
        return int(name.removeprefix("step-"))

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._audit.read_text().splitlines()]


def assert_once_each(lines: list[dict[str, Any]]) -> None:
    for epoch in range(EPOCHS):
        times = Counter(index for line in lines if line["epoch"] == epoch for index in line["indices"])
        assert times == Counter(range(SAMPLES)), f"epoch {epoch}"


def test_stopped_by_sigterm_it_goes_on_with_other_ranks_and_every_sample_comes_once(tmp_path: Path, data: Path) -> None:
    training = Resumed(tmp_path, data)
    running = training.start(2, workers=1)
    running.until(epoch=0, steps=5)
    running.process.send_signal(signal.SIGTERM)
    running.end()  # with status 1, as torchrun does that has been signalled
    assert not [line for line in running.lines if "SIGKILL" in line or "WorkerLost" in line]
    (saved,) = {max(line["step"] for line in training.audit() if line["rank"] == rank) for rank in range(2)}
    assert training.saved_step() == saved, "ranks did not stop at the same step, which is the one that was saved"
    last = training.start(1, workers=0)
    assert last.end() == 0, "".join(last.lines)
    lines = training.audit()
    assert {line["rank"] for line in lines if line["epoch"] == 0} == {0, 1}
    assert {line["rank"] for line in lines if line["epoch"] == 1} == {0}
    assert_once_each(lines)


def test_killed_it_goes_on_from_what_was_saved_last_and_misses_nothing(tmp_path: Path, data: Path) -> None:
    training = Resumed(tmp_path, data)
    running = training.start(1, workers=1)
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
