"""What the workers work on: one pickle for dataset, collate function and start function, written once into a memfd
that every process maps privately: unwritten pages are shared by all of them.

Layout of the file: where the index lies and its length; body and buffers, each on a 64-byte boundary; the index, a
pickle of `Index`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import cloudpickle
import numpy as np
from torch.utils.data._utils import collate

from aloader import options
from aloader.channel import shared
from aloader.channel.carry import carry, restore

_HEAD: Final = struct.Struct("<QQ")


class Job(NamedTuple):
    """A dataset and what is done with its samples. `collate_entries` are the user's own in torch's collate table."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], object] | None
    collate_entries: dict[Any, Callable[..., Any]]

    @classmethod
    def of(cls, dataset: Any, collate_fn: Callable[[Any], Any], worker_init_fn: Callable[[int], object] | None) -> Job:
        """A job with the entries that the user has added to (or replaced in) torch's live table."""
        own = {
            kind: function
            for kind, function in collate.default_collate_fn_map.items()
            if getattr(function, "__module__", "") != collate.__name__
        }
        return cls(dataset, collate_fn, worker_init_fn, own)


class Index(NamedTuple):
    """Where things lie in the file, and the parent's context for importing the dataset's modules."""

    context: bytes
    places: list[tuple[int, int]]  # the body's and every buffer's offset and length


class Carried:
    """A pickled job, and the memfd that it was written into."""

    def __init__(self, job: Job, context: bytes) -> None:
        packed = carry(job)
        self.captured = packed.captured
        self.nbytes = len(packed.body) + sum(b.nbytes for b in packed.buffers)
        self._parts = [memoryview(packed.body), *packed.buffers]
        self._context = context
        self._places: list[tuple[int, int]] = []
        self.fd = -1
        self.size = 0

    def write(self) -> None:
        """Write it into a new memfd. Takes time (2 GB/s), releases the GIL: call it in a thread."""
        at = _HEAD.size
        places = []
        for part in self._parts:
            at = -(-at // options.ALIGNMENT) * options.ALIGNMENT
            places.append((at, part.nbytes))
            at += part.nbytes
        index = pickle.dumps(Index(self._context, places), 5)
        self.size = at + len(index)
        self.fd = shared.create(self.size, "aloader-job")
        parts = [memoryview(_HEAD.pack(at, len(index))), *self._parts, memoryview(index)]
        shared.write(self.fd, parts, [0, *(offset for offset, _ in places), at])
        self._places = places

    def same_as(self, written: Carried) -> bool:
        """Whether `written` (a job in a memfd) says the same, byte for byte. Releases the GIL: call it in a thread."""
        if [part.nbytes for part in self._parts] != [nbytes for _, nbytes in written._places]:
            return False
        memory = shared.attach(written.fd, written.size)
        try:
            return all(_equal(part, memory, at) for part, (at, _) in zip(self._parts, written._places, strict=True))
        finally:
            memory.close()

    def forget(self) -> None:
        """Drop the references to the user's data; what is in the memfd stays."""
        self._parts = []

    def close(self) -> None:
        """Give the memfd up: processes that have mapped it keep it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _equal(part: memoryview, memory: mmap.mmap, at: int) -> bool:
    if part.nbytes == 0:
        return True
    mine, theirs = np.frombuffer(part, np.uint8), np.frombuffer(memory, np.uint8, part.nbytes, at)
    compare = ctypes.CDLL(None).memcmp  # numpy's own comparison writes a byte for every byte that it reads
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return int(compare(mine.ctypes.data, theirs.ctypes.data, part.nbytes)) == 0


def read_index(fd: int) -> Index:
    """The index of a written job."""
    at, length = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
    index: Index = pickle.loads(os.pread(fd, length, at))
    return index


def read_context(fd: int) -> dict[str, Any]:
    """The parent's context, for `context.apply_to_imports`."""
    found: dict[str, Any] = cloudpickle.loads(read_index(fd).context)
    return found


def load(fd: int, size: int) -> Job:
    """Unpickle the job on privately mapped memory. The memory lives as long as something of the job uses it."""
    memory = memoryview(shared.attach(fd, size, private=True))
    body, *buffers = [memory[at : at + nbytes] for at, nbytes in read_index(fd).places]
    job: Job = restore(body, buffers)
    return job
