"""Where the objects of a bucket are, and whom to sign for: as botocore decides, whose rules are long and change.

A client of botocore's makes one GET, up to where it would send it. What it would have sent is taken apart: the origin,
what stands before the key in the path, the region, whether checksums are asked for. All of
this blocks (it reads megabytes of JSON): for a thread.

Not everything that botocore can reach can be reached the lean way: `find` then says None.
"""

from __future__ import annotations

import io
import os
import re
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from aloader.storage.s3.settings import Settings
from aloader.storage.wire.pool import PORTS, Origin

#: A key that needs no encoding.
SAMPLE: Final = "k"

#: The header of a request that is signed as `signing` signs.
SIGNED: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/s3/aws4_request, ")

#: Directory buckets have sessions of their own instead of signatures; what begins with "arn:" are access points.
DIRECTORY_BUCKETS: Final = "--x-s3"


class Place(NamedTuple):
    """An object's path is `base` and its encoded key."""

    origin: Origin
    base: str
    region: str
    certificates: str | None  # a file of them, for https
    checksums: bool  # whether to ask for those that objects were stored with: `response_checksum_validation`


def find(session: Any, settings: Settings) -> Place | None:
    """The place of the bucket, by botocore's `session` (a synchronous one). Its errors where it does not know."""
    if settings.bucket.endswith(DIRECTORY_BUCKETS) or settings.bucket.startswith("arn:"):
        return None
    request = _would_send(session, settings)
    if request is None:
        return None
    parts = urlsplit(request.url)
    if parts.query or not parts.path.endswith(SAMPLE) or _behind_proxy(request.url):
        return None
    region = ""
    if not settings.anonymous:
        authorization = request.headers.get("Authorization", b"")
        signed = SIGNED.match(authorization.decode() if isinstance(authorization, bytes) else authorization)
        if signed is None:
            return None
        region = signed[1]
    assert parts.hostname is not None
    checksums = "x-amz-checksum-mode" in request.headers
    origin = Origin(parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme])
    return Place(origin, parts.path.removesuffix(SAMPLE), region, _certificates(session), checksums)


def _would_send(session: Any, settings: Settings) -> Any:
    from botocore.awsrequest import AWSResponse
    from botocore.config import Config

    client = session.create_client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name=settings.region_for(session),
        aws_access_key_id="nobody",  # the place does not depend on it
        aws_secret_access_key="nothing",
        config=Config(**settings.client_config(session)),
    )
    seen: list[Any] = []

    def answer(request: Any, **_: Any) -> Any:
        seen.append(request)
        return AWSResponse(request.url, 200, {}, _Nothing())

    client.meta.events.register("before-send.s3", answer)
    try:
        client.get_object(Bucket=settings.bucket, Key=SAMPLE)
    finally:
        client.close()
    return seen[0] if len(seen) == 1 else None


class _Nothing(io.BytesIO):
    """The body of the answer that was not sent."""

    def stream(self, *_: Any, **__: Any) -> Any:
        return iter(())


def _behind_proxy(url: str) -> bool:
    from botocore.utils import get_environ_proxies

    return urlsplit(url).scheme in get_environ_proxies(url)


def _certificates(session: Any) -> str | None:
    from botocore.httpsession import get_cert_path

    named = session.get_config_variable("ca_bundle")
    path: str | None = get_cert_path(os.environ.get("REQUESTS_CA_BUNDLE", True) if named is None else named)
    return path
