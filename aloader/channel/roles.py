"""Who talks to whom: what a crew is driven by, whom it tells, and what its workers are told about themselves.

A crew of worker processes (`pool`) and the one that works on the user's loop (`worker.local`) play the same part.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Watcher(Protocol):
    """Calls back when a descriptor can be read (or written to)."""

    def reading(self, fd: int, callback: Callable[[], None] | None) -> None: ...
    def writing(self, fd: int, callback: Callable[[], None] | None) -> None: ...
    def wake(self) -> None: ...


class Listener(Protocol):
    """Who hears what the workers say: an epoch."""

    number: int

    @property
    def idle(self) -> bool: ...
    def close(self) -> None: ...
    def on_ready(self, worker: Any) -> None: ...
    def on_batch(self, worker: Any, seq: int, nbytes: int, batch: Any, seconds: tuple[float, float]) -> None: ...
    def on_failure(self, worker: Any, seq: int, fault: bytes | BaseException) -> None: ...
    def on_dry(self, worker: Any, seq: int, mark: bytes | None) -> None: ...
    def on_nothing(self, worker: Any, seq: int, mark: bytes | None, left_out: Any) -> None: ...
    def on_notice(self, text: str) -> None: ...
    def on_need(self, worker: Any, seq: int, nbytes: int) -> None: ...
    def on_lost(self, worker: Any, exit: Any) -> None: ...


class PageKeeper(Protocol):
    """Who page-locks the memory that workers write: hears of every mapping of it, from whatever thread."""

    def mapped(self, memory: mmap.mmap, fd: int) -> None:
        """It has just been mapped. Must not block; `fd` is closed afterwards."""

    def unmapping(self, memory: mmap.mmap) -> None:
        """It is about to be unmapped, or has been told of before. May block."""

    def dropped(self, memory: mmap.mmap) -> None:
        """It would be unmapped now, with its last reference; to keep it for a while is allowed. Must not block."""

    def close(self) -> None:
        """Nothing that is mapped from now on concerns it."""


class Who(NamedTuple):
    """What all workers of a crew are told about themselves."""

    dataset: int
    num_workers: int
    base_seed: int
    concurrency: int
    threads: bool
    auto_collation: bool
    context: bytes
    iterable: bool = False
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    permits: float = 1.0
    on_error: str = "raise"
    sample_timeout: float = 0.0
    memory: int = 0
