"""CPUs: those of the machine, those that this process may run on, what a cgroup gives; and for how many workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from aloader.checkup.report import Check, ok, warning
from aloader.checkup.words import counted
from aloader.pool.limits import cpus_allowed


@dataclass(frozen=True, slots=True)
class Facts:
    """`machine`: what `os.cpu_count` says; `affinity`: what this process may run on; `quota`: a cgroup's, if any."""

    machine: int
    affinity: int
    quota: int | None = None
    ranks: int = 1  # processes that train on this machine (LOCAL_WORLD_SIZE)

    @property
    def usable(self) -> int:
        """CPUs of one rank, at least one."""
        return max(1, min(self.affinity, self.quota or self.affinity) // self.ranks)


def look() -> Facts:
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    return Facts(machine, affinity, cpus_allowed(), max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)))


def usable() -> int:
    """CPUs that workers of one rank may use."""
    return look().usable


def judge(facts: Facts) -> Iterator[Check]:
    text = f"{counted(facts.usable, 'CPU')} for this process"
    text += f", of {facts.machine}" if facts.usable != facts.machine else ""
    text += f", shared by {facts.ranks} ranks" if facts.ranks > 1 else ""
    use = f"num_workers={facts.usable} at most"
    if facts.affinity == 1 < facts.machine:
        why = f"{text}: it may run on one alone (taskset, a batch system, or a library that has pinned it)"
        yield warning("cpus", why, "Slurm: --cpus-per-task; else os.sched_setaffinity, before the loader starts")
    elif facts.quota is not None and facts.quota < facts.affinity:
        why = f"{text}: a cgroup's quota. os.cpu_count() does not tell"
        yield warning("cpus", why, f"{use}, or raise the quota (docker's --cpus, Kubernetes' limits.cpu)")
    else:
        yield ok("cpus", f"{text}: {use}, if samples are decoded; for waiting on a store, 1 or 2 do")
