"""What an S3 server says: a request's head taken apart, and answers put together. Bytes in, bytes out: no I/O here.

It speaks the part of S3 that loaders use, with paths that begin with a bucket (all buckets hold the same objects): GET
and HEAD of objects, with ranges and conditions, PUT, and ListObjectsV2. Signatures are not checked.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

from aloader.testing.faults import Fault, Plan
from aloader.testing.synthetic import Blob, Objects

#: Every object is as old as this.
LAST_MODIFIED: Final = "Wed, 01 Jan 2025 00:00:00 GMT"
LAST_MODIFIED_ISO: Final = "2025-01-01T00:00:00.000Z"

#: Keys of a page of a listing, at most.
PAGE: Final = 1000

#: The beginnings of answers.
LINES: Final = MappingProxyType({
    status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: AmazonS3\r\n"
    for status in (200, 206, 301, 304, 400, 403, 404, 405, 411, 412, 416, 500, 503)
})  # fmt: skip

#: S3's codes: the status, and what it says.
ERRORS: Final = MappingProxyType({
    "AccessDenied": (403, "Access Denied"),
    "ExpiredToken": (403, "The provided token has expired."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InvalidAccessKeyId": (403, "The AWS Access Key Id you provided does not exist in our records."),
    "InvalidArgument": (400, "An argument is not valid."),
    "InvalidRange": (416, "The requested range is not satisfiable"),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "NoSuchKey": (404, "The specified key does not exist."),
    "PermanentRedirect": (301, "The bucket you are attempting to access must be addressed in another region."),
    "PreconditionFailed": (412, "At least one of the pre-conditions you specified did not hold"),
    "ServiceUnavailable": (503, "Service is unable to handle request."),
    "SlowDown": (503, "Please reduce your request rate."),
})  # fmt: skip

XML: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
XML_TYPE: Final = "Content-Type: application/xml\r\n"
SPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"

RANGE: Final = re.compile(rb"bytes=(\d*)-(\d*)")
ACCESS_KEY: Final = re.compile(rb"Credential=([^/,]+)/|AWS ([^:]+):")


class Asked(NamedTuple):
    """A request, but for its body."""

    method: str
    bucket: str
    key: str
    query: str
    headers: dict[bytes, bytes]  # names in lower case

    @property
    def access_key(self) -> str:
        """Who asks; "" for nobody. Of presigned URLs too."""
        found = ACCESS_KEY.match(self.headers.get(b"authorization", b"").partition(b" ")[2])
        if found is None and "Credential=" in self.query:
            return dict(parse_qsl(self.query)).get("X-Amz-Credential", "").partition("/")[0]
        return found[1].decode() if found and found[1] else ""

    @property
    def range(self) -> tuple[int, int | None]:
        """What it asks for, for a plan: the range as it was written."""
        found = RANGE.fullmatch(self.headers.get(b"range", b""))
        if found is None:
            return 0, None
        return int(found[1] or -int(found[2] or 0)), int(found[2]) + 1 if found[1] and found[2] else None


class Answer(NamedTuple):
    """A status, lines of the head (each with its end), and the body. `length` is what a HEAD says of a body."""

    status: int
    headers: str
    body: bytes | memoryview = b""
    length: int | None = None

    def head(self, number: int) -> bytes:
        """The head of the answer to request `number` of this server."""
        length = len(self.body) if self.length is None else self.length
        names = f"x-amz-request-id: {number:016X}\r\nContent-Length: {length}\r\n"
        return f"{LINES[self.status]}{names}{self.headers}\r\n".encode("latin-1")


def parse(head: bytes) -> Asked:
    """A request's head, without the empty line. `ValueError` if it is none."""
    line, *fields = head.split(b"\r\n")
    method, target, _ = line.split(b" ")
    headers = {}
    for each in fields:
        name, _, value = each.partition(b":")
        headers[name.lower()] = value.strip()
    path, _, query = target.decode("ascii").partition("?")
    if not path.startswith("/"):
        raise ValueError("not the path of an object")
    bucket, _, key = path[1:].partition("/")
    return Asked(method.decode("ascii"), bucket, unquote(key) if "%" in key else key, query, headers)


def answer(asked: Asked, objects: Objects, body: bytes, plan: Plan) -> Answer:
    """What a request gets, if nothing refuses it."""
    if (code := _fault_code(plan)) is not None:
        return error(code, asked)
    if asked.method in ("GET", "HEAD"):
        if not asked.key:
            return _list(asked, objects) if asked.method == "GET" else Answer(200, "x-amz-bucket-region: us-east-1\r\n")
        blob = objects.find(asked.key)
        return error("NoSuchKey", asked) if blob is None else _object(asked, blob, plan)
    if asked.method == "PUT":
        if asked.key:
            objects.put(asked.key, _unchunked(asked, body))
            found = objects.find(asked.key)
            assert found is not None
            return Answer(200, f'ETag: "{found.etag}"\r\n')
        return Answer(200, f"Location: /{asked.bucket}\r\n")
    return error("MethodNotAllowed", asked)


def error(code: str, asked: Asked) -> Answer:
    """As S3 says it. The answer to a HEAD has no body."""
    status, message = ERRORS[code]
    key = f"<Key>{escape(asked.key)}</Key>" if asked.key else ""
    text = f"<Error><Code>{code}</Code><Message>{message}</Message>{key}<BucketName>{asked.bucket}</BucketName></Error>"
    headers = XML_TYPE + ("x-amz-bucket-region: eu-central-1\r\n" if status == 301 else "")
    body = f"{XML}{text}".encode("utf-8", "xmlcharrefreplace")
    return Answer(status, headers, b"", 0) if asked.method == "HEAD" else Answer(status, headers, body)


