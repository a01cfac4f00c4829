"""Tensors in shared memory (`share_memory_()`) stay shared: workers map the memory that the program has mapped.

A storage is named by the program's own descriptor, through `/proc`: nothing has to be passed along with the pickle, and
it is the same pickle as long as it is the same memory.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from aloader.channel.leaves import Rule


def by_name(storage: torch.UntypedStorage) -> Rule | None:
    """How a storage in shared memory is carried. None, by value, where there is no `/proc`."""
    shared: Any = storage
    if torch.multiprocessing.get_sharing_strategy() == "file_system":  # type: ignore[no-untyped-call]
        return _named, tuple(shared._share_filename_cpu_())
    if not sys.platform.startswith("linux"):
        return None
    fd, size = shared._share_fd_cpu_()
    return _described, (f"/proc/{os.getpid()}/fd/{fd}", size)


def _described(path: str, size: int) -> torch.UntypedStorage:
    kind: Any = torch.UntypedStorage
    fd = os.open(path, os.O_RDWR)
    try:
        storage: torch.UntypedStorage = kind._new_shared_fd_cpu(fd, size)
        return storage
    finally:
        os.close(fd)


def _named(manager: Any, handle: Any, size: int) -> torch.UntypedStorage:
    kind: Any = torch.UntypedStorage
    storage: Any = kind._new_shared_filename_cpu(manager, handle, size)
    shared: torch.UntypedStorage = storage._shared_decref()
    return shared
