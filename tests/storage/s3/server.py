"""A server that answers GETs of objects as S3 does, and lets the test interfere. It checks no signatures, but knows
who has signed. Beside it, one that gives out credentials as a container's does."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aloader.storage import S3Store
from tests.storage.wire.scripted import Said, Scripted, scripted

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
ETAG = '"0123456789abcdef0123456789abcdef"'

#: What a test answers itself: from the request's text to an answer, or None for what is usual.
Interfere = Callable[[bytes], list[Said] | None]


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def error(status: int, code: str, **headers: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code><Message>it says</Message></Error>".encode(), **headers)


def access_key(request: bytes) -> str:
    found = re.search(rb"Credential=([^/]+)/", request)
    return found[1].decode() if found else ""


@asynccontextmanager
async def objects(body: bytes, interfere: Interfere = lambda request: None) -> AsyncIterator[Scripted]:
    """A server where every key has this object."""

    def script(connection: int, number: int, request: bytes) -> list[Said]:
        said = interfere(request)
        said = [_object(body, request)] if said is None else said
        if request.startswith(b"HEAD "):
            return [each.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" for each in said if isinstance(each, bytes)]
        return said

    async with scripted(script) as server:
        yield server


def _object(body: bytes, request: bytes) -> bytes:
    match = re.search(rb"\r\nIf-Match: ([^\r]+)", request)
    if match and match[1].decode() != ETAG:
        return error(412, "PreconditionFailed")
    found = re.search(rb"\r\nRange: bytes=(\d+)-(\d*)", request, re.IGNORECASE)
    if found is None:
        return answer(200, body, ETag=ETAG, Last_Modified=DATE)
    start, stop = int(found[1]), min(int(found[2] or len(body)) + 1, len(body))
    if start >= len(body):
        return error(416, "InvalidRange", Content_Range=f"bytes */{len(body)}")
    place = f"bytes {start}-{stop - 1}/{len(body)}"
    return answer(206, body[start:stop], ETag=ETAG, Last_Modified=DATE, Content_Range=place)


def store_at(server: Scripted, **options: Any) -> S3Store:
    """A store there."""
    return S3Store("bucket", endpoint_url=f"http://127.0.0.1:{server.port}", access_key="a", secret_key="b", **options)


@asynccontextmanager
async def container(expiration: str = "2099-01-01T00:00:00Z") -> AsyncIterator[Scripted]:
    """Credentials over HTTP: a new access key ("key1", "key2", …) with each request."""

    def script(connection: int, number: int, request: bytes) -> list[Said]:
        count = len(server.requests)
        document = {
            "AccessKeyId": f"key{count}",
            "SecretAccessKey": "hush-hush",
            "Token": "token",
            "Expiration": expiration,
        }
        return [answer(200, json.dumps(document).encode(), Content_Type="application/json")]

    async with scripted(script) as server:
        yield server
