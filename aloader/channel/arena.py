"""The memory that one worker writes its batches into. Theory first:

An arena is a few *segments* (see `shared`), each with a list of its free stretches. The worker allocates a *block* for
every leaf of 64 KiB or more, and tells the parent where it lies; the parent makes a lease of it (see `leases`).

A block has two holders: the worker's own array (`owner`; the user's dataset or collate function may have kept it) and
the parent's lease. It is free only when **both** have let go: a byte under a live tensor never changes, on either side.

Recycled pages are ten times faster to write than new ones, so segments are filled from the first one on, and the
lowest place that fits is taken. A segment is never resized or remapped; growing means one more, as large as those there
are together; a leaf of 64 MiB and more has a segment of just its size, which others of that size use again. A segment
that has become empty and is not needed goes back to the system, and the parent unmaps it first: whoever unmaps last
pays for freeing the pages (0.4 s per GiB), and that must not be the user's process.

Only the worker's main thread calls this, but owners may die in any thread: their callbacks only hand over.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from aloader import options
from aloader.channel import shared
from aloader.errors import BatchTooLarge

_NO_MEMORY: Final = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SPARE: Final = 6  # batches that a worker keeps room for: a window of four, and two in the consumer's hands


class FreeList:
    """Which stretches of `size` bytes are free: first fit, lowest address first, neighbours joined."""

    __slots__ = ("_lengths", "_offsets", "free_bytes", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_bytes = size
        self._offsets = [0]
        self._lengths = [size]

    def allocate(self, nbytes: int) -> int | None:
        """The offset of `nbytes` that were free, or None where no stretch is long enough."""
        for i, length in enumerate(self._lengths):
            if length >= nbytes:
                offset = self._offsets[i]
                if length == nbytes:
                    del self._offsets[i], self._lengths[i]
                else:
                    self._offsets[i] += nbytes
                    self._lengths[i] -= nbytes
                self.free_bytes -= nbytes
                return offset
        return None

    def release(self, offset: int, nbytes: int) -> None:
        """Give back what `allocate` gave."""
        i = bisect_left(self._offsets, offset)
        joins_next = i < len(self._offsets) and offset + nbytes == self._offsets[i]
        joins_last = i > 0 and self._offsets[i - 1] + self._lengths[i - 1] == offset
        assert i == len(self._offsets) or offset + nbytes <= self._offsets[i], "freed twice"
        assert i == 0 or self._offsets[i - 1] + self._lengths[i - 1] <= offset, "freed twice"
        self.free_bytes += nbytes
        if joins_last and joins_next:
            self._lengths[i - 1] += nbytes + self._lengths[i]
            del self._offsets[i], self._lengths[i]
        elif joins_last:
            self._lengths[i - 1] += nbytes
        elif joins_next:
            self._offsets[i] = offset
            self._lengths[i] += nbytes
        else:
            self._offsets.insert(i, offset)
            self._lengths.insert(i, nbytes)

    @property
    def empty(self) -> bool:
        """Whether nothing is allocated."""
        return self.free_bytes == self.size

    @property
    def longest(self) -> int:
        """The largest request that `allocate` would serve."""
        return max(self._lengths, default=0)


class Segment(NamedTuple):
    """A mapped piece of memory and what is free in it; `shared` by many leaves, or made for one large one."""

    number: int
    memory: mmap.mmap
    address: int
    free: FreeList
    shared: bool


class Block:
    """A leaf's place: allocated bytes, and who still holds them."""

    __slots__ = ("address", "leased", "length", "offset", "owned", "segment", "ticket", "watch")

    def __init__(self, segment: Segment, offset: int, length: int, ticket: int) -> None:
        self.segment = segment
        self.offset = offset
        self.length = length
        self.address = segment.address + offset
        self.ticket = ticket
        self.owned = True
        self.leased = False
        self.watch: weakref.ref[np.ndarray] | None = None


class Place(NamedTuple):
    """Where a leaf's bytes lie, as it crosses the border."""

    segment: int
    offset: int
    nbytes: int


