"""A bucket as a store. GETs, of which there are millions, go the lean way; listings, writes, and whatever is seldom and
intricate go through aiobotocore, whose are also credentials, endpoints and the rules for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

from aloader.options import CONCURRENCY, KIB
from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, check_data, check_key
from aloader.storage.lifetime import PerLoop
from aloader.storage.s3.configured import configured_endpoint
from aloader.storage.s3.errors import Asked
from aloader.storage.s3.opened import Opened
from aloader.storage.s3.settings import ENGINES, Settings, check_endpoint
from aloader.storage.s3.signing import Keys


@dataclass(eq=False, repr=False)
class S3Store(BaseStore):
    """The objects of a bucket whose keys begin with a prefix. Needs the extra `s3`.

    `prefix` stands for a folder: with "a/b", the key "c" is the object "a/b/c". `endpoint_url` is for servers other
    than Amazon's (the bucket then goes into the path, not into the host name, unless the configuration files name an
    `addressing_style`). It, region and credentials come from the
    environment, the configuration files or the machine's role, as with every AWS program, unless they are given;
    `anonymous` sends unsigned requests. The server is looked up once for each copy of a store in a process.

    `connect_timeout` and `read_timeout` are seconds; the latter bounds each wait for bytes, not the whole transfer.
    What comes slower than `min_rate` bytes a second over `stall_after` seconds is given up too. `max_connections`
    should be at least the number of gets in flight.

    `engine`: who makes the GETs. "lean" (the least CPU), "botocore" (aiobotocore's client, which also takes over from
    the lean one where that cannot: redirects, proxies, directory buckets, access points) or "obstore" (needs the extra
    of this name).

    Errors: `KeyNotFound`, `StoreNotFound` (no such bucket), `AccessDenied`, `CredentialsExpired`, `StoreUnreachable`,
    `BrokenTransfer`, `Throttled`, `ServerFailed`, `ObjectChanged`, `BadRange`, else `StorageError`. A GET that failed
    is not tried again here (`Retrying` does); listings and writes are, by botocore.
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
    engine: str = "lean"
    min_rate: float = 16 * KIB
    stall_after: float = 5.0
    _opened: PerLoop[Opened] = field(init=False)
    _configured: tuple[str | None] | None = field(init=False, default=None)  # what the configuration says, once asked

    def __post_init__(self) -> None:
        if not self.bucket or ("/" in self.bucket and not self.bucket.startswith("arn:")):
            raise ValueError(f"not the name of a bucket: {self.bucket!r}")
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key= and secret_key= go together")
        if self.anonymous and self.access_key is not None:
            raise ValueError("anonymous=True and access_key= exclude each other")
        if self.engine not in ENGINES:
            raise ValueError(f"engine= is one of {', '.join(map(repr, ENGINES))}, got {self.engine!r}")
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url)
        self._keys()
        self.prefix = self.prefix.strip("/")
        if self.prefix:
            check_key(self.prefix)
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        """Where it is. Never what it logs in with."""
        place = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        said = {"endpoint_url": self._server, "region": self.region}
        more = [f"{name}={value!r}" for name, value in said.items() if value]
        return f"S3Store({', '.join([repr(place), *more])})"

    def __getstate__(self) -> dict[str, Any]:
        """Without what the configuration has said: another machine's may say something else."""
        return {**self.__dict__, "_configured": None}

    async def fetch(self, request: Request) -> Response:
        opened = self._opened.get()
        return await opened.fetch(request, self._asked("read", check_key(request.key)))

    async def size(self, key: str) -> int:
        opened = self._opened.get()
        async with opened.clients.calling(self._asked("read", check_key(key))) as client:
            answer = await client.head_object(Bucket=self.bucket, Key=self._root + key)
        return int(answer["ContentLength"])

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        opened = self._opened.get()
        async with opened.clients.calling(self._asked("write", check_key(key))) as client:
            await client.put_object(Bucket=self.bucket, Key=self._root + key, Body=check_data(data))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        clients, asked = self._opened.get().clients, self._asked("list")
        place = {"Bucket": self.bucket, "Prefix": self._root + prefix}
        token: dict[str, str] = {}
        while True:
            async with clients.calling(asked) as client:
                page = await client.list_objects_v2(**place, **token)
            for found in page.get("Contents", ()):
                if key := found["Key"][len(self._root) :]:  # consoles make an empty object "prefix/" for a folder
                    yield ObjectInfo(key, found["Size"], found.get("ETag", ""))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    @property
    def identity(self) -> str:
        """The bucket and its server, which may be named by the environment or by a configuration file."""
        return f"s3://{self.bucket}/{self.prefix} at {self.endpoint}"

    @property
    def endpoint(self) -> str:
        """The server, for those who read of it: its URL, or Amazon's name."""
        return self._server or "Amazon S3"

    @property
    def _server(self) -> str | None:
        """The server's URL, where it is not Amazon's."""
        if self.endpoint_url is not None:
            return self.endpoint_url
        if self._configured is None:
            try:
                self._configured = (configured_endpoint(),)
            except ValueError:  # opening says so
                return None
        return self._configured[0]

    @property
    def _root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""

    def _asked(self, verb: str, key: str = "") -> Asked:
        return Asked(verb, self, key)

    def _keys(self) -> Keys | None:
        """Those that were given."""
        if self.access_key is None or self.secret_key is None:
            return None
        return Keys(self.access_key, self.secret_key, self.session_token or "")

    def _settings(self) -> Settings:
        return Settings(
            bucket=self.bucket,
            endpoint_url=self._server,
            region=self.region,
            keys=self._keys(),
            anonymous=self.anonymous,
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            max_connections=self.max_connections,
            engine=self.engine,
            min_rate=self.min_rate,
            stall_after=self.stall_after,
        )

    async def _open(self, stack: AsyncExitStack) -> Opened:
        opened = Opened(await asyncio.to_thread(self._settings), self._root)  # it may read files
        stack.push_async_callback(opened.aclose)
        await opened.open(self._asked("open"))
        return opened
