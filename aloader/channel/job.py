"""What the workers work on: one pickle for dataset, collate function and start function, written once into a memfd
that every process maps privately: unwritten pages are shared by all of them.

`worker_setup` has a pickle of its own before it: it has to run before anything of the dataset is unpickled.

Layout of the file: where the index lies and its length; bodies and buffers, each on a 64-byte boundary; the index, a
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

import numpy as np
from torch.utils.data._utils import collate

from aloader import options
from aloader.channel import shared
from aloader.channel.carry import Carried as Packed
from aloader.channel.carry import carry, restore
from aloader.channel.context import importing
from aloader.channel.flags import Values, follow
from aloader.channel.offender import safe_repr
from aloader.channel.sharing import by_name

_HEAD: Final = struct.Struct("<QQ")


class Job(NamedTuple):
    """A dataset and what is done with its samples. `collate_entries` are the user's own in torch's collate table;
    `on_error` is the user's function that is given the errors of samples, if it is one."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], object] | None
    collate_entries: dict[Any, Callable[..., Any]]
    worker_setup: Callable[[], object] | None = None
    on_error: Callable[[Any], Any] | None = None

    @classmethod
    def of(
        cls,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        worker_init_fn: Callable[[int], object] | None,
        worker_setup: Callable[[], object] | None = None,
        on_error: Callable[[Any], Any] | None = None,
    ) -> Job:
        """A job with the entries that the user has added to (or replaced in) torch's live table."""
        own = {
            kind: function
            for kind, function in collate.default_collate_fn_map.items()
            if getattr(function, "__module__", "") != collate.__name__
        }
        return cls(dataset, collate_fn, worker_init_fn, own, worker_setup, on_error)


class Index(NamedTuple):
    """Where things lie in the file, and what a process takes over from the parent before it loads them."""

    context: bytes
    flags: bytes
    setup: int  # how many of the places are `worker_setup`'s
    places: list[tuple[int, int]]  # offset and length of each body, and after it of its buffers


class Carried:
    """A pickled job, and the memfd that it was written into."""

    def __init__(self, job: Job, context: bytes, flags: Values | None = None) -> None:
        packed = carry(job._replace(worker_setup=None), share=by_name)
        self.captured = packed.captured
        self.nbytes = len(packed.body) + sum(b.nbytes for b in packed.buffers)
        self.in_stream = len(packed.body)  # bytes of Python objects: what is not shared
        setup = _parts_of(carry(job.worker_setup, "worker_setup")) if job.worker_setup is not None else []
        self._parts = [*setup, *_parts_of(packed)]
        self._setup = len(setup)
        self._context = context
        self.flags: Values = flags or {}
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
        index = pickle.dumps(Index(self._context, pickle.dumps(self.flags, 5), self._setup, places), 5)
        self.size = at + len(index)
        self.fd = shared.create(self.size, "aloader-job")
        parts = [memoryview(_HEAD.pack(at, len(index))), *self._parts, memoryview(index)]
        shared.write(self.fd, parts, [0, *(offset for offset, _ in places), at])
        self._places = places

    def same_as(self, written: Carried) -> bool:
        """Whether `written` (a job in a memfd) says the same, byte for byte. Releases the GIL: call it in a thread.

        What `worker_setup` has done would be undone if a new context were applied later: it runs again instead.
        """
        if self._setup != written._setup or (self._setup and self._context != written._context):
            return False
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


def _parts_of(packed: Packed) -> list[memoryview]:
    return [memoryview(packed.body), *packed.buffers]


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


def load(fd: int, size: int) -> Job:
    """Unpickle the job on privately mapped memory, with the parent's flags, and after `worker_setup`.

    The context must have been applied. The memory lives as long as something of the job uses it.
    """
    memory = memoryview(shared.attach(fd, size, private=True))
    index = read_index(fd)
    follow(index.flags)
    parts = [memory[at : at + nbytes] for at, nbytes in index.places]
    if index.setup:
        run_setup(restore(parts[0], parts[1 : index.setup]))
    body, *buffers = parts[index.setup :]
    with importing():
        job: Job = restore(body, buffers)
    return job


def run_setup(setup: Callable[[], object]) -> None:
    """Run `worker_setup`. What it raises says that it did."""
    try:
        setup()
    except BaseException as error:
        error.add_note(f"raised by worker_setup={safe_repr(setup)}, which runs in workers before the dataset is loaded")
        raise
