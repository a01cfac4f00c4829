"""How much memory and how many CPUs there are, and what a loader may take of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Where the kernel shows all cgroups, and which this process is in.
CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


def default_memory_limit() -> int:
    """A quarter of what machine or cgroup allow, shared by the processes of one machine (`LOCAL_WORLD_SIZE`)."""
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return max(64 << 20, _memory_allowed() // 4 // ranks)


def _memory_allowed() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    return min(total, memory_of_cgroup() or total)


def memory_of_cgroup(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """The bytes that this process's cgroup, or the narrowest around it, may take; None: any number.

    A container's limit is found at `root`; that of a job of Slurm's or a service of systemd's further down.
    """
    found = []
    for folder in cgroups("memory", root, own):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2 and 1
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # "max" is none
                found.append(int(text))
    return min(found, default=None)


def cpus_allowed(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """How many CPUs' time the quota of a cgroup allows (a container's, as a rule), rounded up; None: no quota.

    Of this process's cgroup and those around it, the narrowest counts. Version 2 says quota and period in one file,
    version 1 in two. A container sees its own cgroup at `root`, and may be told of a path that it does not have.
    """
    quotas = []
    for folder in cgroups("cpu", root, own):
        quota, period = _quota_in(folder)
        if quota > 0 and period > 0:
            quotas.append(-(-quota // period))
    return min(quotas, default=None)


def cgroups(controller: str, root: Path = CGROUPS, own: Path = OWN_CGROUP) -> Iterator[Path]:
    """Folders of this process's cgroup and those around it, of either version, outermost first. They may not exist."""
    yield root
    yield root / controller
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        folder = root / controller if controllers else root
        for part in Path(path.lstrip("/")).parts:
            folder /= part
            yield folder


def _quota_in(folder: Path) -> tuple[int, int]:
    """Microseconds of CPU time, in so many of time; 0 or less for none."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota), int(period)
    except (OSError, ValueError):  # "max" is none, too
        return 0, 0


def too_many_workers(num_workers: int, allowed: int | None) -> str | None:
    """What to say of more workers than the quota has CPUs for; None where there is nothing to say beyond torch's."""
    machine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if allowed is None or num_workers <= allowed or (machine is not None and machine <= allowed):
        return None
    return (
        f"{num_workers} worker processes share the time of {allowed} CPU{'s' * (allowed != 1)}: the machine has "
        f"{machine or 'an unknown number of'} for this process, but its container (cgroup) has a quota of fewer, "
        f"and the kernel holds up workers beyond it. Use num_workers={allowed} or fewer, or raise the quota "
        "(docker's --cpus, Kubernetes' limits.cpu)."
    )
