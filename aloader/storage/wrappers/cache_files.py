"""Single files of a cache on disk, and the process that writes them. Blocking: it is called in threads."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Final

from aloader.storage.wrappers.cache_entry import BLOCK, FRONT, MAGIC, Entry, Torn, checksums, front_size, parsed
from aloader.storage.wrappers.cache_plan import Owner

#: Seconds between two notes of when an entry was used.
TOUCH: Final = 60.0


def open_entry(path: str) -> int | None:
    """A descriptor; None if there is nothing that can be read. Links are not followed."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


def head(descriptor: int) -> tuple[Entry, int, os.stat_result]:
    """An entry's description, where its bytes begin, and its file's status. `Torn` if the file is none."""
    begin = os.pread(descriptor, FRONT, 0)
    size = front_size(begin)
    if size > len(begin):
        begin += os.pread(descriptor, size - len(begin), len(begin))
    entry = parsed(begin[:size])
    status = os.fstat(descriptor)
    if status.st_size != size + entry.length:
        raise Torn
    return entry, size, status


def content(descriptor: int, at: int, entry: Entry, start: int, stop: int) -> bytes:
    """The bytes from `start` to `stop` of those that the entry has, read in whole blocks. `Torn` if they are wrong."""
    first = start // BLOCK
    begin, end = first * BLOCK, min(entry.length, -(-stop // BLOCK) * BLOCK)
    data = os.pread(descriptor, end - begin, at + begin)
    while len(data) < end - begin:  # the system gives at most 2 GiB at once
        more = os.pread(descriptor, end - begin - len(data), at + begin + len(data))
        if not more:
            raise Torn
        data += more
    found = checksums(data)
    if found != entry.checksums[first : first + len(found)]:
        raise Torn
    return data if (start, stop) == (begin, end) else data[start - begin : stop - begin]


def touch(descriptor: int, status: os.stat_result) -> None:
    """Note the use: by hand, since many disks are mounted so that they do not."""
    now = time.time()
    if now - status.st_atime > TOUCH:
        os.utime(descriptor, (now, status.st_mtime))


def write(path: str, front: bytes, data: bytes) -> None:
    with open(path, "xb", buffering=0, opener=_private) as file:
        for part in (memoryview(front), memoryview(data)):
            while part:
                part = part[file.write(part) :]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def is_foreign(path: str) -> bool:
    """Whether there is something that no cache has written. (Power was lost: nothing, or zeros, may be left of it.)"""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        begin = os.read(descriptor, len(MAGIC)) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b"no file"
        return begin != MAGIC and any(begin)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def remove(path: str) -> bool:
    """Whether it is gone, by us or by somebody else."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def scan(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def owner() -> Owner:
    parts = []
    for read, path in ((Path.read_text, "/proc/sys/kernel/random/boot_id"), (os.readlink, "/proc/self/ns/pid")):
        try:
            parts.append(str(read(Path(path))))
        except OSError:
            parts.append("")
    boot = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
    return Owner(boot, os.getpid(), started(os.getpid()) or 0)


def started(pid: int) -> int | None:
    """When a process began; None if there is none. Where the system does not say, 0 for every one that there is."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return 0
