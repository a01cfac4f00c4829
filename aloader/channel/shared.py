"""Memory without a name: made by one process, passed as a descriptor, mapped by another. No policy may enter here.

A memfd has no name, so nothing is left behind by `kill -9`, and a container's small /dev/shm does not matter. It is
sealed against resizing as soon as it has its size: nobody can shrink it under a reader (which would be a SIGBUS), nor
move what a driver may have page-locked. Where there is no memfd, a shared-memory object or an unlinked file serves.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import tempfile
from typing import Any, Final, TypeVar

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, where nothing of this is used
    fcntl = None

#: `MFD_NOEXEC_SEAL`: what is in it will never be run as a program.
_NOEXEC_SEAL: Final = 8

M = TypeVar("M", bound=mmap.mmap)


def create(nbytes: int, name: str = "aloader") -> int:
    """A descriptor of `nbytes` of new zeroed memory. Closed on exec."""
    if hasattr(os, "memfd_create"):
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            fd = os.memfd_create(name, flags)
        except PermissionError:  # the system wants it said (`vm.memfd_noexec`), which kernels before 6.3 do not know
            fd = os.memfd_create(name, flags | _NOEXEC_SEAL)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        return fd
    return create_portably(nbytes)


def create_portably(nbytes: int) -> int:
    """The same where there is no memfd: a named object whose name lives for microseconds, or an unlinked file."""
    fd = _posix_shared_memory()
    if fd is None:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return fd


def _posix_shared_memory() -> int | None:
    try:
        import _posixshmem  # type: ignore[import-not-found]
    except ImportError:
        return None
    name = f"/aloader-{secrets.token_hex(6)}"  # macOS allows 31 characters
    fd: int = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    _posixshmem.shm_unlink(name)
    return fd


def attach(fd: int, nbytes: int, *, private: bool = False) -> mmap.mmap:
    """Map `fd` for reading and writing; the descriptor may be closed afterwards.

    `private`: what this process writes stays its own (copy on write), and the pages it does not write are shared.
    """
    return attach_as(mmap.mmap, fd, nbytes, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)


def attach_as(kind: type[M], fd: int, nbytes: int, flags: int) -> M:
    """The same, as an object of a class of one's own."""
    if sys.version_info >= (3, 13):
        return kind(fd, nbytes, flags=flags, trackfd=False)
    return kind(fd, nbytes, flags=flags)  # keeps a duplicate of the descriptor: one for each mapping


def write(fd: int, buffers: list[memoryview], offsets: list[int]) -> None:
    """Write each buffer at its offset. Releases the GIL while it copies: call it in a thread."""
    for buffer, offset in zip(buffers, offsets, strict=True):
        written = 0
        while written < buffer.nbytes:
            written += os.pwrite(fd, buffer[written:], offset + written)
