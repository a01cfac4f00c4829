"""What is done to files, in threads: blocking calls on paths, and nothing of stores or event loops. What goes wrong
comes out as the system's own `OSError`.

*Reading* is one `open`, one `fstat` and as many `pread`s as there are ranges: the three that NFS needs, too, to serve
what is now in the file. A `pread` fills the memory that becomes the `bytes`: nothing is copied, and of a large file
only what was asked for is in memory.

*Writing* goes into a file beside the old one, which is then renamed.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from aloader.options import KIB, MIB

T = TypeVar("T")

#: How unfinished files are named. They are renamed when whole, and never listed.
UNFINISHED: Final = ".aloader-"

#: A folder at the root of a disk, where the system puts what it repairs. It is passed over where it may not be read.
SYSTEMS_OWN: Final = "lost+found"

#: What one `read` of the system gives at most: 2 GiB less a page.
READ_BYTES: Final = 0x7FFFF000

#: Files that are read without a thread, at most: copying takes some 0.4 ms. Smaller ones than the second number were
#: read into memory as one, so that one look tells.
NOW_BYTES: Final = 4 * MIB
PAGES_TOGETHER: Final = 128 * KIB

#: What is no file (a FIFO) must not keep the thread.
READING: Final = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)

#: Systems without it have nobody to advise.
_advise: Final = getattr(os, "posix_fadvise", None)


class Part(NamedTuple):
    """What was read of a file. `start` is behind the end if there was nothing to read: then there is no data."""

    data: bytes
    size: int
    version: str


class Changed(Exception):  # noqa: N818
    """The file is not the version that was asked for, or became shorter while it was read."""


def version_of(status: os.stat_result) -> str:
    """Another one for a file that was written to, or replaced. It is not changed by renaming or copying with times."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def read(path: str, start: int, stop: int | None, version: str, most: int | None, ahead: bool) -> Part:
    """Bytes of a file, up to its end at most; none if they begin behind it."""
    descriptor = os.open(path, READING)
    try:
        status = _opened(descriptor, path)
        now, size = version_of(status), status.st_size
        if version and version != now:
            raise Changed
        if size == 0:  # empty, or a file of the kernel's, which does not tell
            data = _rest(descriptor)
            return Part(data[start:stop], len(data), now)
        end = size if stop is None or stop > size else stop
        if most is not None and end - start > most:
            end = start + most
        return Part(_between(descriptor, start, end, ahead) if start < end else b"", size, now)
    finally:
        os.close(descriptor)


def read_quickly(path: str, start: int, stop: int | None, ahead: bool) -> bytes | None:
    """The same without a version, where all goes well; None where it does not, or is not so simple."""
    descriptor = os.open(path, READING)
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        end = size if stop is None or stop > size else stop
        if not 0 < end - start <= READ_BYTES or not stat.S_ISREG(status.st_mode):
            return None
        if ahead and _advise:
            _advise(descriptor, start, end - start, os.POSIX_FADV_WILLNEED)
        data = os.pread(descriptor, end - start, start)
        return data if len(data) == end - start else None
    finally:
        os.close(descriptor)


def read_now(path: str, most: int) -> bytes | None:
    """All of a file whose ends are both in memory, and so most likely the rest; None of any other. (Where the system
    cannot tell, nothing is.)"""
    descriptor = os.open(path, READING)
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        if not (0 < size <= most and stat.S_ISREG(status.st_mode)):
            return None
        probe = bytearray(1)
        for place in (size - 1,) if size <= PAGES_TOGETHER else (size - 1, 0):
            if os.preadv(descriptor, [probe], place, os.RWF_NOWAIT) != 1:
                return None
        data = os.pread(descriptor, size, 0)
        return data if len(data) == size else None
    finally:
        os.close(descriptor)


def read_ranges(path: str, ranges: Sequence[tuple[int, int]], ahead: bool) -> tuple[list[bytes], int]:
    """Several ranges of one file, which is opened once, and its size."""
    descriptor = os.open(path, READING)
    try:
        size = _opened(descriptor, path).st_size
        if size == 0:
            data = _rest(descriptor)
            return [data[start:stop] for start, stop in ranges], len(data)
        bounds = [(start, min(stop, size)) for start, stop in ranges]
        if ahead and _advise:
            for start, stop in bounds:
                _advise(descriptor, start, max(0, stop - start), os.POSIX_FADV_WILLNEED)
        return [_between(descriptor, start, stop, False) if start < stop else b"" for start, stop in bounds], size
    finally:
        os.close(descriptor)


