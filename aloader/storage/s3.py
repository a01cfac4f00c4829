"""A bucket as a store, through aiobotocore as it comes: credentials, endpoints, signing and retries are its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit

from aloader.options import CONCURRENCY
from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, check_data, check_key
from aloader.storage.lifetime import PerLoop
from aloader.storage.s3_errors import Asked, explained, refused_at_once

#: Tries of one request, the first included, up to 1 and 2 seconds apart. Refused connections are not tried again.
ATTEMPTS: Final = 3

#: Where the environment names no region, requests to other servers than Amazon's still have to be signed for one.
ANY_REGION: Final = "us-east-1"


@dataclass(eq=False, repr=False)
class S3Store(BaseStore):
    """The objects of a bucket whose keys begin with a prefix. Needs the extra `s3`.

    `prefix` stands for a folder: with "a/b", the key "c" is the object "a/b/c". `endpoint_url` is for servers other
    than Amazon's (the bucket then goes into the path, not into the host name). Region and credentials come from the
    environment, the configuration files or the machine's role, as with every AWS program, unless they are given;
    `anonymous` sends unsigned requests. `connect_timeout` and `read_timeout` are seconds; the latter bounds each wait
    for bytes, not the whole transfer. `max_connections` should be at least the number of gets in flight.

    Errors: `KeyNotFound`, `StoreNotFound` (no such bucket), `AccessDenied`, `StoreUnreachable`, else `StorageError`.
    """

    bucket: str
    prefix: str = ""
    _: KW_ONLY
    endpoint_url: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    anonymous: bool = False
    connect_timeout: float = 5.0
    read_timeout: float = 30.0
    max_connections: int = CONCURRENCY
    _opened: PerLoop[Any] = field(init=False)

    def __post_init__(self) -> None:
        if not self.bucket or "/" in self.bucket:
            raise ValueError(f"not the name of a bucket: {self.bucket!r}")
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key= and secret_key= go together")
        if self.anonymous and self.access_key is not None:
            raise ValueError("anonymous=True and access_key= exclude each other")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)
        self.prefix = self.prefix.strip("/")
        if self.prefix:
            check_key(self.prefix)
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        """Where it is. Never what it logs in with."""
        place = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        more = [f"{name}={value!r}" for name in ("endpoint_url", "region") if (value := getattr(self, name))]
        return f"S3Store({', '.join([repr(place), *more])})"

    async def fetch(self, request: Request) -> Response:
        client = self._opened.get()
        with explained(self._asked("read", check_key(request.key))):
            response = await client.get_object(Bucket=self.bucket, Key=self._root + request.key)
            async with response["Body"] as body:
                data: bytes = await body.read()
        return Response(data[request.start : request.stop], len(data), response["ETag"])

    async def size(self, key: str) -> int:
        client = self._opened.get()
        with explained(self._asked("read", check_key(key))):
            answer = await client.head_object(Bucket=self.bucket, Key=self._root + key)
        return int(answer["ContentLength"])

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        client = self._opened.get()
        with explained(self._asked("write", check_key(key))):
            await client.put_object(Bucket=self.bucket, Key=self._root + key, Body=check_data(data))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        pages = (
            self._opened.get().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._root + prefix)
        )
        with explained(self._asked("list")):
            async for page in pages:
                for found in page.get("Contents", ()):
                    if key := found["Key"][len(self._root) :]:  # consoles make an empty object "prefix/" for a folder
                        yield ObjectInfo(key, found["Size"])

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    @property
    def _root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""

    @property
    def _endpoint(self) -> str | None:
        """The server, where it is not Amazon's: aiobotocore reads the same variables."""
        return self.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")

    def _asked(self, verb: str, key: str = "") -> Asked:
        return Asked(verb, self, self.bucket, self._endpoint or "Amazon S3", key)

    async def _open(self, stack: AsyncExitStack) -> Any:
        # Importing and reading the service's description take 0.3 s: not on the user's loop.
        session = await asyncio.to_thread(_session)
        with explained(self._asked("open")):
            client = await stack.enter_async_context(session.create_client("s3", **self._client_arguments(session)))
        client.meta.events.register_first("needs-retry.s3", refused_at_once)
        return client

    def _client_arguments(self, session: Any) -> dict[str, Any]:
        from aiobotocore.config import AioConfig
        from botocore import UNSIGNED

        settings: dict[str, Any] = {
            "connect_timeout": self.connect_timeout,
            "read_timeout": self.read_timeout,
            "max_pool_connections": self.max_connections,
            "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
        }
        if self._endpoint:
            settings["s3"] = {"addressing_style": "path"}
        if self.anonymous:
            settings["signature_version"] = UNSIGNED
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region
            or session.get_config_variable("region")
            or (ANY_REGION if self._endpoint else None),
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_session_token": self.session_token,
            "config": AioConfig(**settings),
        }


def _check_endpoint(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials do not belong into endpoint_url=: pass access_key=… and secret_key=…")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"endpoint_url= is an http:// or https:// URL, got {url!r}")


def _session() -> Any:
    """A session that has read everything it needs to make an S3 client."""
    try:
        from aiobotocore.session import get_session
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "aiobotocore":
            raise
        raise ModuleNotFoundError('S3 stores need aiobotocore: pip install "aloader[s3]"', name=error.name) from None
    session = get_session()
    loader = session.get_component("data_loader")
    for description in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("s3", description)
    for table in ("endpoints", "partitions", "sdk-default-configuration"):
        loader.load_data(table)
    return session
