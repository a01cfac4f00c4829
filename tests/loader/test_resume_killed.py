"""A program that trains is killed at any moment, and goes on from what it saved last: nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from .programs import Program

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

N = 600

#: Each line of the log is one step's samples. A state is saved with how many steps had been logged by then. Programs
#: are forks of one that has imported everything, and makes no loader itself.
PROGRAM = """
import json, os, pathlib, random, signal, sys, time
from aloader import DataLoader
from tests.loader.samples import AsyncNumbers, Numbers

def train(folder, begun, kind, workers, **arguments):
    saved = folder / "saved"
    loader = DataLoader(kind({n}), batch_size=4, shuffle=True, num_workers=workers, **arguments)
    steps = 0
    if saved.exists():
        checkpoint = json.loads(saved.read_text())
        loader.load_state_dict(checkpoint["loader"])
        steps = checkpoint["steps"]
    with loader, open(folder / "log", "a") as log:
        for batch in loader:
            steps += 1
            print(steps, *batch.tolist(), file=log, flush=True)
            os.write(begun, b".")
            time.sleep(0.003)  # sleep: a step of training
            if steps % 3 == 0:
                new = folder / "new"
                new.write_text(json.dumps({{"steps": steps, "loader": loader.state_dict()}}))
                os.replace(new, saved)

def begin(folder, *args, **arguments):
    heard, begun = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            train(folder, begun, *args, **arguments)
            sys.stdout.flush()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(begun)
    os.read(heard, 1)
    return pid

def killed_and_resumed(folder, number, *args, **arguments):
    folder.mkdir()
    moments = random.Random(number)
    for _ in range(3):
        pid = begin(folder, *args, **arguments)
        time.sleep(moments.uniform(0, 0.06))  # sleep: the moment at which it is killed
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert status == signal.SIGKILL, "it had not come to its end"
    _, status = os.waitpid(begin(folder, *args, **arguments), 0)
    assert status == 0

folder = pathlib.Path({folder!r})
killed_and_resumed(folder / "inline", 1, Numbers, 0, seed=4)
killed_and_resumed(folder / "async", 2, AsyncNumbers, 0)
killed_and_resumed(folder / "workers", 3, Numbers, 2, seed=4)
"""


def test_programs_that_are_killed_at_random_moments(tmp_path: Path) -> None:
    with Program(tmp_path, PROGRAM.format(n=N, folder=str(tmp_path))) as program:
        ended = program.end()
        assert ended.code == 0, ended.err
    for kind in ("inline", "async", "workers"):
        seen: set[int] = set()
        by_step: dict[int, list[int]] = {}
        for line in (tmp_path / kind / "log").read_text().splitlines():
            step, *samples = map(int, line.split())
            by_step[step] = samples  # of steps that were made again, what the program had that went on
            seen |= set(samples)
        assert seen == set(range(N)), "each sample at least once"
        assert sorted(by_step) == list(range(1, N // 4 + 1))
        counted = [sample for samples in by_step.values() for sample in samples]
        assert sorted(counted) == list(range(N)), "exactly once, counted from the saved states"
