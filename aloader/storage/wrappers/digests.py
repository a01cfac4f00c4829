"""Whether bytes are those that they should be: lengths and digests. No I/O here, no clock.

Digests are of whole objects, as text: `"md5:0123…"`. Which ones there are depends on who wrote the object: a server's
ETag is the MD5 of what was uploaded in one piece, and no digest at all of what was uploaded in several; CRC32 and
CRC32C come with objects that were written with a checksum. Those that cannot be computed here are left out, as are
those that cannot be a digest of that name by their length.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from aloader.storage.base import Request, Response

#: What is compared, of that which the store itself says of its object.
CHECKS: Final[Mapping[str, tuple[str, ...]]] = {
    "length": (),
    "etag": ("md5",),
    "crc": ("crc32", "crc32c"),
    "all": ("md5", "crc32", "crc32c", "sha1", "sha256"),
}

#: Hexadecimal digits of each digest.
DIGITS: Final = {"md5": 32, "crc32": 8, "crc32c": 8, "sha1": 40, "sha256": 64}


def computer(name: str) -> Callable[[bytes], str] | None:
    """What computes the digest of this name, in lower-case hex; None if nothing can here.

    CRC32C is not in the standard library, and too slow in Python: it needs `google_crc32c` or `awscrt`.
    """
    match name:
        case "crc32":
            return lambda data: f"{zlib.crc32(data):08x}"
        case "crc32c":
            return _crc32c()
        case "md5" | "sha1" | "sha256":
            return lambda data: hashlib.new(name, data, usedforsecurity=False).hexdigest()
        case _:
            return None


def _crc32c() -> Callable[[bytes], str] | None:
    try:
        import google_crc32c

        return lambda data: f"{google_crc32c.value(data):08x}"
    except ImportError:
        pass
    try:
        from awscrt import checksums

        return lambda data: f"{checksums.crc32c(data):08x}"
    except ImportError:
        return None


def parse(digest: str) -> tuple[str, str]:
    """ "sha256:ABC…" as its name and its lower-case hex. `ValueError` for what is none."""
    name, colon, value = digest.partition(":")
    value = value.strip().lower()
    if not colon or name not in DIGITS or not _is_digest(name, value):
        known = ", ".join(f'"{each}:{count} hexadecimal digits"' for each, count in DIGITS.items())
        raise ValueError(f"not a digest: {digest!r} (they are {known})")
    return name, value


def expected_of(answer: Response, check: str) -> Iterator[tuple[str, str]]:
    """The digests that the store gave with an answer, as far as they are to be compared."""
    for name in CHECKS[check]:
        value = answer.digests.get(name)
        if value is not None and _is_digest(name, value):
            yield name, value


def wrong_length(request: Request, answer: Response) -> str:
    """What is wrong with the length of an answer: "" if nothing is."""
    length = request.end(answer.size) - request.start
    if request.most is not None and len(answer.data) > max(length, 0):
        length = request._replace(most=None).end(answer.size) - request.start  # the store need not stop there
    if len(answer.data) == max(length, 0):
        return ""
    return f"{length} bytes were expected, of an object of {answer.size}, and {len(answer.data)} came"


def wrong_digest(data: bytes, expected: list[tuple[str, str]]) -> str:
    """The first digest that is not as expected: "" if all are."""
    for name, value in expected:
        compute = computer(name)
        if compute is not None and (found := compute(data)) != value:
            return f"its {name} should be {value} and is {found}"
    return ""


def _is_digest(name: str, value: str) -> bool:
    """Checksums of checksums ("…-3") are not digests of the object."""
    return len(value) == DIGITS[name] and not set(value) - set("0123456789abcdef")
