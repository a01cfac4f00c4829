"""What every stage does, as frozen snapshots and the counters they are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class EpochCounts:
    """Counters of one epoch, added to as it goes."""

    delivered: int = 0
    failed: int = 0
    samples_failed: int = 0
    lost: int = 0
    nbytes: int = 0
    fetch_seconds: float = 0.0
    collate_seconds: float = 0.0
    wait_seconds: float = 0.0
    user_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """What is known of a batch: `async for batch, info in loader.with_info()`.

    `seq` is its place in the epoch, from 0; `indices` what the sampler gave for it, None for iterable-style datasets;
    `worker` the slot of the worker that made it, None without workers; `waited` the seconds that the consumer waited
    for it; `epoch` its epoch's number, from 1 with the loader's first. `left_out` are the indices of its samples that
    failed, whatever stands in their place now (`on_error`); of an iterable dataset, their positions in the batch.
    """

    seq: int
    indices: Any
    worker: int | None
    waited: float
    epoch: int
    left_out: tuple[Any, ...] = ()

    @property
    def keys(self) -> Any:
        """The indices, by the name that fits a dataset whose samples are named: `zip(info.keys, scores)`."""
        return self.indices


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done in its latest epoch, and holds now.

    `wait_seconds` is what the consumer waited for batches and `user_seconds` what it did with them, both on the wall
    clock. `fetch_seconds` and `collate_seconds` are sums over all tickets: of an async dataset many run at once, so
    that they may exceed the wall clock many times over. `errors` are batches that failed; `samples_failed` counts the
    samples that did without their batch, in what the consumer has been given. `device_bytes` have been copied to the
    device, and `locked_bytes` of the arena are page-locked for that now.
    """

    epoch: int = 0
    batches: int = 0
    errors: int = 0
    samples_failed: int = 0
    workers: int = 0
    workers_lost: int = 0
    payload_bytes: int = 0
    fetch_seconds: float = 0.0
    collate_seconds: float = 0.0
    wait_seconds: float = 0.0
    user_seconds: float = 0.0
    arena_bytes: int = 0
    leased_bytes: int = 0
    tickets_in_flight: int = 0
    batches_ready: int = 0
    device_bytes: int = 0
    locked_bytes: int = 0

    @property
    def wait_share(self) -> float:
        """The part of the time that the consumer waited: near 0, the loader keeps up; near 1, it is the bottleneck."""
        total = self.wait_seconds + self.user_seconds
        return self.wait_seconds / total if total else 0.0

    def __str__(self) -> str:
        total = self.wait_seconds + self.user_seconds
        return (
            f"epoch {self.epoch}: {self.batches} batches, {self.payload_bytes / 1e6:.1f} MB in shared memory, "
            f"{self.errors} errors, {self.samples_failed} samples failed, {self.workers_lost} workers lost\n"
            f"  consumer: {total:.2f} s, of which it waited {self.wait_seconds:.2f} s ({self.wait_share:.0%})\n"
            f"  {self.workers} workers: fetched for {self.fetch_seconds:.2f} s and collated for "
            f"{self.collate_seconds:.2f} s (sums over batches, which overlap)\n"
            f"  now: {self.tickets_in_flight} batches under way, {self.batches_ready} ready, "
            f"{self.arena_bytes / 1e6:.1f} MB of arena ({self.locked_bytes / 1e6:.1f} MB page-locked), "
            f"{self.leased_bytes / 1e6:.1f} MB held by the program"
        )
