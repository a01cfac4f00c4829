"""The host's memory as the simulated card's driver knows it: page-locked ranges, and the pinned blocks of torch.

Of what is copied only the address is kept: whoever drops a source too early finds its memory used by somebody else.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from aloader.channel.leaves import LEASE
from aloader.device.accelerators import LockRefusedError
from aloader.testing.simulated_memory import Block, Layout, Pool, fetch, is_mapped
from aloader.testing.simulated_streams import Operation


@dataclass(slots=True, eq=False)
class Source:
    """What a copy reads, by address. Of a leased leaf it also sees the lease end."""

    address: int
    nbytes: int
    checksum: int
    lease: weakref.ref[Any] | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Source:
        """The memory of a dense tensor."""
        address, nbytes = tensor.data_ptr(), tensor.nbytes
        owner = getattr(tensor.untyped_storage(), LEASE, None)
        lease = None if owner is None else weakref.ref(owner)
        checksum = zlib.crc32((ctypes.c_char * nbytes).from_address(address))
        return cls(address, nbytes, checksum, lease)

    def arrive(self, block: Block) -> str | None:
        """Copy what is there now. Returns what is wrong with it."""
        into = memoryview(block.memory)[: self.nbytes]
        if not fetch(self.address, into):
            block.poison(self.nbytes)
            return "source unmapped under a running copy"
        if zlib.crc32(into) != self.checksum:
            return "source changed under a running copy"
        if self.lease is not None and self.lease() is None:
            return "lease of the source ended under a running copy"
        return None


class HostMemory:
    """Page-locked memory: the ranges that the program has locked itself, and torch's own blocks."""

    def __init__(self, violations: list[str], refuse: str | None, limit: int | None) -> None:
        self.locked: dict[int, int] = {}
        self.calls: list[tuple[int, int]] = []
        self.pool = Pool(lambda allocation: allocation.until)
        self._mapped: set[int] = set()  # locked addresses that were memory then
        self._violations = violations
        self._refuse = refuse
        self._limit = limit

    def lock(self, address: int, nbytes: int) -> None:
        """Page-lock a range."""
        self.calls.append((address, nbytes))
        if self._refuse is not None:
            raise LockRefusedError(self._refuse)
        if self._limit is not None and sum(self.locked.values()) + nbytes > self._limit:
            raise LockRefusedError(f"cannot page-lock {nbytes} bytes more: the limit is {self._limit}")
        for other, length in self.locked.items():
            if address < other + length and other < address + nbytes:
                self._refused(f"locked memory that is page-locked already: {nbytes} bytes at {address:#x}")
        self.locked[address] = nbytes
        if is_mapped(address):  # a test may lock an address that is none
            self._mapped.add(address)

    def unlock(self, address: int, running: list[tuple[Operation, Source]]) -> None:
        """Undo it, where no copy runs."""
        if address not in self.locked:
            self._refused(f"unlocked memory that is not page-locked: {address:#x}")
        end = address + self.locked[address]
        for operation, source in running:
            if source.address < end and address < source.address + source.nbytes:
                self._refused(f"unlocked memory under a running copy: {operation}")
        del self.locked[address]
        self._mapped.discard(address)

    def check_mapped(self) -> None:
        """Memory has to be unlocked before it is unmapped."""
        for address in [address for address in self._mapped if not is_mapped(address)]:
            self._mapped.discard(address)
            self._violations.append(f"page-locked memory was unmapped: {self.locked[address]} bytes at {address:#x}")

    def pin(self, tensor: torch.Tensor, now: float) -> torch.Tensor:
        """A copy in a block of torch's."""
        layout = Layout.of(torch.empty_like(tensor, device="meta"))
        _, owner = self.pool.allocate(tensor.nbytes, None, now)
        return layout.on(owner).copy_(tensor.detach())

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor begins in page-locked memory: which is all that the driver looks at, too."""
        return self.pool.find(tensor) is not None or self._range_of(tensor.data_ptr()) is not None

    def check(self, tensor: torch.Tensor) -> None:
        """A driver copies from within one range, or from memory that it knows nothing of."""
        address, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for other, length in self.locked.items():
            if address < other + length and other < end and not (other <= address and end <= other + length):
                raise RuntimeError(
                    "CUDA error: invalid argument (simulated: a copy crosses the border of page-locked memory)"
                )

    def _range_of(self, address: int) -> int | None:
        return next((start for start, length in self.locked.items() if start <= address < start + length), None)

    def _refused(self, text: str) -> Any:
        self._violations.append(text)
        raise LockRefusedError(text)
