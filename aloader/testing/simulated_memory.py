"""Memory of the simulated accelerator: blocks that are used again as torch's caching allocators use theirs.

An allocation is seen to end by the death of its *owner*, an array made directly on the block's memory (numpy collapses
`.base`, so it must not be made on another array) that every tensor on it holds. That happens in any thread and in the
middle of any code, so the callback only puts a note down, and the note is read at the beginning of the next call.
Nothing here knows what streams are: where a block may be used again is a key, and when is a moment.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from aloader.testing.simulated_streams import Operation

#: What memory holds that nothing has been written to: -2.6e36 as float32, 251 as uint8, negative as integers.
POISON: Final = 0xFB


def poison(nbytes: int) -> bytes:
    """Bytes that nobody takes for data."""
    return bytes([POISON]) * nbytes


def fetch(address: int, into: memoryview) -> bool:
    """Copy memory of this process. False where there is none any more; where there is no /proc, that is a crash."""
    try:
        memory = open("/proc/self/mem", "rb", buffering=0)  # noqa: SIM115 - a `with` follows
    except OSError:
        into[:] = ctypes.string_at(address, len(into))
        return True
    with memory:
        try:
            memory.seek(address)
            done = 0
            while done < len(into) and (more := memory.readinto(into[done:])):
                done += more
        except OSError:
            return False
    return done == len(into)


def is_mapped(address: int) -> bool:
    """Whether there is memory at an address. Always, where that cannot be told."""
    return not os.access("/proc/self/mem", os.R_OK) or fetch(address, memoryview(bytearray(1)))


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies on memory; keeps nothing alive."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0  # in elements

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """That of a tensor on its storage."""
        return cls(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    def on(self, memory: Any) -> torch.Tensor:
        """A tensor that lies so on a buffer, which it keeps alive."""
        array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, np.uint8)
        storage = torch.from_numpy(array).untyped_storage()
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.shape, self.stride)


@dataclass(slots=True)
class Block:
    """Memory that is never given back to the system."""

    memory: bytearray = field(repr=False)
    address: int
    key: Hashable
    written: int = 0  # the number of the latest allocation whose writing has begun
    readers: dict[Hashable, Operation] = field(default_factory=dict)  # of the latest one: the last of each stream

    @property
    def nbytes(self) -> int:
        return len(self.memory)

    def poison(self, nbytes: int) -> None:
        """Let the first bytes hold nothing."""
        np.frombuffer(self.memory, np.uint8, nbytes).fill(POISON)


@dataclass(slots=True, eq=False)
class Allocation:
    """A block in use. Does not hold its owner."""

    block: Block
    nbytes: int
    number: int
    filled: Operation | None = None  # by what
    until: float = 0.0  # not used again before
    streams: list[Any] = field(default_factory=list)  # that were recorded to use it
    reference: weakref.ref[np.ndarray] | None = None

    def take(self) -> np.ndarray:
        """The owner: the caller is the only one who has it."""
        return np.frombuffer(self.block.memory, np.uint8, self.nbytes)


class Pool:
    """Blocks for one kind of memory.

    A dropped block goes to those that were allocated under the same key, at once, or at the moment that `release` gives
    for it. It serves what needs more than half of it.
    """

    def __init__(self, release: Callable[[Allocation], float]) -> None:
        self.live: dict[int, Allocation] = {}  # by address
        self.reserved_bytes = 0
        self.peak_bytes = 0
        self._release = release
        self._ended: deque[Allocation] = deque()
        self._idle: dict[Hashable, list[Block]] = {}
        self._waiting: list[tuple[float, Allocation]] = []
        self._addresses: list[int] = []
        self._made = 0

    def allocate(self, nbytes: int, key: Hashable, now: float) -> tuple[Allocation, np.ndarray]:
        """Memory and its owner."""
        self.collect(now)
        block = self._reuse(nbytes, key) or self._new(nbytes, key)
        self._made += 1
        allocation = Allocation(block, nbytes, self._made)
        owner = allocation.take()
        ended = self._ended
        allocation.reference = weakref.ref(owner, lambda _: ended.append(allocation))
        self.live[block.address] = allocation
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
        return allocation, owner

    def collect(self, now: float) -> None:
        """Take back what has been dropped, and what need not wait any longer."""
        while self._ended:
            allocation = self._ended.popleft()
            del self.live[allocation.block.address]
            self._waiting.append((self._release(allocation), allocation))
        waiting, self._waiting = self._waiting, []
        for moment, allocation in waiting:
            if moment <= now:
                self._idle.setdefault(allocation.block.key, []).append(allocation.block)
            else:
                self._waiting.append((moment, allocation))

    def find(self, tensor: torch.Tensor) -> Allocation | None:
        """The allocation that a tensor lies on."""
        address = tensor.data_ptr()
        at = bisect.bisect_right(self._addresses, address) - 1
        allocation = self.live.get(self._addresses[at]) if at >= 0 else None
        return allocation if allocation and address < allocation.block.address + allocation.block.nbytes else None

    @property
    def resident_bytes(self) -> int:
        """Of what is in use, or may not be used again yet: as much as was asked for."""
        waiting = sum(allocation.nbytes for _, allocation in self._waiting)
        return waiting + sum(allocation.nbytes for allocation in self.live.values())

    def _reuse(self, nbytes: int, key: Hashable) -> Block | None:
        idle = self._idle.get(key, [])
        fitting = [block for block in idle if nbytes <= block.nbytes < 2 * max(nbytes, 512)]
        if not fitting:
            return None
        block = min(reversed(fitting), key=lambda found: found.nbytes)
        idle[:] = [other for other in idle if other is not block]
        return block

    def _new(self, nbytes: int, key: Hashable) -> Block:
        memory = bytearray(poison(-(-max(nbytes, 1) // 512) * 512))  # torch rounds to 512 bytes too
        block = Block(memory, np.frombuffer(memory, np.uint8).ctypes.data, key)
        bisect.insort(self._addresses, block.address)
        self.reserved_bytes += block.nbytes
        return block
