"""A folder of entries that any number of processes fill, read and empty at once. Blocking: it is called in threads.

    aloader-cache.v1    says what the folder is; nothing is ever deleted in a folder without it
    filled              how full it is: as many bytes long as pages are taken
    unfinished/         files that are being written
    ab/cdef….entry      entries

*No lock.* A file is published by renaming it, which replaces an older one, and deleting what another process reads
leaves that process its open file. Whoever finds a file gone that it wanted to delete is content.

*How full it is* has to be known by all who write, without asking each other and without walking through the folder. So
each appends to one file as many bytes as its entry takes pages: appending is one step for the system. The file's
length is an estimate (a killed process may have appended and not written; entries are replaced): whoever finds it over
the mark walks through the folder, deletes what has not been used for longest, and sets it right.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from aloader.errors import StorageError
from aloader.storage.base import Request, Response
from aloader.storage.wrappers import cache_files as files
from aloader.storage.wrappers.cache_entry import (
    NAME,
    SHARD,
    Entry,
    Torn,
    checksums,
    front_of,
    range_suffix,
    stem,
    stretch,
)
from aloader.storage.wrappers.cache_plan import HIGH, LOW, PAGE, Used, is_abandoned, is_unfinished, pages, to_evict

MARKER: Final = "aloader-cache.v1"
FILLED: Final = "filled"
UNFINISHED: Final = "unfinished"

#: What may lie in a folder that is to become a cache: file systems have it in their roots.
OVERLOOKED: Final = frozenset({"lost+found"})

_ABOUT: Final = """This folder is a cache of objects that are kept elsewhere. It may be deleted at any time, as a whole.
Files in it are deleted when it is full.
"""


class Found(NamedTuple):
    """An answer out of the cache, and when (seconds since 1970) its entry was known to be right."""

    response: Response
    checked: float


class CacheFolder:
    """The entries of one store in a folder with room for `limit` bytes, which other stores and processes use too."""

    def __init__(self, folder: Path, limit: int, namespace: str) -> None:
        self.folder = folder
        self.limit = limit
        self.namespace = namespace
        self._mark = limit * random.Random(os.urandom(8)).uniform(*HIGH)
        self._me = files.owner()
        self._prepared = False

    def prepare(self) -> None:
        """Make the folder, if need be, and remove what dead processes have left unfinished.

        `StorageError` if there is something else in it; `OSError`.
        """
        if not (self.folder / MARKER).exists():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.scandir(self.folder) as entries:
                other = min((entry.name for entry in entries if not _is_left(entry)), default=None)
            if other is not None and not (self.folder / MARKER).exists():  # somebody else may have just begun it
                raise StorageError(
                    f"{str(self.folder)!r} is no cache of aloader: it has {other!r} in it. "
                    "A cache deletes files in its folder: name a new folder, or an empty one"
                )
            (self.folder / MARKER).write_text(_ABOUT)
        (self.folder / UNFINISHED).mkdir(mode=0o700, exist_ok=True)
        if not (self.folder / FILLED).exists():
            (self.folder / FILLED).touch()
            self.evict()
        self._remove_unfinished()
        self._prepared = True

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Found | None:
        """The answer to a request, if an entry has it: the whole object's, else that of exactly this range."""
        path = f"{self.folder}/{stem(self.namespace, request.key)}"
        for suffix in ("", range_suffix(request)):
            if (found := self._read(f"{path}{suffix}.entry", request)) is not None:
                return found
        return None

    def _read(self, path: str, request: Request) -> Found | None:
        descriptor = files.open_entry(path)
        if descriptor is None:
            return None
        try:
            entry, at, status = files.head(descriptor)
            if (entry.namespace, entry.key) != (self.namespace, request.key):  # hashes may be the same
                return None
            wanted = stretch(entry, request)
            if wanted is None:
                return None
            data = files.content(descriptor, at, entry, *wanted)
            files.touch(descriptor, status)
            return Found(Response(data, entry.size, entry.version, entry.digests), status.st_mtime)
        except Torn:
            self._evict(path)
            return None
        except OSError:  # a disk that fails is as good as none
            return None
        finally:
            os.close(descriptor)

    def size(self, key: str) -> int | None:
        """How large an object is, if the cache has it whole."""
        descriptor = files.open_entry(f"{self.folder}/{stem(self.namespace, key)}.entry")
        if descriptor is None:
            return None
        try:
            entry, _, _ = files.head(descriptor)
            return entry.size if (entry.namespace, entry.key) == (self.namespace, key) else None
        except (Torn, OSError):
            return None
        finally:
            os.close(descriptor)

    def checked(self, request: Request) -> None:
        """Note that the entry has been found to be right, just now."""
        path = f"{self.folder}/{stem(self.namespace, request.key)}"
        for suffix in ("", range_suffix(request)):
            try:
                os.utime(f"{path}{suffix}.entry")
            except OSError:
                pass

    def touch(self, keys: Iterable[str]) -> None:
        """Note that these are needed, the first of them first: the last will go first, where room is needed."""
        names = list(keys)
        now = time.time()
        for place, key in enumerate(names):
            path = f"{self.folder}/{stem(self.namespace, key)}.entry"
            try:
                os.utime(path, (now + (len(names) - place) * 1e-3, os.stat(path).st_mtime))
            except OSError:
                pass

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, request: Request, response: Response) -> bool:
        """Keep an answer; False if it is too large, not what was asked for, or has another file in its place.

        `OSError` if the disk refuses.
        """
        path, entry = self._entry(request, response)
        if stretch(entry, request) != (0, len(response.data)):  # nobody would find it
            return False
        front = front_of(entry)
        size = len(front) + len(response.data)
        if pages(size) * PAGE > self.limit * LOW or files.is_foreign(path):
            return False
        if not self._prepared or not (self.folder / MARKER).exists():  # the disk refused, or somebody deleted it all
            self.prepare()
        self._make_room(pages(size))
        unfinished = f"{self.folder}/{UNFINISHED}/{self._me.name(int.from_bytes(os.urandom(8)))}"
        try:
            files.write(unfinished, front, response.data)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.replace(unfinished, path)
        except BaseException:
            files.remove(unfinished)
            raise
        return True

    def _entry(self, request: Request, response: Response) -> tuple[str, Entry]:
        data = response.data
        entry = Entry(
            self.namespace,
            request.key,
            request.start,
            len(data),
            response.size,
            response.version,
            response.digests,
            checksums(data),
        )
        suffix = "" if entry.whole else range_suffix(request)
        return f"{self.folder}/{stem(self.namespace, request.key)}{suffix}.entry", entry

    def forget(self, key: str) -> None:
        """Delete everything of an object."""
        folder, _, name = stem(self.namespace, key).partition("/")
        try:
            names = os.listdir(self.folder / folder)
        except OSError:
            return
        for other in names:
            if other.startswith(name) and NAME.fullmatch(other):
                self._evict(f"{self.folder}/{folder}/{other}")

    # -- bounds ------------------------------------------------------------------------------------------------------

    def _make_room(self, count: int) -> None:
        try:
            filled = self._fill(count)
        except OSError:  # not even for this is there room: where the limit is lower now, there can be
            filled = self._filled() + count
            if filled * PAGE <= self._mark:
                raise
        if filled * PAGE > self._mark:
            self.evict(count)

    def _fill(self, count: int) -> int:
        """Say that so many pages are being taken; how many there are then."""
        with open(self.folder / FILLED, "ab", buffering=0) as filled:
            filled.write(bytes(count))
            return filled.tell()

    def evict(self, count: int = 0) -> None:
        """Delete what was not used for longest, so that beside `count` pages `LOW` of the room is taken at most."""
        before = self._filled()
        found = list(self._entries())
        gone = {used.path for used in to_evict(found, int(self.limit * LOW) - count * PAGE) if self._evict(used.path)}
        left = sum(used.size for used in found if used.path not in gone) // PAGE
        meanwhile = max(0, self._filled() - before)
        try:
            os.truncate(self.folder / FILLED, left + count + meanwhile)
        except FileNotFoundError:
            pass
        self._remove_unfinished()

    def _filled(self) -> int:
        try:
            return os.stat(self.folder / FILLED).st_size
        except FileNotFoundError:
            return 0

    def _entries(self) -> Iterator[Used]:
        """The files that by their names are entries."""
        for folder in files.scan(self.folder):
            if SHARD.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                for file in files.scan(folder.path):
                    if NAME.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                        try:
                            status = file.stat(follow_symlinks=False)
                        except OSError:  # somebody has just deleted it
                            continue
                        yield Used(file.path, pages(status.st_size) * PAGE, status.st_atime)

    def _evict(self, path: str) -> bool:
        """Whether it is gone. What is none of ours stays."""
        return not files.is_foreign(path) and files.remove(path)

    def _remove_unfinished(self) -> None:
        now = time.time()
        for file in files.scan(self.folder / UNFINISHED):
            try:
                age = now - file.stat(follow_symlinks=False).st_mtime
            except OSError:
                continue
            if is_abandoned(file.name, age, self._me, files.started):
                files.remove(file.path)


def _is_left(entry: os.DirEntry[str]) -> bool:
    """Whether it may be in a folder without the marker: who deletes a cache that is written to may leave some of it."""
    if entry.name in OVERLOOKED:
        return True
    if entry.name == FILLED:
        return not files.is_foreign(entry.path)
    if not entry.is_dir(follow_symlinks=False):
        return False
    names = [file.name for file in files.scan(entry.path)]
    if entry.name == UNFINISHED:
        return all(map(is_unfinished, names))
    return SHARD.fullmatch(entry.name) is not None and all(map(NAME.fullmatch, names))
