"""What a cache's files are called and what they begin with. Pure: bytes in, bytes out, no I/O.

*Why each file says what it is.* A process may be killed, or the machine lose its power, at any moment. A file is made
under another name and renamed when it is whole; but after a loss of power a renamed file may be empty, cut off, or full
of zeros. So each begins with a header that has a checksum of its own, and says whose bytes follow, how many, and the
checksum of each block of them. What does not agree is no entry, and nobody ever reads it.

    magic, 8 bytes | length of the JSON, 4 | CRC-32 of the JSON, 4 | the JSON, padded with spaces | the object's bytes

The front is a multiple of `FRONT` bytes, so that most are read with one call, and the object's bytes with a second one,
straight into the memory that is handed out. A range of a large object reads the blocks that it touches.

*Names.* They are hashes of the store's place and the key: keys may be longer than file names, and contain anything. The
version is in the header, not in the name: who asks for an object mostly does not know it.
"""

from __future__ import annotations

import json
import re
import struct
import sys
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from aloader.options import MIB
from aloader.storage.base import NO_DIGESTS, Request

MAGIC: Final = b"aloader\x01"
FRONT: Final = 512
BLOCK: Final = MIB

#: Below the cache's folder: two letters of the hash, the rest of it, and the range if it is not the whole object.
SHARD: Final = re.compile(r"[0-9a-f]{2}")
NAME: Final = re.compile(r"[0-9a-f]{30}(~[0-9]+-[0-9]*)?\.entry")

_PREFIX: Final = struct.Struct("<8sII")
_LONGEST: Final = MIB


class Entry(NamedTuple):
    """The bytes `start` to `start + length` of an object of `size` bytes; `checksums` are of their blocks."""

    namespace: str
    key: str
    start: int
    length: int
    size: int
    version: str
    digests: Mapping[str, str]
    checksums: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.length == self.size


class Torn(Exception):  # noqa: N818  (what happened)
    """Not an entry: cut off, damaged, or something else's file."""


def stem(namespace: str, key: str) -> str:
    """How the names of an object's entries begin: "ab/cdef…"."""
    digest = blake2b(f"{namespace}\0{key}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{digest[:2]}/{digest[2:]}"


def range_suffix(request: Request) -> str:
    """What the name of an entry has beside its stem, if it is not the whole object: the range as it was asked for.

    Whoever reads objects in parts asks for the same parts in the next epoch; entries need not be cut to fit others.
    """
    stop = None if request.stop is request.most is None else request.end(sys.maxsize)
    return f"~{request.start}-{'' if stop is None else stop}"


def checksums(data: bytes) -> tuple[int, ...]:
    """CRC-32 of each block."""
    view = memoryview(data)
    return tuple(zlib.crc32(view[at : at + BLOCK]) for at in range(0, len(data), BLOCK))


def front_of(entry: Entry) -> bytes:
    """What stands before the object's bytes."""
    fields = entry._replace(digests=dict(entry.digests))._asdict()
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-(_PREFIX.size + len(text)) % FRONT)
    return _PREFIX.pack(MAGIC, len(text), zlib.crc32(text)) + text


def front_size(begin: bytes) -> int:
    """How long the front is, by its first bytes. `Torn` if it is none."""
    if len(begin) < _PREFIX.size:
        raise Torn
    magic, length, _ = _PREFIX.unpack_from(begin)
    if magic != MAGIC or length > _LONGEST:
        raise Torn
    return _PREFIX.size + int(length)


def parsed(front: bytes) -> Entry:
    """The entry that a whole front describes. `Torn` if it has been damaged."""
    _, length, checksum = _PREFIX.unpack_from(front)
    text = front[_PREFIX.size :]
    if len(text) != length or zlib.crc32(text) != checksum:
        raise Torn
    try:
        fields = json.loads(text)
        return Entry(**{**fields, "digests": fields["digests"] or NO_DIGESTS, "checksums": tuple(fields["checksums"])})
    except (ValueError, TypeError, KeyError):
        raise Torn from None


def stretch(entry: Entry, request: Request) -> tuple[int, int] | None:
    """Which of the entry's bytes answer a request, counted from the first that it has; None if it cannot."""
    if request.version and request.version != entry.version:
        return None
    start, stop = request.start - entry.start, request.end(entry.size) - entry.start
    if start < 0 or stop > entry.length or (start >= stop and entry.size):  # the store says best what is wrong with it
        return None
    return start, stop