class Arena:
    """A worker's segments and blocks.

    `announce(number, nbytes, fd)` tells the parent of a new segment; `retire(number)` asks it to unmap one. `share`:
    bytes beyond which nothing is kept for later but room for one batch (0: there is no such bound).
    """

    def __init__(
        self, announce: Callable[[int, int, int], None], retire: Callable[[int], None], share: int = 0
    ) -> None:
        self._announce = announce
        self._retire = retire
        self._share = share
        self._segments: dict[int, Segment] = {}
        self._retiring: dict[int, Segment] = {}
        self._next_number = 0
        self._small = 0  # bytes of the shared segments
        self._blocks: dict[int, Block] = {}  # by address
        self._orphans: deque[Block] = deque()  # owners that died since the last look
        self._ticket = 0
        self._largest = 0  # bytes of the largest ticket so far
        self._taken = 0  # bytes of this ticket
        self._live = 0
        self._peaks = [0, 0]  # most bytes live at once, in this stretch of tickets and in the one before
        self._capacity = 0

    def begin(self, nbytes: int) -> None:
        """A new ticket that will take about `nbytes`. Blocks of earlier tickets can no longer be leased."""
        self._ticket += 1
        self._taken = 0
        if self._ticket % 32 == 0:
            self._peaks = [self._live, self._peaks[0]]
        self.make_room(nbytes)

    def make_room(self, nbytes: int) -> None:
        """This ticket is about to take so many bytes more: let them lie in one segment, if they are not too many."""
        self._largest = max(self._largest, self._taken + nbytes)
        self._collect()
        if 0 < nbytes < options.LARGE_LEAF_BYTES and not any(
            segment.free.longest >= nbytes for segment in self._segments.values() if segment.shared
        ):
            self._grow(nbytes)

    def allocate(self, nbytes: int) -> np.ndarray:
        """`nbytes` of arena memory as a uint8 array made directly on the mapping: the block's owner."""
        self._collect()
        length = -(-nbytes // options.ALIGNMENT) * options.ALIGNMENT
        block = self._place(length)
        owner = np.frombuffer(block.segment.memory, np.uint8, nbytes, block.offset)
        block.watch = weakref.ref(owner, _hand_over(self._orphans, block))
        self._blocks[block.address] = block
        self._live += length
        self._peaks[0] = max(self._peaks[0], self._live)
        self._taken += length
        self._largest = max(self._largest, self._taken)
        return owner

    def lease(self, address: int, nbytes: int) -> Place | None:
        """The place of a block of this ticket that begins at `address`, now leased to the parent; None if there is
        none (memory of the user's, of another ticket, or leased already: the bytes must be copied)."""
        block = self._blocks.get(address)
        if block is None or block.ticket != self._ticket or block.leased or nbytes > block.length:
            return None
        block.leased = True
        return Place(block.segment.number, block.offset, nbytes)

    def store(self, data: memoryview) -> Place:
        """Copy `data` into a new block and lease that."""
        owner = self.allocate(data.nbytes)
        owner[:] = np.frombuffer(data, np.uint8)
        place = self.lease(owner.ctypes.data, data.nbytes)
        assert place is not None
        return place

    def release(self, segment: int, offset: int) -> None:
        """The parent's lease on the block at this place has ended."""
        block = self._blocks[self._segments[segment].address + offset]
        assert block.leased, "released twice"
        block.leased = False
        self._free_if_unheld(block)

    def retired(self, number: int) -> None:
        """The parent has unmapped this segment: unmap it here, too."""
        self._retiring.pop(number).memory.close()

    def trim(self) -> None:
        """Nothing is under way: forget the peaks, and give back every empty segment that is not likely to be used."""
        self._peaks = [self._live, self._live]
        self._collect()
        self._retire_idle()

    @property
    def capacity(self) -> int:
        """Bytes of all segments."""
        return self._capacity

    @property
    def live(self) -> int:
        """Bytes that somebody holds."""
        return self._live

    def _place(self, length: int) -> Block:
        large = length >= options.LARGE_LEAF_BYTES
        for segment in self._segments.values():
            if segment.free.free_bytes >= length and segment.shared is not large:
                offset = segment.free.allocate(length)
                if offset is not None:
                    return Block(segment, offset, length, self._ticket)
        segment = self._grow(length)
        offset = segment.free.allocate(length)
        assert offset is not None
        return Block(segment, offset, length, self._ticket)

    def _grow(self, nbytes: int) -> Segment:
        small = nbytes < options.LARGE_LEAF_BYTES
        sizes = [max(nbytes, min(self._small, options.SEGMENT_BYTES))] if small else []
        size, fd, memory = _memory([*sizes, nbytes])
        address = np.frombuffer(memory, np.uint8).ctypes.data
        segment = Segment(self._next_number, memory, address, FreeList(size), small)
        self._segments[segment.number] = segment
        self._next_number += 1
        if small:
            self._small += size
        self._capacity += size
        self._announce(segment.number, size, fd)
        return segment

    def _collect(self) -> None:
        while self._orphans:
            block = self._orphans.popleft()
            block.owned = False
            self._free_if_unheld(block)

    def _free_if_unheld(self, block: Block) -> None:
        if block.owned or block.leased:
            return
        del self._blocks[block.address]
        self._live -= block.length
        block.segment.free.release(block.offset, block.length)
        if self._live == 0 and self._largest < options.LARGE_LEAF_BYTES:
            self._peaks = [0, 0]  # nobody holds anything: what there was is no measure of what there will be
        if block.segment.free.empty:
            self._retire_idle()

    def _retire_idle(self) -> None:
        """Give back empty segments, the largest first: if the rest holds what was needed of late, or if the segment is
        far larger than that (growing again from nothing is cheaper than keeping it)."""
        spare = _SPARE if self._largest < options.LARGE_LEAF_BYTES else _SPARE // 2
        needed = max(spare * self._largest, *self._peaks)
        if self._share:
            needed = max(self._largest, min(needed, self._share))
        for segment in sorted(self._segments.values(), key=lambda s: -s.free.size):
            size = segment.free.size
            if segment.free.empty and (self._capacity - size >= needed or size > 4 * needed > 0):
                del self._segments[segment.number]
                self._capacity -= size
                self._small -= size if segment.shared else 0
                self._retiring[segment.number] = segment
                self._retire(segment.number)


def _hand_over(orphans: deque[Block], block: Block) -> Callable[[object], None]:
    return lambda _: orphans.append(block)


def _memory(sizes: Sequence[int]) -> tuple[int, int, mmap.mmap]:
    """The first of these sizes that can be had, in whole pages; a new segment's descriptor and mapping."""
    for nbytes in sizes:
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            fd = shared.create(size)
            try:
                return size, fd, shared.attach(fd, size)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            if error.errno not in _NO_MEMORY:
                raise
            failure = error
    raise BatchTooLarge(
        f"{sizes[-1] / 1e6:.0f} MB of shared memory could not be had for a batch ({failure.strerror}): use a smaller "
        "batch_size, or allow its worker more memory (`ulimit -v`, the container's limits)"
    ) from failure