def _fault_code(plan: Plan) -> str | None:
    match plan.fault:
        case Fault.SERVER_ERROR:
            return "ServiceUnavailable" if plan.odd % 2 else "InternalError"
        case Fault.SLOW_DOWN:
            return "SlowDown"
        case Fault.EXPIRED:
            return "ExpiredToken"
        case Fault.NOT_FOUND:
            return "NoSuchKey"
        case Fault.NOT_SATISFIABLE:
            return "InvalidRange"
        case Fault.MOVED:
            return "PermanentRedirect"
        case _:
            return None


def _object(asked: Asked, blob: Blob, plan: Plan) -> Answer:
    headers, size = asked.headers, len(blob.data)
    if (wanted := headers.get(b"if-match")) is not None and not _matches(wanted, blob.etag):
        return error("PreconditionFailed", asked)
    common = (
        f'ETag: "{blob.etag}"\r\nLast-Modified: {LAST_MODIFIED}\r\nAccept-Ranges: bytes\r\n'
        "Content-Type: binary/octet-stream\r\n"
    )
    if (had := headers.get(b"if-none-match")) is not None and _matches(had, blob.etag):
        return Answer(304, common)
    status, start, stop = 200, 0, size
    if (span := span_of(headers.get(b"range"), size)) is not None:
        status, (start, stop) = 206, span
        if start >= stop:
            return error("InvalidRange", asked)
        common += f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
    if asked.method == "HEAD":
        return Answer(status, common, b"", stop - start)
    return Answer(status, common, plan.spoilt(blob.data[start:stop]))


def span_of(header: bytes | None, size: int) -> tuple[int, int] | None:
    """The range that a header asks for, clipped to the object. None: it asks for none, or for nonsense, which S3
    ignores too. An empty one cannot be had."""
    found = RANGE.fullmatch(header) if header is not None else None
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    start = int(found[1])
    if not found[2]:
        return start, size
    stop = int(found[2]) + 1
    return None if stop <= start else (start, min(stop, size))


def _matches(header: bytes, etag: str) -> bool:
    wanted = {each.strip().strip('"') for each in header.decode("latin-1").split(",")}
    return etag in wanted or "*" in wanted


def _unchunked(asked: Asked, body: bytes) -> bytes:
    """A body in AWS's chunks, each with its size and maybe a signature before it, put together."""
    if b"aws-chunked" not in asked.headers.get(b"content-encoding", b""):
        return body
    whole, at = bytearray(), 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].partition(b";")[0], 16)
        if not size:
            return bytes(whole)
        whole += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2


def _list(asked: Asked, objects: Objects) -> Answer:
    """ListObjectsV2, which is all that a bucket is asked."""
    query = dict(parse_qsl(asked.query, keep_blank_values=True))
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most = min(PAGE, int(query.get("max-keys", PAGE)))
    try:
        behind = urlsafe_b64decode(query["continuation-token"]).decode() if "continuation-token" in query else ""
    except (binascii.Error, UnicodeDecodeError):
        return error("InvalidArgument", asked)
    keys, folders, token = page(objects.keys(), prefix, delimiter, behind or query.get("start-after", ""), most)
    shown: Callable[[str], str] = _quoted if query.get("encoding-type") == "url" else escape
    found = [(key, blob) for key in keys if (blob := objects.find(key)) is not None]
    parts = [
        f"<Name>{asked.bucket}</Name><Prefix>{shown(prefix)}</Prefix><KeyCount>{len(found) + len(folders)}</KeyCount>",
        f"<MaxKeys>{most}</MaxKeys><IsTruncated>{'true' if token else 'false'}</IsTruncated>",
    ]
    if delimiter:
        parts.append(f"<Delimiter>{shown(delimiter)}</Delimiter>")
    if "encoding-type" in query:
        parts.append("<EncodingType>url</EncodingType>")
    if token:
        parts.append(f"<NextContinuationToken>{urlsafe_b64encode(token.encode()).decode()}</NextContinuationToken>")
    parts += [
        f"<Contents><Key>{shown(key)}</Key><LastModified>{LAST_MODIFIED_ISO}</LastModified>"
        f"<ETag>&quot;{blob.etag}&quot;</ETag><Size>{len(blob.data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key, blob in found
    ]
    parts += [f"<CommonPrefixes><Prefix>{shown(each)}</Prefix></CommonPrefixes>" for each in folders]
    text = f"<ListBucketResult xmlns={SPACE!r}>{''.join(parts)}</ListBucketResult>"
    return Answer(200, XML_TYPE, f"{XML}{text}".encode())


def page(keys: Sequence[str], prefix: str, delimiter: str, behind: str, most: int) -> tuple[list[str], list[str], str]:
    """The next `most` keys and folders behind a key or a folder; and the last of them, if there are more."""
    found: list[str] = []
    folders: list[str] = []
    last = behind
    for place in range(max(bisect_left(keys, prefix), bisect_right(keys, behind)), len(keys)):
        key = keys[place]
        if not key.startswith(prefix):
            break
        folder = _folder(key, prefix, delimiter)
        if folder and folder == last:
            continue
        if len(found) + len(folders) == most:
            return found, folders, last
        (folders if folder else found).append(folder or key)
        last = folder or key
    return found, folders, ""


def _folder(key: str, prefix: str, delimiter: str) -> str:
    """The part of a key up to the first delimiter behind the prefix; "" if there is none."""
    end = key.find(delimiter, len(prefix)) if delimiter else -1
    return "" if end < 0 else key[: end + len(delimiter)]


def _quoted(text: str) -> str:
    return quote(text, safe="/")
