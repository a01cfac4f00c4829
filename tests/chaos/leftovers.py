"""What this process has, as counts of descriptors, threads, files and descendants by their kind: to compare before with
after. Descriptors are told by what they are, since a template that was killed is replaced by one with other numbers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: Seconds that things have to go.
GRACE = 3.0

#: Files in /dev/shm that aloader never makes: multiprocessing's semaphores and shared memory, of other programs.
OTHERS = ("sem.mp-", "psm_")


class Process(NamedTuple):
    """A living descendant, and how far down it is: children are at depth 1."""

    pid: int
    depth: int


def descendants(pid: int, excluded: Iterable[int] = (), depth: int = 1) -> Iterator[Process]:
    """All living ones, parents first."""
    for child in _children(pid):
        if child not in excluded:
            if alive(child):
                yield Process(child, depth)
            yield from descendants(child, excluded, depth + 1)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def alive(pid: int) -> bool:
    """Whether it is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Inventory:
    """Takes stock of this process. `temp` is where temporary files go; `excluded` are children that are not counted."""

    def __init__(self, temp: Path, excluded: Iterable[int] = ()) -> None:
        self._temp = temp
        self._excluded = frozenset(excluded)

    def take(self) -> Counter[str]:
        """Everything that is there."""
        found: Counter[str] = Counter()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found[f"descriptor of {_kind(os.readlink(f'/proc/self/fd/{number}'))}"] += 1
        found.update(f"thread {_kind(thread.name)}" for thread in threading.enumerate())
        found.update(f"process at depth {one.depth}" for one in descendants(os.getpid(), self._excluded))
        found.update(f"file {path}" for path in self._temp.iterdir())
        found.update(f"file /dev/shm/{name}" for name in os.listdir("/dev/shm") if not name.startswith(OTHERS))
        return found

    def left(self, before: Counter[str], nudge: Callable[[], object] = lambda: None, grace: float = GRACE) -> list[str]:
        """What there is more than before, when it has had time to go."""
        deadline = time.monotonic() + grace
        while (more := _more(before, self.take())) and time.monotonic() < deadline:
            nudge()
            gc.collect()
            time.sleep(0.005)  # sleep: nobody says when the last of it has gone
        return more


def _more(before: Counter[str], after: Counter[str]) -> list[str]:
    return [f"left behind: {count} × {what}" for what, count in sorted((after - before).items())]


def _kind(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def end_all(pid: int) -> int:
    """Kill every descendant of a process. How many there were."""
    found = list(descendants(pid))
    for one in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    return len(found)
