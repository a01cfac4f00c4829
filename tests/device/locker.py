"""An accelerator of which there is only what page-locking needs: it keeps a strict account of what is locked."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from aloader import options
from aloader.channel import shared
from aloader.channel.leases import Mappings
from aloader.device.accelerators import LockRefusedError
from aloader.device.pages import Pages

#: Seconds after which a test that waits for the helper fails.
PATIENCE = 5.0


def is_mapped(address: int, nbytes: int = 1) -> bool:
    """Whether this process has memory there. Its mappings may be neighbours, and one line then."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(number, 16) for number in line.split(maxsplit=1)[0].split("-"))
            if begin <= address < end:
                return end - address >= nbytes
    return False


class Locker:
    """`refuses` after so many bytes. While `gate` is clear, `lock` waits, as a slow driver does."""

    def __init__(self, refuses: int = 1 << 60) -> None:
        self.locked: dict[int, int] = {}  # bytes by address
        self.calls: list[tuple[str, int, int]] = []  # what was done: address, bytes
        self.wrong: list[str] = []
        self.threads: set[int] = set()
        self.fails: str | None = None  # why it cannot be opened
        self.beside: Any = None  # an accelerator that is told the same
        self.gate = threading.Event()
        self.gate.set()
        self._refuses = refuses
        self._changed = threading.Condition()

    @property
    def nbytes(self) -> int:
        """Bytes that are locked now."""
        return sum(list(self.locked.values()))

    def open(self) -> None:
        """As an `Accelerator`."""
        if self.fails is not None:
            raise RuntimeError(self.fails)

    def lock(self, address: int, nbytes: int) -> None:
        """As an `Accelerator`."""
        self._note("locking", address, nbytes)
        if not self.gate.wait(PATIENCE):
            self.wrong.append("nobody opened the gate")
        if self.nbytes + nbytes > self._refuses:
            raise LockRefusedError("no more of it")
        self._check(address not in self.locked, "locked twice", address)
        self._check(is_mapped(address, nbytes), "locked and not mapped", address)
        if self.beside is not None:
            self.beside.lock(address, nbytes)
        self.locked[address] = nbytes
        self._note("lock", address, nbytes)

    def unlock(self, address: int) -> None:
        """As an `Accelerator`."""
        if sys.is_finalizing():
            os.write(2, b"the driver was called while the interpreter ends\n")  # nothing else is sure to work then
        nbytes = self.locked.pop(address, 0)
        self._check(nbytes > 0, "unlocked and not locked", address)
        self._check(is_mapped(address, nbytes), "unmapped before it was unlocked", address)
        if self.beside is not None:
            self.beside.unlock(address)
        self._note("unlock", address, nbytes)

    def did(self, what: str) -> list[tuple[int, int]]:
        """All of one kind: address, bytes."""
        return [(address, nbytes) for kind, address, nbytes in list(self.calls) if kind == what]

    def wait(self, condition: Callable[[], object]) -> None:
        """Until it holds: it is looked at whenever something has been locked or unlocked."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), f"in vain: {self.calls}"

    def _note(self, what: str, address: int, nbytes: int) -> None:
        with self._changed:
            self.calls.append((what, address, nbytes))
            self.threads.add(threading.get_ident())
            self._changed.notify_all()

    def _check(self, holds: bool, what: str, address: int) -> None:
        if not holds:
            self.wrong.append(f"{address:#x} was {what}")


class Room:
    """One worker's mappings, and who locks them. Nothing may be locked or have gone wrong when it is left."""

    def __init__(self, limit: int = options.GIB, refuses: int = 1 << 60) -> None:
        self.locker = Locker(refuses)
        self.warned: list[str] = []
        self.pages = Pages(self.locker, limit, self.warned.append)  # type: ignore[arg-type]
        self.mappings = Mappings(lambda segment, offset: None, self.pages)

    def segment(self, number: int = 0, nbytes: int = options.MIB) -> None:
        """Map one."""
        self.mappings.add(number, nbytes, shared.create(nbytes, "test"))

    def memory(self, number: int = 0) -> mmap.mmap:
        return self.mappings._segments[number]

    def settle(self) -> None:
        """Until the helper has nothing more to do."""
        for thread in threading.enumerate():
            if thread.name == "aloader-lock":
                thread.join(PATIENCE)

    def leave(self) -> None:
        self.locker.gate.set()
        for memory in self.mappings.close():
            memory.close()
        self.pages.close()
        self.settle()
        assert not self.locker.wrong, self.locker.wrong
        assert not self.locker.locked, f"left locked: {self.locker.locked}"
        assert self.pages.locked_bytes == 0, self.pages
