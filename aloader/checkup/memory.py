"""Memory: what there is, what a cgroup and the process's limits leave of it, and what batches may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aloader.checkup.report import Check, ok, problem, warning
from aloader.checkup.words import size
from aloader.options import GIB
from aloader.pool.limits import default_memory_limit, memory_in_cgroups, memory_of_cgroup

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

#: Below this, torch's own loader meets a "Bus error" sooner or later; docker gives 64 MiB.
SHM_ENOUGH: Final = GIB

#: An address space smaller than this many times what batches may take is soon used up: each worker maps it too.
MAPPED: Final = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """Bytes; None where there is no limit, or where the system does not say."""

    total: int
    available: int | None
    batches: int  # what `memory_limit` is by default
    swap: int | None = None
    swap_free: int | None = None
    cgroup: int | None = None
    cgroup_used: int | None = None
    strict: bool = False  # the system promises no more memory than it has (overcommit_memory=2)
    promised: int | None = None
    most_promised: int | None = None
    address_space: int | None = None
    data: int | None = None
    shm: int | None = None
    shm_free: int | None = None


def look() -> Facts:
    info = _meminfo()
    shm = _shm()
    return Facts(
        total=info.get("MemTotal") or _physical(),
        available=info.get("MemAvailable"),
        batches=default_memory_limit(),
        swap=info.get("SwapTotal"),
        swap_free=info.get("SwapFree"),
        cgroup=memory_of_cgroup(),
        cgroup_used=_used(),
        strict=_text("/proc/sys/vm/overcommit_memory") == "2",
        promised=info.get("Committed_AS"),
        most_promised=info.get("CommitLimit"),
        address_space=_limit("RLIMIT_AS"),
        data=_limit("RLIMIT_DATA"),
        shm=shm and shm[0],
        shm_free=shm and shm[1],
    )


def judge(facts: Facts) -> Iterator[Check]:
    yield _memory(facts)
    if facts.strict and facts.promised is not None and facts.most_promised is not None:
        yield _overcommit(facts.promised, facts.most_promised)
    yield _limits(facts)
    yield _shared(facts)


def _memory(facts: Facts) -> Check:
    whole = facts.total if facts.cgroup is None else min(facts.total, facts.cgroup)
    used = facts.cgroup_used if whole < facts.total else None
    free = min(whole if facts.available is None else facts.available, whole - used if used is not None else whole)
    text = f"{size(whole)}"
    text += f" (the cgroup's limit; the machine has {size(facts.total)})" if whole < facts.total else ""
    text += f", {size(free)} available; memory_limit is {size(facts.batches)} by default"
    if free < facts.batches:
        remedy = f'memory_limit="{_round(free // 2)}", fewer workers, or end what takes the memory'
        return warning("memory", f"{text}, more than is available", remedy)
    if facts.swap and facts.swap_free is not None and facts.swap_free < facts.swap // 2:
        taken = f"{text}; {size(facts.swap - facts.swap_free)} of {size(facts.swap)} of swap are in use"
        return warning("memory", taken, "what is swapped out is slow: end what takes the memory")
    return ok("memory", text + ("; no swap" if facts.swap == 0 else ""))


def _overcommit(promised: int, most: int) -> Check:
    text = (
        f"the system promises no more memory than it has (vm.overcommit_memory=2), and has promised {size(promised)} "
        f"of {size(most)}: every worker counts in full, also the pages that it shares"
    )
    return warning("overcommit", text, "sysctl vm.overcommit_memory=0 (or 1), or fewer workers")


def _limits(facts: Facts) -> Check:
    limits = {"RLIMIT_AS (ulimit -v)": facts.address_space, "RLIMIT_DATA (ulimit -d)": facts.data}
    set_ = {name: limit for name, limit in limits.items() if limit is not None}
    if not set_:
        return ok("limits", "address space and data are not limited")
    text = ", ".join(f"{name} is {size(limit)}" for name, limit in set_.items())
    needed = MAPPED * facts.batches
    if min(set_.values()) < needed:
        why = f"{text}: what is mapped of batches counts too, and importing torch takes several GiB of addresses"
        remedy = f'ulimit -v unlimited; ulimit -d unlimited. Or memory_limit="{_round(min(set_.values()) // 16)}"'
        return problem("limits", why, remedy) if min(set_.values()) < 4 * GIB else warning("limits", why, remedy)
    return ok("limits", text)


def _shared(facts: Facts) -> Check:
    if facts.shm is None:
        text = "there is none: aloader needs none, but torch's own loader and multiprocessing do"
        return warning("/dev/shm", text, "docker run --shm-size=8g, or mount a tmpfs there, if you use those too")
    free = "" if facts.shm_free is None else f", {size(facts.shm_free)} free"
    text = f"{size(facts.shm)}{free}: aloader needs none of it"
    if facts.shm < SHM_ENOUGH or (facts.shm_free or 0) < SHM_ENOUGH // 8:
        more = "; torch's own loader and multiprocessing do, and end with a bus error where it is full"
        remedy = "docker run --shm-size=8g (Kubernetes: an emptyDir with medium: Memory), if you use those too"
        return warning("/dev/shm", text + more, remedy)
    return ok("/dev/shm", f"{text} (torch's own loader and multiprocessing do)")


def _round(count: int) -> str:
    """As an argument: "6GiB"."""
    return f"{count // GIB}GiB" if count >= 2 * GIB else f"{max(1, count >> 20)}MiB"


# -- looking ----------------------------------------------------------------------------------------------------------


def _meminfo() -> dict[str, int]:
    lines = [line.split() for line in _text("/proc/meminfo").splitlines()]
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}


def _physical() -> int:
    if not hasattr(os, "sysconf"):
        raise OSError("this system does not say how much memory there is")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _used() -> int | None:
    """What the cgroup with the narrowest limit has taken, without what it can do without."""
    found = [memory for _, memory in memory_in_cgroups()]
    return max(0, min(found).limit - min(found).available) if found else None


def _limit(name: str) -> int | None:
    if resource is None or not hasattr(resource, name):
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _shm() -> tuple[int, int] | None:
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
