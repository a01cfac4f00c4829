"""What is counted per process, user or cgroup: descriptors and processes, against what workers need of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aloader.checkup.cpus import usable
from aloader.checkup.report import Check, ok, problem, warning
from aloader.checkup.words import counted
from aloader.options import CONCURRENCY
from aloader.pool.limits import cgroups

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

#: Descriptors that a program with a loader needs: torch, the template, open files of the user's; those for each worker
#: (its link, its status page, its segments of memory); and the connections to a store, of one process.
OWN: Final = 128
EACH: Final = 16
CONNECTIONS: Final = CONCURRENCY

#: Processes and threads: the template's two, and of each worker its own and those that read files.
TEMPLATE: Final = 4
THREADS: Final = 12


@dataclass(frozen=True, slots=True)
class Facts:
    """None: no limit, or not told. `tasks` are this user's processes and threads, `pids` those of the cgroup."""

    workers: int
    soft: int | None
    hard: int | None
    open: int
    nproc: int | None = None
    tasks: int = 0
    pids_max: int | None = None
    pids: int = 0


def look() -> Facts:
    soft = hard = nproc = None
    if resource is not None:
        soft, hard = map(_number, resource.getrlimit(resource.RLIMIT_NOFILE))
        nproc = _number(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    if nproc is not None and os.geteuid() == 0:
        nproc = None  # it does not hold for root
    most, now = _pids()
    tasks = _tasks() if nproc is not None else 0
    return Facts(usable(), soft, hard, _open(), nproc, tasks, most, now)


def judge(facts: Facts) -> Iterator[Check]:
    yield _descriptors(facts)
    yield _processes(facts)


def _descriptors(facts: Facts) -> Check:
    needed = OWN + EACH * facts.workers + CONNECTIONS
    if facts.soft is None:
        return ok("descriptors", f"{facts.open} open, of any number")
    text = f"{facts.open} open, of {facts.soft:,}"
    if facts.soft - facts.open >= needed:
        return ok("descriptors", text)
    workers = counted(facts.workers, "worker")
    why = f"{text}: {workers} and {CONNECTIONS} requests to a store at once need about {needed:,} more"
    wanted = needed + facts.open
    if facts.hard is None or facts.hard >= wanted:
        remedy = f"ulimit -n {min(65536, facts.hard or 65536)}"
    else:
        remedy = f"raise the hard limit, which is {facts.hard:,} (limits.conf, docker run --ulimit nofile=65536)"
    short = facts.soft - facts.open < OWN
    return problem("descriptors", why, remedy) if short else warning("descriptors", why, remedy)


def _processes(facts: Facts) -> Check:
    needed = TEMPLATE + THREADS * facts.workers
    limits = [
        (facts.nproc, facts.tasks, "this user", "ulimit -u unlimited"),
        (facts.pids_max, facts.pids, "this cgroup", "docker run --pids-limit=-1 (Kubernetes: podPidsLimit)"),
    ]
    left = [(most - now, now, most, whose, remedy) for most, now, whose, remedy in limits if most is not None]
    if not left:
        return ok("processes", "any number")
    room, now, most, whose, remedy = min(left)
    text = f"{now:,} of the {most:,} processes and threads that {whose} may have"
    if room >= needed:
        return ok("processes", text)
    why = f"{text}: about {needed:,} more are needed for {counted(facts.workers, 'worker')}"
    return (problem if room < TEMPLATE + THREADS else warning)("processes", why, f"{remedy}; or fewer workers")


# -- looking ----------------------------------------------------------------------------------------------------------


def _number(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _open() -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return 0


def _tasks() -> int:
    """Threads of this user's processes, which is what the limit counts."""
    own, count = os.getuid(), 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == own:
                count += os.stat(f"/proc/{entry.name}/task").st_nlink - 2
        except OSError:
            pass  # it has gone
    return count


def _pids() -> tuple[int | None, int]:
    found: list[tuple[int, int, int]] = []
    for folder in cgroups("pids"):
        texts = [_text(folder / name) for name in ("pids.max", "pids.current")]
        if all(map(str.isdigit, texts)):
            most, now = map(int, texts)
            found.append((most - now, most, now))
    return min(found)[1:] if found else (None, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