def again_if_stale(read: Callable[[], T]) -> T:
    """NFS says ESTALE once if the file was replaced on the server under a handle it had given out: another look finds
    the new one."""
    try:
        return read()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return read()


def measure(path: str) -> tuple[int, str] | None:
    """Size and version; None where there is no file, or no longer, or a link to nothing or itself."""
    try:
        status = os.stat(path)
    except OSError as error:
        if not _leads_nowhere(error):
            raise
        return None
    return (status.st_size, version_of(status)) if stat.S_ISREG(status.st_mode) else None


def hint(paths: Sequence[str]) -> None:
    """Tell the system that these files will be read soon. It begins at once, and nobody waits for the end."""
    for path in paths:
        try:
            descriptor = os.open(path, READING)
        except OSError:  # who reads it will be told
            continue
        try:
            if _advise:
                _advise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        except OSError:  # a FIFO
            pass
        finally:
            os.close(descriptor)


def write(path: str, data: bytes) -> None:
    """The whole file, and the folders that it needs: atomic for readers, but not synced to the disk."""
    folder = os.path.dirname(path)
    unfinished = f"{folder}/{UNFINISHED}{secrets.token_hex(8)}"
    os.makedirs(folder, exist_ok=True)
    try:
        with open(unfinished, "xb") as file:
            file.write(data)
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise


def walk(root: str, prefix: str) -> Iterator[str]:
    """The keys of what may be files: all but folders that begin with a prefix. One look at each folder, none at what
    is in it, as far as the file system says which of its names are folders."""
    start = prefix.rpartition("/")[0]
    if start and ({"", ".", ".."} & set(start.split("/")) or not os.path.isdir(f"{root}/{start}")):
        return
    yield from _below(root, f"{start}/" if start else "", prefix, ())


def _below(root: str, folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Keys in a folder ("" or ending in "/"), in the order of their names. `above`: the folders on the way."""
    try:
        here = os.stat(f"{root}/{folder}")
        with os.scandir(f"{root}/{folder}") as entries:
            names = sorted(f"{entry.name}/" if _is_folder(entry) else entry.name for entry in entries)
    except FileNotFoundError:  # deleted meanwhile
        return
    except PermissionError:
        if f"/{folder}".endswith(f"/{SYSTEMS_OWN}/") and not prefix.startswith(folder):
            return
        raise
    identity = (here.st_dev, here.st_ino)
    if identity in above:  # a link to a folder that it lies in
        return
    for key in (folder + name for name in names):
        if key.endswith("/"):
            if key.startswith(prefix) or prefix.startswith(key):
                yield from _below(root, key, prefix, (*above, identity))
        elif key.startswith(prefix) and not key.startswith(UNFINISHED, len(folder)):
            yield key


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if not _leads_nowhere(error):
            raise
        return False


def _leads_nowhere(error: OSError) -> bool:
    """Whether there is nothing at a path, or only a link to itself."""
    return isinstance(error, FileNotFoundError) or error.errno == errno.ELOOP


def _opened(descriptor: int, path: str) -> os.stat_result:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return status


def _between(descriptor: int, start: int, stop: int, ahead: bool) -> bytes:
    if ahead and _advise:
        _advise(descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)
    data = os.pread(descriptor, min(stop - start, READ_BYTES), start)
    return data if len(data) == stop - start else _gathered(descriptor, start, stop, data)


def _gathered(descriptor: int, start: int, stop: int, first: bytes) -> bytes:
    """What one call did not give: more than fits into one, or a signal or the network came in between."""
    buffer = io.BytesIO(bytes(stop - start))  # gives its memory away as `bytes`, uncopied
    with buffer.getbuffer() as view:
        at = len(first)
        view[:at] = first
        del first
        while at < stop - start:
            got = os.preadv(descriptor, [view[at : at + READ_BYTES]], start + at)
            if got == 0:
                raise Changed
            at += got
    return buffer.getvalue()


def _rest(descriptor: int) -> bytes:
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return file.readall()
