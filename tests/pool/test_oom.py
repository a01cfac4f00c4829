"""Want of memory is seen in the kernel's counters: of cgroups, of either version, and of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aloader.pool.oom import OomWatch


class Machine:
    """Files as the kernel has them, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        self.own = folder / "own"
        self.vmstat = folder / "vmstat"

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def watch(self) -> OomWatch:
        return OomWatch(self.root, self.own, self.vmstat)


def events(kills: Any) -> str:
    return f"low 0\nhigh 0\nmax 91\noom 2\noom_kill {kills}\noom_group_kill 0\n"


def control(kills: Any) -> str:
    return f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"


def vmstat(kills: Any) -> str:
    return f"nr_free_pages 1931862\noom_kill {kills}\npgfault 12\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("own", "path", "text", "what"),
    [
        ("0::/user.slice/job\n", "user.slice/job/memory.events", events, "the cgroup /user.slice/job"),
        ("0::/\n", "memory.events", events, "the cgroup /"),
        ("0::/../../elsewhere\n", "memory.events", events, "the cgroup of this container"),
        (
            "12:cpu,cpuacct:/\n9:memory:/docker/12ab\n1:name=systemd:/x\n",
            "memory/docker/12ab/memory.oom_control",
            control,
            "the cgroup /docker/12ab",
        ),
        ("9:memory:/docker/12ab\n", "memory/memory.oom_control", control, "the cgroup of this container"),
        (None, "memory.events", events, "the cgroup of this container"),
    ],
    ids=["v2", "v2 root", "v2 container", "v1", "v1 container", "unknown"],
)
def test_a_counter_that_grows_is_news_once(machine, own, path, text, what):
    if own is not None:
        machine.own.write_text(own)
    machine.write(path, text(3))
    watch = machine.watch()
    assert watch.sees
    assert watch.news() == ""
    machine.write(path, text(5))
    assert watch.news() == f"{what} ran out of memory (oom_kill +2)"
    assert watch.news() == ""
    machine.write(path, text(6))
    assert watch.news() == f"{what} ran out of memory (oom_kill +1)"


def test_the_machine_is_looked_at_too_and_the_nearest_is_named(machine):
    machine.own.write_text("0::/job\n")
    machine.vmstat.write_text(vmstat(7))
    watch = machine.watch()
    machine.vmstat.write_text(vmstat(8))
    assert watch.news() == "the machine ran out of memory (oom_kill +1)"
    machine.write("job/memory.events", events(1))  # a counter that was not there counts from 0
    machine.vmstat.write_text(vmstat(9))
    assert watch.news() == "the cgroup /job ran out of memory (oom_kill +1)"
    assert watch.news() == ""


@pytest.mark.parametrize("nonsense", ["", "oom_kill\n", "oom_kill many\n", "under_oom 1\n"])
def test_where_nothing_counts_nothing_is_seen(machine, nonsense):
    assert not machine.watch().sees
    machine.own.write_text("0::/job\n")
    machine.write("job/memory.events", nonsense)
    watch = machine.watch()
    assert not watch.sees
    assert watch.news() == ""


def test_counters_that_vanish_are_no_news(machine):
    machine.own.write_text("0::/job\n")
    machine.write("job/memory.events", events(4))
    watch = machine.watch()
    (machine.root / "job" / "memory.events").unlink()
    assert watch.news() == ""
    assert not watch.sees


@pytest.mark.parametrize("own", ["nonsense\n", "\n", "0:/job\n"])
def test_a_file_of_another_form_is_passed_over(machine, own):
    machine.own.write_text(own)
    machine.vmstat.write_text(vmstat(1))
    assert machine.watch().sees


def test_on_this_machine_it_can_look():
    assert OomWatch().news() == ""
