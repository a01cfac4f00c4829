"""Whether the kernel has ended processes for want of memory: counters of the cgroup (a container's, as a rule) and of
the machine, read when a worker was killed. They do not say whom: a SIGKILL at the same time is taken for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Counter(NamedTuple):
    """Where a number stands, and what it counts, in words."""

    path: Path
    what: str


class OomWatch:
    """Looks once when it is made, and again when it is asked."""

    def __init__(
        self,
        root: Path = Path("/sys/fs/cgroup"),
        own: Path = Path("/proc/self/cgroup"),
        machine: Path = Path("/proc/vmstat"),
    ) -> None:
        self._counters = [*_of_cgroups(root, own), Counter(machine, "the machine")]
        self._seen = self._look()

    @property
    def sees(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._seen)

    def news(self) -> str:
        """Whose processes have been ended since the last time, in words; "" for nobody's."""
        before, self._seen = self._seen, self._look()
        grown = [c for c in self._counters if self._seen.get(c.path, 0) > before.get(c.path, 0)]
        if not grown:
            return ""
        count = self._seen[grown[0].path] - before.get(grown[0].path, 0)
        return f"{grown[0].what} ran out of memory (oom_kill +{count})"

    def _look(self) -> dict[Path, int]:
        found = {counter.path: _count_in(counter.path) for counter in self._counters}
        return {path: count for path, count in found.items() if count is not None}


def _count_in(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
    count = fields.get("oom_kill", "")
    return int(count) if count.isdigit() else None


def _of_cgroups(root: Path, own: Path) -> Iterator[Counter]:
    """Version 2 has one tree, version 1 one for each controller. A container sees its own cgroup at the root."""
    try:
        lines = [line for line in own.read_text().splitlines() if line.count(":") > 1]  # number:controllers:path
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, name = root, "memory.events"
        elif "memory" in controllers.split(","):
            folder, name = root / "memory", "memory.oom_control"
        else:
            continue
        yield Counter(folder / path.lstrip("/") / name, f"the cgroup {path}")
    yield Counter(root / "memory.events", "the cgroup of this container")
    yield Counter(root / "memory" / "memory.oom_control", "the cgroup of this container")
