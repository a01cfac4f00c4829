"""GETs through aiobotocore's client: for what the lean way does not speak (redirects, proxies, access points)."""

from __future__ import annotations

from typing import Any

from aloader.errors import BadRange, StorageError
from aloader.storage.base import Request, Response
from aloader.storage.s3.answers import asked_version, ceiling, read
from aloader.storage.s3.clients import Clients
from aloader.storage.s3.errors import Asked
from aloader.storage.wire.answer import Reply


async def fetch(clients: Clients, bucket: str, key: str, request: Request, asked: Asked) -> Response:
    """The answer to a request, for the object of this full key."""
    more: dict[str, Any] = {"IfMatch": version} if (version := asked_version(request)) else {}
    if request.start or request.stop is not None:
        more["Range"] = f"bytes={request.start}-{'' if request.stop is None else request.stop - 1}"
    try:
        async with clients.calling(asked) as client:
            found = await client.get_object(Bucket=bucket, Key=key, **more)
            async with found["Body"] as body:
                # Of a body in chunks, only its end tells how large the object is.
                data = await _read(body, ceiling(request) if "ContentLength" in found else None)
            return _response(found, data, request, asked)
    except BadRange:
        async with clients.calling(asked) as client:
            if (await client.head_object(Bucket=bucket, Key=key))["ContentLength"]:
                raise
        return Response(b"", 0)


async def _read(body: Any, most: int | None) -> bytes:
    """The body, or its first bytes: of some, aiohttp gives what there is."""
    if most is None:
        whole: bytes = await body.read()
        return whole
    pieces, left = [], most
    while left and (piece := await body.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _response(found: dict[str, Any], data: bytes, request: Request, asked: Asked) -> Response:
    about = found["ResponseMetadata"]
    headers = {name.lower().encode(): value.encode("latin-1") for name, value in about["HTTPHeaders"].items()}
    length = found.get("ContentLength", len(data))
    response = read(Reply(about["HTTPStatusCode"], headers, data, length), request, asked)
    if response is None:
        status = int(about["HTTPStatusCode"])
        raise StorageError(
            f"{asked}: the answer ({status}) does not say which bytes of the object it has", asked.key, status=status
        )
    return response
