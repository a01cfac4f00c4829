"""What is said of a worker's death: how it died and of what, where it crashed, what it had written, who has memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aloader import DataLoader, WorkerLost, WorkerPool
from aloader.pool.oom import OomWatch

from .dying import Fate, Mortal, Stream, restarts, run
from .samples import Numbers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


def watched(loader: DataLoader[Any], folder: Path) -> Iterator[Any]:
    """An epoch whose crew looks at counters in a folder."""
    batches = iter(loader)
    loader._runtime._last.crew.oom = OomWatch(folder, folder / "own", folder / "vmstat")  # type: ignore[union-attr]
    return batches


def test_each_death_is_told_in_its_own_words(pool, tmp_path):
    fate = Fate(tmp_path / "fate", once=(1, 3, 5), how={1: "crash", 3: "exit", 5: "kill"})
    (tmp_path / "vmstat").write_text("oom_kill 4\n")
    with DataLoader(Mortal(fate, 8), 2, num_workers=1, pool=pool) as loader, restarts() as told:
        assert run(watched(loader, tmp_path)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    crash, exit, kill = told
    assert "was killed by signal SIGSEGV while fetching sample 1 (batch 0)" in crash
    assert "The last that it wrote to stderr:\n  about to read from nowhere" in crash
    assert "exited unexpectedly with code 7 while fetching sample 3 (batch 1)" in exit
    assert "The last that it wrote to stderr:\n  giving up" in exit
    assert "was killed by signal SIGKILL while fetching sample 5 (batch 2)" in kill
    assert "not the kernel's out-of-memory killer, whose count has not changed: somebody sent the signal" in kill
    assert "stderr" not in kill
    assert all("Its peak memory was" in text for text in told)
    assert all(text.endswith("nothing is lost.") for text in told)


def test_where_no_counter_can_be_read_the_killer_is_only_suspected(pool, tmp_path):
    with DataLoader(Mortal(Fate(tmp_path / "fate", once=(1,)), 4), 2, num_workers=1, pool=pool) as loader:
        with restarts() as told:
            assert run(watched(loader, tmp_path)) == [[0, 1], [2, 3]]
    assert "SIGKILL often is the kernel's out-of-memory killer (see `dmesg`)" in told[0]


class Hungry(Numbers):
    """Some samples are too much for the machine, which counts that and kills. Says how many were in flight."""

    flying = 0

    def __init__(self, vmstat: Path, fatal: dict[int, int], n: int = 40) -> None:
        super().__init__(n)
        self.vmstat = vmstat
        self.fate = Fate(vmstat.parent / "fate", once=fatal)
        self.fatal = fatal

    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        self.flying += 1
        await asyncio.sleep(0)
        if index in self.fatal and self.fate.first_time(index):
            self.vmstat.write_text(f"oom_kill {self.fatal[index]}\n")
            os.kill(os.getpid(), 9)
        flying, _ = self.flying, await asyncio.sleep(0)
        self.flying -= 1
        return flying


def test_want_of_memory_is_met_with_less_and_the_second_time_is_an_error(pool, tmp_path):
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("oom_kill 4\n")
    arguments = {"num_workers": 2, "pool": pool, "concurrency": 16, "prefetch_factor": 2}
    with DataLoader(Hungry(vmstat, {0: 5, 24: 7}), 4, **arguments) as loader, restarts() as told:
        got = run(watched(loader, tmp_path))
    assert got[0] == [4] * 4 or max(got[0]) <= 4
    assert len(told) == 1
    assert "The kernel's out-of-memory killer did it: the machine ran out of memory (oom_kill +1)" in told[0]
    assert "Use fewer workers, a smaller batch_size, concurrency= or memory_limit=" in told[0]
    lost = [one for one in got if isinstance(one, WorkerLost)]
    assert lost
    assert "the machine ran out of memory (oom_kill +2)" in str(lost[0])
    assert "Memory now: the program " in str(lost[0])
    assert ", worker 1 " in str(lost[0])


# -- what is said of samples and marks ---------------------------------------------------------------------------------


class Speechless(Stream):
    """Cannot say where it is."""

    def state_dict(self) -> dict[str, int]:
        raise LookupError("no idea where I am")


def test_a_reader_that_cannot_say_where_it_was_is_not_replaced_and_nothing_hangs(pool, tmp_path):
    dataset = Speechless(Fate(tmp_path / "fate", once=(5,)), 12)
    with DataLoader(dataset, 2, num_workers=2, pool=pool) as loader, restarts() as told:
        got = run(loader)
    (lost,) = [one for one in got if isinstance(one, Exception)]
    assert isinstance(lost, WorkerLost)
    assert "SIGKILL while fetching" in str(lost)
    assert str(lost).count("It could not be replaced: no idea where I am") == 1
    assert [batch for batch in got if batch is not lost and not batch[0] % 2] == [[0, 2], [4, 6], [8, 10]]
    assert [1, 3] in got
    assert told == []
