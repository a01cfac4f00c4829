"""PAGE-LOCKED ARENAS: the memory that workers write batches into is locked once, when this process has mapped it.

A `Pages` is a crew's `PageKeeper` (see `channel.roles`): it hears of every mapping when it is made and before it goes,
and whether somebody may copy from it is not its concern: nobody does from memory that goes, since a copy that runs
keeps its batch, that its leases, and those the mapping.

Touching and locking take up to a second per GiB, so one helper thread does them. It lives while there is something to
do; not a daemon, since nobody may be torn out of a driver. A mapping that dies with its last view dies anywhere, maybe
in the middle of starting a thread, and on somebody's event loop: it is brought to the helper thread, by a bare thread
(starting one takes no lock of Python's). Where the program ends, what is locked is left to the end of the process.

What is locked in pieces is locked from its end. A batch counts as pinned by its first byte, and a device refuses a copy
from memory of which only a part is locked: so whatever begins in locked memory must end in it. For the same reason
nothing is unlocked before the mapping goes, not even what was locked of a segment whose other piece was refused.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from aloader import options
from aloader.device.accelerators import Accelerator

#: Pages are touched in stretches of this size (some 10 ms): between two of them, others have their turn, and the helper
#: looks whether it should go on.
_STRETCH: Final = 16 * options.MIB

#: `MADV_POPULATE_WRITE`.
_POPULATE_WRITE: Final = 23


class _Region:
    """One mapping: what of it is locked, and whether it is on its way out."""

    __slots__ = ("address", "fd", "going", "guard", "locked", "memory", "nbytes")

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = weakref.ref(memory)
        self.nbytes = len(memory)
        self.address = int(np.frombuffer(memory, np.uint8).ctypes.data)  # the array is gone again: it may be unmapped
        self.fd = -1  # open while the region waits to be locked
        self.going = False
        self.guard = threading.Lock()  # held while a piece is being touched or locked
        self.locked: list[tuple[int, int]] = []  # addresses and bytes of its pieces

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Addresses and bytes of what is locked at once, from the end of the region."""
        offsets = range(0, self.nbytes, size)
        return [(self.address + at, min(size, self.nbytes - at)) for at in reversed(offsets)]


