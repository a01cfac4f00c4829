"""How much memory and how many CPUs there are, and what a loader may take of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

#: Where the kernel shows all cgroups, and which this process is in.
CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")
_NO_LIMIT: Final = 1 << 60  # version 1 writes "no limit" as a number that nobody has


class Memory(NamedTuple):
    """Bytes that this process and those around it may have, and what of it can be had now."""

    limit: int
    available: int


def default_memory_limit(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """A quarter of what machine or cgroup allow, shared by the processes of one machine (`LOCAL_WORLD_SIZE`)."""
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    return max(64 << 20, min(total, memory_of_cgroup(root, own) or total) // 4 // ranks)


def memory_of_cgroup(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """The bytes that this process's cgroup, or the narrowest around it, may take; None: any number.

    A container's limit is found at `root`; that of a job of Slurm's or a service of systemd's further down.
    """
    limits = (_limit_in(folder) for folder in cgroups("memory", root, own))
    return min((limit for limit in limits if limit is not None), default=None)


def memory_available(root: Path = CGROUPS, own: Path = OWN_CGROUP, machine: Path = Path("/proc/meminfo")) -> Memory:
    """What the machine has, or the narrowest of this process's cgroup and those around it; each by itself.

    Available is what the kernel could give without ending anybody: the pages of files that it can drop count as free,
    and so does swap. Where nothing is known, there is any amount.
    """
    fields = _fields_in(machine)
    swap = 1024 * fields.get("SwapFree", 0)
    found = []
    if "MemAvailable" in fields:
        total = 1024 * (fields["MemTotal"] + fields.get("SwapTotal", 0))
        found.append(Memory(total, 1024 * fields["MemAvailable"] + swap))
    for folder, inside in memory_in_cgroups(root, own):
        room = min(swap, _swap_in(folder))
        found.append(Memory(inside.limit + room, inside.available + room))
    limit = min((one.limit for one in found), default=_NO_LIMIT)
    return Memory(limit, min((one.available for one in found), default=_NO_LIMIT))


def memory_in_cgroups(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> Iterator[tuple[Path, Memory]]:
    """The same of each cgroup that has a limit, without swap."""
    for folder in cgroups("memory", root, own):
        limit, used = _limit_in(folder), _number_in(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            yield folder, Memory(limit, max(0, limit - used) + _droppable_in(folder))


def _limit_in(folder: Path) -> int | None:
    limit = _number_in(folder, "memory.max", "memory.limit_in_bytes")
    return None if limit is None or limit >= _NO_LIMIT else limit


def _swap_in(folder: Path) -> int:
    """What a cgroup may still swap."""
    limit, used = _number_in(folder, "memory.swap.max"), _number_in(folder, "memory.swap.current")
    return _NO_LIMIT if limit is None or used is None else max(0, limit - used)


def _droppable_in(folder: Path) -> int:
    """Bytes of files' pages and the like, which the kernel drops where there is need."""
    fields = _fields_in(folder / "memory.stat")
    prefix = "total_" if "total_cache" in fields else ""  # version 1 has those of the cgroups inside it apart
    names = "inactive_file", "active_file", "slab_reclaimable"
    return sum(fields.get(prefix + name, 0) for name in names)


def _number_in(folder: Path, *names: str) -> int | None:
    """In the first of these files that is there; None where it holds no number ("max")."""
    for name in names:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def _fields_in(path: Path) -> dict[str, int]:
    """Lines such as `name 12` and `name: 12 kB`."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


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
