"""What an HTTP server's answer means: which bytes it holds, of which version, and what went wrong. Pure: no I/O here.

*Versions.* An ETag is one; a weak one ("W/…") too, and without either the time of the last change, but a server cannot
be asked for bytes of those (RFC 9110, 13.1.1: If-Match compares strongly). They are compared when the answer is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from aloader.errors import AccessDenied, KeyNotFound, ObjectChanged, ServerFailed, StorageError, Throttled
from aloader.storage.base import Request

#: "bytes 0-99/1234", "bytes 0-99/*", "bytes */1234"
_CONTENT_RANGE: Final = re.compile(r"bytes\s+(?:(\d{1,19})-(\d{1,19})|\*)/(?:(\d{1,19})|\*)\s*", re.IGNORECASE)

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

#: What servers say to HEAD that answer GET: not allowed, not known, or signed for GET alone.
NO_HEAD: Final = frozenset({400, 403, 405, 501})

#: Codings that change nothing. "aws-chunked" is how Amazon's clients upload: some servers keep the word with an object
#: that they have unpacked.
PLAIN: Final = frozenset({"", "identity", "aws-chunked"})


class Extent(NamedTuple):
    """The bytes in an answer's body: from where, up to where (None: to its end), of how large an object (None: the
    server does not say)."""

    start: int
    stop: int | None
    size: int | None


class Unclear(ValueError):  # noqa: N818
    """An answer that cannot be made sense of; says why."""


def headers_for(request: Request) -> dict[str, str]:
    """How a request asks for its bytes and its version. All of an object is asked for without a range."""
    headers = {"Accept-Encoding": "identity"}  # a range of a compressed object is of no use
    stop = wanted_stop(request)
    if request.start or stop is not None:
        headers["Range"] = f"bytes={request.start}-{'' if stop is None else stop - 1}"
    if request.version.startswith('"'):
        headers["If-Match"] = request.version
    return headers


def wanted_stop(request: Request) -> int | None:
    """Where to stop: of an object of unknown size, `most` bytes are enough."""
    if request.most is None:
        return request.stop
    most = request.start + request.most
    return most if request.stop is None else min(most, request.stop)


def extent_of(status: int, headers: Mapping[str, str]) -> Extent:
    """What is in the body of an answer of 200 or 206."""
    coding = headers.get("Content-Encoding", "").strip().lower()
    if not {each.strip() for each in coding.split(",")} <= PLAIN:
        raise Unclear(f"it sends the object in another coding ({coding}), though it was asked not to")
    if status != 206:
        return Extent(0, None, _number(headers.get("Content-Length")))
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if found is None or found[1] is None:
        raise Unclear(f"a part of the object came without a Content-Range of its own: {headers.get('Content-Range')!r}")
    if found[3] is None:
        raise Unclear("it does not say how large the object is (Content-Range: …/*)")
    return Extent(int(found[1]), int(found[2]) + 1, int(found[3]))


def knows_ranges(request: Request, status: int, extent: Extent) -> bool | None:
    """Whether the server does. None if the answer does not tell: all was asked for, or is what was asked for."""
    stop = wanted_stop(request)
    if status == 206:
        return True
    if request.start or (stop is not None and (extent.size is None or stop < extent.size)):
        return False
    return None


def check_beginning(request: Request, extent: Extent) -> None:
    """Whether the first byte that was asked for can be in the body: what comes behind it is no part of an answer."""
    if extent.start > request.start:
        raise Unclear(f"bytes from {request.start} on were asked for, and those from {extent.start} on came")


def size_when_unsatisfied(headers: Mapping[str, str]) -> int | None:
    """The object's size in an answer of 416, where it is told."""
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    return None if found is None or found[3] is None else int(found[3])


def version_of(headers: Mapping[str, str]) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def refusal(place: str, store: object, key: str, status: int, headers: Mapping[str, str], now: float) -> StorageError:
    """The error that a status stands for. `place` names the server; `now` is the time in seconds since 1970."""
    what = f"cannot read {key!r} in {store!r}"
    match status:
        case 404 | 410:
            return KeyNotFound(f"no object {key!r} in {store!r}", key, status=status)
        case 401:
            return AccessDenied(
                f"{what}: {place} wants credentials, or other ones: pass headers={{'Authorization': …}}",
                key,
                status=status,
            )
        case 403:
            return AccessDenied(
                f"{what}: {place} refused: do the headers allow it, is a signed URL still valid?", key, status=status
            )
        case 412:
            return ObjectChanged(f"{key!r} in {store!r} has been replaced meanwhile", key, status=status)
        case 429 | 503:
            wait = retry_after(headers.get("Retry-After", ""), now)
            return Throttled(
                f"{what}: {place} asks for fewer requests ({status})", key, status=status, retry_after=wait
            )
        case _ if status >= 500:
            return ServerFailed(f"{what}: {place} failed with status {status}: try again later", key, status=status)
        case _:
            return StorageError(f"{what}: {place} answered with status {status}", key, status=status)


def retry_after(text: str, now: float) -> float:
    """Seconds, of a header that has them, or a date; 0 for what is neither."""
    try:
        if (seconds := _number(text)) is not None:
            return float(seconds)
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):  # the latter of numbers that no clock has
        return 0.0


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
