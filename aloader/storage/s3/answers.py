"""What an HTTP answer to a GET says of an object: its bytes, or what went wrong. Pure.

*Versions.* A weak ETag ("W/…") is one, but no server can be asked for it: If-Match compares strongly (RFC 9110,
13.1.1). It is compared when the answer is there.

What is seldom and intricate (redirects, other kinds of success) is not read here: `read` then returns None, and the
request goes another way.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from typing import Final

from aloader.errors import BadRange, BrokenTransfer, StorageError
from aloader.storage.base import NO_DIGESTS, Request, Response
from aloader.storage.s3.errors import Asked, Said, answered, retry_after
from aloader.storage.wire.answer import Headers, Reply

#: An ETag that is the object's MD5: so it is for objects that were put in one part and are not encrypted with keys of
#: their own. Those of several parts have a dash.
MD5: Final = re.compile(rb'"([0-9a-f]{32})"')
MD5_ENCRYPTIONS: Final = (b"", b"AES256")

#: By the headers that they come in.
CHECKSUMS: Final = {f"x-amz-checksum-{name}".encode(): name for name in ("crc32", "crc32c", "sha1", "sha256")}

CONTENT_RANGE: Final = re.compile(rb"bytes (\d{1,19})-\d+/(\d{1,19})")

WEAK: Final = "W/"

REDIRECTS: Final = (301, 302, 303, 307, 308)


def asked_version(request: Request) -> str:
    """The version to send as If-Match; none, if it is to be compared when the answer is there."""
    return "" if request.version.startswith(WEAK) else request.version


def conditions(request: Request) -> str:
    """The headers that say which bytes of which version, each with its line end."""
    if not request.version.isprintable():
        raise ValueError(f"not the version of an object: {request.version!r}")
    version = asked_version(request)
    headers = f"If-Match: {version}\r\n" if version else ""
    if request.stop is not None:
        return f"{headers}Range: bytes={request.start}-{request.stop - 1}\r\n"
    return f"{headers}Range: bytes={request.start}-\r\n" if request.start else headers


def ceiling(request: Request) -> int | None:
    """How much of a body is wanted at most, from its beginning: also of a server that answers with the whole object."""
    if request.most is None or request.stop is None:
        return request.stop if request.most is None else request.most
    return min(request.most, request.stop)


def read(reply: Reply, request: Request, asked: Asked) -> Response | None:
    """The answer's object; None if somebody else must make sense of it. Else the `StorageError` that it says."""
    match reply.status:
        case 200 | 206:
            check_version(_version(reply.headers), request, asked)
            return (_whole if reply.status == 200 else _part)(reply, request, asked)
        case 416 if request.start == 0 or _whole_size_of_416(reply) == 0:
            return Response(b"", 0, _version(reply.headers))
        case status if status < 300 or status in REDIRECTS:
            return None
    if is_moved(reply):
        return None
    raise answered(said_by(reply), asked)


def check_version(version: str, request: Request, asked: Asked) -> None:
    """`ObjectChanged` if it is not the one that was wanted, and the server could not be told which one was."""
    if request.version.startswith(WEAK) and version != request.version:
        raise answered(Said(412), asked)


def is_moved(reply: Reply) -> bool:
    """Whether the bucket is elsewhere, and stays there: a redirect, or a signature for a wrong region."""
    return reply.status in (301, 308) or (reply.status == 400 and said_by(reply).code == "AuthorizationHeaderMalformed")


def said_by(reply: Reply) -> Said:
    """What the server says of its failure. Proxies and gateways answer in other formats: then the status says it."""
    from xml.etree import ElementTree  # a package that only failures need

    headers = reply.headers
    fields: dict[str, str] = {}
    try:
        fields = {child.tag.rpartition("}")[2]: child.text or "" for child in ElementTree.fromstring(reply.body)}
    except (ElementTree.ParseError, ValueError, LookupError):  # the latter of encodings that Python does not know
        pass
    return Said(
        reply.status,
        fields.get("Code", ""),
        fields.get("Message", ""),
        fields.get("Region") or headers.get(b"x-amz-bucket-region", b"").decode("latin-1"),
        retry_after(headers.get(b"retry-after", b"").decode("latin-1")),
    )


def _whole(reply: Reply, request: Request, asked: Asked) -> Response | None:
    size = reply.length
    if size < 0:
        return None
    if request.start >= size > 0:
        raise BadRange(f"{asked}: the object has {size:,} bytes, none from {request.start:,} on", request.key)
    data = reply.body if request.start == 0 and request.stop is None else reply.body[request.start : request.stop]
    return Response(data, size, _version(reply.headers), _digests(reply.headers, whole=True))


def _part(reply: Reply, request: Request, asked: Asked) -> Response | None:
    found = CONTENT_RANGE.fullmatch(reply.headers.get(b"content-range", b""))
    if found is None:
        return None
    first, size = map(int, found.groups())
    if first != request.start:
        raise StorageError(
            f"{asked}: asked for bytes from {request.start:,} on, the server sent those from {first:,}",
            request.key,
            status=reply.status,
        )
    stop = size if request.stop is None else min(request.stop, size)
    version = _version(reply.headers)
    if reply.length >= 0 and first + reply.length < stop:
        raise BrokenTransfer(
            f"{asked}: {reply.length:,} bytes came of {stop - first:,}",
            request.key, status=reply.status, received=reply.body, version=version, size=size,
        )  # fmt: skip
    data = reply.body if len(reply.body) <= stop - first else reply.body[: stop - first]
    return Response(data, size, version, _digests(reply.headers, whole=False))


def _whole_size_of_416(reply: Reply) -> int:
    total = reply.headers.get(b"content-range", b"").rpartition(b"/")[2]
    if total.isdigit():
        return int(total)
    found = re.search(rb"<ActualObjectSize>(\d+)</ActualObjectSize>", reply.body)
    return int(found[1]) if found else -1


def _version(headers: Headers) -> str:
    return headers.get(b"etag", b"").decode("latin-1")


def _digests(headers: Headers, whole: bool) -> Mapping[str, str]:
    """The whole object's digests. Checksums are the answer's own where it has a range, and those of several parts are
    checksums of checksums (with a dash)."""
    digests = {}
    plain = MD5.fullmatch(headers.get(b"etag", b""))
    if (
        plain is not None
        and headers.get(b"x-amz-server-side-encryption", b"") in MD5_ENCRYPTIONS
        and b"x-amz-server-side-encryption-customer-algorithm" not in headers
    ):
        digests["md5"] = plain[1].decode()
    if whole:
        for header in CHECKSUMS.keys() & headers.keys():
            value = headers[header]
            if b"-" not in value:
                try:
                    digests[CHECKSUMS[header]] = binascii.a2b_base64(value, strict_mode=True).hex()
                except binascii.Error:
                    pass
    return digests or NO_DIGESTS