class Pages:
    """Locks the memory of one crew's workers, at most `limit_bytes` of it at once.

    `warn` is told once, from any thread, if locking is refused; nothing more is locked then. What would exceed the
    limit stays unlocked for good: who copies from it finds it not pinned, as everything else that is not locked (yet).

    `whole`: nothing is locked in pieces, since others copy than the accelerator's `copy`, which stops at their borders.
    """

    def __init__(
        self, accelerator: Accelerator, limit_bytes: int, warn: Callable[[str], None], *, whole: bool = False
    ) -> None:
        self.refused: str | None = None  # why nothing is locked any more
        self._accelerator = accelerator
        self._limit = limit_bytes
        self._warn = warn
        self._whole = whole
        self._regions: dict[int, _Region] = {}  # by the identity of their mapping, until that is about to go
        self._to_lock: deque[_Region] = deque()
        self._dropped: deque[mmap.mmap] = deque()  # they died, and live until they are unlocked
        self._mutex = threading.Lock()  # for looking whether the helper runs; nothing else is done under it
        self._running = False
        self._closed = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "refused" if self.refused else "open"
        return f"<Pages {state}, {self.locked_bytes} bytes locked, {self.unlocked_bytes} not>"

    @property
    def locked_bytes(self) -> int:
        """Bytes that are locked now."""
        return sum(nbytes for region in list(self._regions.values()) for _, nbytes in list(region.locked))

    @property
    def unlocked_bytes(self) -> int:
        """Bytes of mappings that are not locked: not yet, or since it was refused or would have passed the limit."""
        return sum(region.nbytes for region in list(self._regions.values())) - self.locked_bytes

    # -- what happens to mappings ----------------------------------------------------------------------------------

    def mapped(self, memory: mmap.mmap, fd: int) -> None:
        """A new mapping of `fd`, which may be closed afterwards: lock it, as soon as the helper comes to it."""
        region = self._regions[id(memory)] = _Region(memory)
        if self._stopped:
            return
        with contextlib.suppress(OSError):  # no descriptor left: its pages are touched when they are locked
            region.fd = os.dup(fd)
        self._to_lock.append(region)
        self._begin()

    def unmapping(self, memory: mmap.mmap) -> None:
        """This mapping is about to be closed: unlock it. Waits for the piece that is just being locked, if there is
        one, so it may take a while. From any thread; a second time is nothing."""
        if self._left_alone:
            return
        region = self._regions.get(id(memory))
        if region is None:
            return
        region.going = True
        with region.guard:
            while region.locked:
                address, _ = region.locked.pop()
                # A device that has failed says so to whoever computes on it; the memory goes all the same.
                with contextlib.suppress(Exception):
                    self._accelerator.unlock(address)
        self._regions.pop(id(memory), None)

    def dropped(self, memory: mmap.mmap) -> None:
        """This mapping's last reference has gone, anywhere: from its finalizer, which takes no lock and waits for
        nobody. If there is something to unlock, the mapping lives on until the helper has done it."""
        if self._left_alone:
            return
        region = self._regions.get(id(memory))
        if region is None or not region.locked:  # who locks a piece holds the mapping
            self._regions.pop(id(memory), None)
            return
        region.going = True
        if not threading.main_thread().is_alive():
            return
        self._dropped.append(memory)
        try:
            _thread.start_new_thread(self._begin, ())
        except RuntimeError:  # no thread can be had: then here, unless the helper has it already
            with contextlib.suppress(ValueError):
                self._dropped.remove(memory)
                self.unmapping(memory)

    def close(self) -> None:
        """Lock nothing more. What is locked stays so until its mapping goes. The helper ends by itself. Idempotent."""
        self._closed = True
        if not self._left_alone:
            self._begin()  # for what no thread could be had before: descriptors wait there

    # -- the helper ------------------------------------------------------------------------------------------------

    @property
    def _left_alone(self) -> bool:
        """A fork of the user's program has locked nothing, and a driver may be half gone when the interpreter ends."""
        return sys.is_finalizing() or os.getpid() != self._pid

    @property
    def _stopped(self) -> bool:
        """Nothing more is to be locked. The helper is waited for when the program ends: it must not take long then."""
        if self._closed or self.refused is not None or self._left_alone:
            return True
        return not threading.main_thread().is_alive()

    def _begin(self) -> None:
        """Have the helper run, if it does not."""
        with self._mutex:
            if self._running or not (self._to_lock or self._dropped):
                return
            self._running = True
        try:
            threading.Thread(target=self._run, name="aloader-lock", daemon=False).start()  # also from a daemon
        except RuntimeError:  # no thread can be had: what is mapped next tries again
            self._running = False

    def _run(self) -> None:
        try:
            while self._goes_on():
                if self._dropped:
                    with contextlib.suppress(BufferError):  # somebody has found it again: it goes with them
                        self._dropped.popleft().close()  # which unlocks it first
                else:
                    self._serve(self._to_lock.popleft())
        except BaseException:  # a warning that is an error: told of as any thread's is, and another helper goes on
            self._running = False
            self._begin()
            raise

    def _goes_on(self) -> bool:
        with self._mutex:
            self._running = bool(self._to_lock or self._dropped)
            return self._running

    def _serve(self, region: _Region) -> None:
        try:
            if self.locked_bytes + region.nbytes <= self._limit:
                self._touch(region)
                if self._open():
                    self._lock(region)
        except Exception as error:  # not only what the protocol names: nobody else would hear of it
            self._refuse(region, error)
        finally:
            if region.fd >= 0:
                os.close(region.fd)

    def _open(self) -> bool:
        """Have the accelerator opened, whoever comes first. Who copies to it tells the user if that fails."""
        try:
            if self._stopped:
                return False
            self._accelerator.open()
        except RuntimeError as error:
            self.refused = str(error)
        return self.refused is None

    def _touch(self, region: _Region) -> None:
        """Have its pages made and mapped. A driver would do it too, but in one go, with the address space held: nobody
        in this process could map or unmap anything, a loop that allocates a large array included (0.6 s per GiB)."""
        for at in range(0, region.nbytes, _STRETCH):
            nbytes = min(_STRETCH, region.nbytes - at)
            memory = region.memory()
            with region.guard:
                if self._stopped or region.going or memory is None:
                    return
                with contextlib.suppress(OSError):  # whoever locks them will say what is the matter
                    _make_pages(region.fd, at, nbytes)
                _map_pages(region.address + at, nbytes)
            del memory

    def _lock(self, region: _Region) -> None:
        for address, nbytes in region.pieces(region.nbytes if self._whole else options.LOCK_BYTES):
            memory = region.memory()  # held: nobody's last view takes it away meanwhile
            with region.guard:
                if self._stopped or region.going or memory is None:
                    return
                self._accelerator.lock(address, nbytes)
                region.locked.append((address, nbytes))
            del memory

    def _refuse(self, region: _Region, error: Exception) -> None:
        """The accelerator knows the reason and the remedy."""
        self.refused = str(error) or repr(error)
        self._warn(
            "The memory that workers write batches into is not page-locked any further, and batches are copied into "
            "pinned memory by a thread instead; nothing else changes. Refused were "
            f"{region.nbytes / 1e6:.0f} MB: {self.refused}"
        )


def _make_pages(fd: int, at: int, nbytes: int) -> None:
    """Zeroed pages where there are none. Releases the GIL, as MAP_POPULATE and Python's `madvise` do not."""
    if fd >= 0 and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, at, nbytes)


def _map_pages(address: int, nbytes: int) -> None:
    """Put them into this process's page table. From Linux 5.14 on; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _POPULATE_WRITE)
