"""Every bound and default, in one frozen place. Numbers with their reasons; no behaviour but arithmetic on them, and
reading those that are given as text."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

#: Tickets a worker may hold that have not arrived: torch's default.
PREFETCH_FACTOR: Final = 2

#: Leaves of this size and more live in the arena under a lease of their own; smaller ones are copied out on receipt
#: (a lease costs about as much as copying 64 KiB).
LEASE_BYTES: Final = 64 * KIB

#: No message body over this size goes through a socket: the kernel's buffer must never fill up with bulk data.
BODY_BYTES: Final = 32 * KIB

#: Every block in an arena begins on this boundary: a cache line, and enough for any dtype and vector instruction.
ALIGNMENT: Final = 64

#: A segment is never larger, unless one leaf needs it: page-locking and unmapping are slow in proportion.
SEGMENT_BYTES: Final = GIB

#: What a worker may collate without asking before the size of a batch is known.
FIRST_ALLOWANCE: Final = MIB

#: Undelivered bytes up to which the window is twice torch's; beyond, torch's own window bounds peak memory.
WIDE_WINDOW_BYTES: Final = 256 * MIB

#: Reserved bytes beyond which only one batch more than there are workers is made ahead, unless the user says otherwise
#: (`memory_limit`, `prefetch_factor`): where batches are large, peak memory counts for more than smoothing.
LEAN_BYTES: Final = 256 * MIB

#: Batches from this size on are compared with the memory that there is, before they are collated (it takes 0.1 ms to
#: ask); and what nobody but processes themselves can have of it.
LARGE_BATCH_BYTES: Final = 64 * MIB
BASE_BYTES: Final = 64 * MIB

#: From this size on, a leaf has a segment of its own: nothing is wasted on doubling, and it can go back alone.
LARGE_LEAF_BYTES: Final = 64 * MIB

#: Seconds after which a program that keeps more of its batches than the limit is told so; how often that is looked at.
KEEPING_GRACE: Final = 10.0
KEEPING_PACE: Final = 1.0

#: Samples in flight of the whole loader, and the bounds of one worker's share: stores limit requests.
CONCURRENCY: Final = 256
CONCURRENCY_PER_WORKER: Final = (4, 64)

#: How many times the narrow window's tickets may be outstanding where batches are blocked by one that is late.
FAR: Final = 8

#: A worker's share of the requests to a store, times its number of workers: more than 1, since a sample may take more
#: than one request at once (a hedge, the parts of a large object).
PERMITS_SPARE: Final = 1.25

#: Seconds that asking a dataset for its state may take at first, and the part of the time that it may take later.
MARK_GRACE: Final = 0.1
MARK_SHARE: Final = 0.01

#: Worker processes that may be replaced in one epoch before the loader gives up.
MAX_WORKER_RESTARTS: Final = 3

#: A pickle larger than this that a captured global brought along is named in a warning.
CAPTURED_BYTES: Final = 100 * MIB

#: Seconds after which a consumer that waits for a worker without a process looks again whether a shared pool is idle.
SEAT_PATIENCE: Final = 0.05

#: Python objects whose pickle is larger than the first and took longer than this, or is larger than the second, are
#: named in a warning: pickling them holds up the program, and every worker copies what it reads of them.
HEAVY_SECONDS: Final = 1.0
HEAVY_BYTES: Final = (8 * MIB, 100 * MIB)

#: Seconds that a worker has to close its dataset before it is killed.
CLOSE_GRACE: Final = 0.3

#: Seconds beyond `timeout` that workers have to start: they import what the dataset needs.
STARTING_GRACE: Final = 60.0

#: Seconds that a worker has to say where it is stuck; how often it is looked for (both drivers wait meanwhile).
STACK_PATIENCE: Final = 0.1
STACK_POLL: Final = 0.004

#: Seconds after which closing looks again whether the user is still in a worker's debugger.
DEBUGGER_POLL: Final = 0.05

#: Seconds after which a consumer that finds its batch ready passes through the loop all the same.
LOOP_PASS: Final = 0.001

#: Batches that are copied to the device (or pinned) ahead: the one that is handed out next, and one during whose copy
#: the program computes.
DEVICE_PREFETCH: Final = 2

#: Memory is page-locked in pieces of at most this size: a larger one holds up whoever wants something of the driver.
LOCK_BYTES: Final = GIB

#: The part of `memory_limit` that may be page-locked: such memory can be neither swapped nor moved.
LOCKED_SHARE: Final = 0.5

#: Leaves that are not pinned are copied into pinned memory at once up to this size, and larger ones in a thread.
PIN_AT_ONCE_BYTES: Final = MIB

#: Seconds after which a loop looks again whether the device has passed an event that is waited for.
DEVICE_POLL: Final = 0.001

#: Batches after which a worker's advice is passed on, if the epoch is not over before: programs that look for warnings
#: do so in their first steps.
NOTICE_AFTER: Final = 100

#: Workers give way to the consumer's process.
WORKER_NICENESS: Final = 5


def share_of(concurrency: int, num_workers: int) -> int:
    """Samples one worker may have in flight, of `concurrency` for the whole loader."""
    least, most = CONCURRENCY_PER_WORKER
    return min(most, max(least, concurrency // max(1, num_workers)))


def async_credit(share: int, batch_size: int) -> int:
    """Tickets for each worker of an async dataset that keep it busy: four times what its samples in flight fill.

    Half of what one may hold. Of S3's usual latencies, batches of 64 and 64 samples in flight, simulated: holding 4
    and with a window of 4 for each worker, 81 % of in-flight ÷ latency is reached; of 8, 91 %; holding 8, with a window
    of 8 and a far one of 32, 99 %. With one request in a hundred ten times slower: 28, 42 and 87 %.
    """
    return max(4, -(-4 * share // max(1, batch_size)))


_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}


def parse_bytes(value: int | str, name: str = "memory_limit") -> int:
    """A number of bytes, or text such as "8GiB" or "500 MB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
        nbytes = int(float(match[1]) * _UNITS.get(match[2].upper(), 0)) if match else 0
        if nbytes > 0:
            return nbytes
    raise ValueError(f'{name} should be a positive number of bytes or text such as "8GiB", but got {name}={value!r}')
