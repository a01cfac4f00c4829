"""A web server as a store to read from, through aiohttp: static files, buckets that are public or signed for, caches.

What answers mean stands in `http_answers`; here they are asked for, and their bodies received.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, NoReturn, Self
from urllib.parse import quote, urljoin, urlsplit

from aloader.errors import BadRange, BrokenTransfer, NotOpen, ObjectChanged, StorageError, StoreUnreachable
from aloader.options import CONCURRENCY
from aloader.storage import http_answers as answers
from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, check_data, check_key
from aloader.storage.lifetime import PerLoop
from aloader.storage.proxies import Proxies

#: Redirects that are followed: those of a store with a mirror, a login that has been given up, and some more.
REDIRECTIONS: Final = 10


class _Web(NamedTuple):
    """What a store asks with, on one loop."""

    session: Any  # aiohttp's
    proxies: Proxies


class HTTPStore(BaseStore):
    """Objects that a web server gives out: the key "a/b" below `https://host/data` is `https://host/data/a/b`.

    Needs the extra `http`. `headers` go with every request to this server, and to no other that it redirects to; a
    query in the URL (of a signed one) goes with every request too. Neither is ever shown. `connect_timeout` and
    `read_timeout` are seconds; the latter bounds each wait for bytes. Proxies are those of the environment, with the
    credentials in their URLs; ~/.netrc is not read.

    It can neither be listed nor written to. A server that knows no ranges works, but sends every object from its front.

    Errors: `KeyNotFound`, `AccessDenied`, `ObjectChanged`, `Throttled`, `ServerFailed`, `StoreUnreachable`,
    `BrokenTransfer`, else `StorageError`.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        connect_timeout: float = 5.0,
        read_timeout: float = 30.0,
        max_connections: int = CONCURRENCY,
    ) -> None:
        parts = _checked(url)
        self._base = f"{parts.scheme}://{parts.netloc}{_encoded(parts.path).rstrip('/')}"
        self._query = _encoded(parts.query)
        self._headers = dict(headers or {})
        self._origin = _origin(url)
        self._timeouts = connect_timeout, read_timeout
        self._max_connections = max_connections
        self._from_front = False  # by the last answer that told: behind one URL, some objects may have ranges
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        """Where it is. What comes behind "?" may be a signature."""
        return f"HTTPStore({self._base + ('?…' if self._query else '')!r})"

    @property
    def identity(self) -> str:
        """What is behind "?" may say which objects these are."""
        return f"{self!r} {hashlib.blake2b(self._query.encode(), digest_size=16).hexdigest() if self._query else ''}"

    @property
    def from_front(self) -> bool:
        return self._from_front

    async def fetch(self, request: Request) -> Response:
        async with self._answer("GET", request.key, answers.headers_for(request)) as answer:
            if answer.status == 416:
                return await self._nothing(request, answer.headers)
            with self._understood(request.key):
                extent = answers.extent_of(answer.status, answer.headers)
                answers.check_beginning(request, extent)
            if (knows := answers.knows_ranges(request, answer.status, extent)) is not None:
                self._from_front = not knows
            version = answers.version_of(answer.headers)
            if request.version and version != request.version:
                raise ObjectChanged(f"{request.key!r} in {self!r} has been replaced meanwhile", request.key)
            body = _Body(self, request, extent, version)
            await body.receive(answer)
            return Response(body.data(), body.size, version)

    async def size(self, key: str) -> int:
        async with self._answer("HEAD", key, answers.headers_for(Request(key)), answers.NO_HEAD) as answer:
            if answer.status == 200:
                with self._understood(key):
                    extent = answers.extent_of(200, answer.headers)
                if extent.size is not None:
                    return extent.size
        return (await self.fetch(Request(key, 0, 1))).size

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._opened.get()
        check_key(key)
        check_data(data)
        raise StorageError(f"cannot write {key!r} in {self!r}: a web server is only read from", key)

    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """There is no way to ask a web server what it has: `StorageError`."""
        self._opened.get()
        raise StorageError(
            f"cannot list {self!r}: a web server does not say what it has. Give the keys yourself: a list of "
            "them, or a manifest that was written where the objects are (ObjectDataset.from_manifest)"
        )

    async def __aenter__(self) -> Self:
        await self._opened.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> _Web:
        aiohttp = await asyncio.to_thread(_aiohttp)
        connect, read = self._timeouts
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_connections),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # it is more than proxies: see there
        )
        return _Web(await stack.enter_async_context(session), Proxies())

    # -- asking --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _answer(
        self, method: str, key: str, headers: Mapping[str, str], accepted: frozenset[int] = frozenset()
    ) -> AsyncIterator[Any]:
        """The answer of 200, 206 or 416, behind all redirects; of another status only if `accepted`."""
        web = self._opened.get()
        url = f"{self._base}/{quote(check_key(key), safe='/')}" + (f"?{self._query}" if self._query else "")
        for _ in range(REDIRECTIONS):
            async with self._sent(web, method, url, headers, key) as answer:
                if answer.status not in answers.REDIRECTS:
                    if answer.status not in accepted and answer.status not in (200, 206, 416):
                        place = _origin(url)
                        raise answers.refusal(place, self, key, answer.status, answer.headers, time.time())
                    yield answer
                    return
                url = self._redirected(url, answer.headers.get("Location", ""), key)
        raise StorageError(f"cannot read {key!r} in {self!r}: more than {REDIRECTIONS} redirects", key)

    @asynccontextmanager
    async def _sent(self, web: _Web, method: str, url: str, headers: Mapping[str, str], key: str) -> AsyncIterator[Any]:
        """One request, and its answer's head. The connection goes back if the body has been read, else it is closed."""
        from yarl import URL

        own = self._headers if _origin(url) == self._origin else {}
        proxy = await web.proxies.towards(url)
        with self._while_open(web.session, key):
            with self._reached(key, _origin(url)):
                answer = await web.session.request(
                    method, URL(url, encoded=True), headers={**own, **headers}, allow_redirects=False, proxy=proxy
                )
            async with answer:
                yield answer

    def _redirected(self, url: str, location: str, key: str) -> str:
        """Where a redirect leads to. It is not shown: it may be signed."""
        target = _encoded(urljoin(url, location).partition("#")[0])
        try:
            _checked(target)
        except ValueError:
            raise StorageError(f"cannot read {key!r} in {self!r}: it redirects to what is no http URL", key) from None
        return target

    async def _nothing(self, request: Request, headers: Mapping[str, str]) -> Response:
        """No such bytes: all of an empty object, or a mistake."""
        size = answers.size_when_unsatisfied(headers)
        if size is None:
            size = await self.size(request.key) if request.start else 0  # nothing at 0: it is empty
        if size == 0:
            return Response(b"", 0, answers.version_of(headers))
        self._behind(request, size)

    def _behind(self, request: Request, size: int) -> NoReturn:
        raise BadRange(
            f"{request.key!r} in {self!r} has {size} bytes: none from {request.start}", request.key, status=416
        )

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    @contextmanager
    def _understood(self, key: str) -> Iterator[None]:
        try:
            yield
        except answers.Unclear as error:
            raise StorageError(f"cannot read {key!r} in {self!r}: the answer is unclear: {error}", key) from None

    @contextmanager
    def _while_open(self, session: Any, key: str) -> Iterator[None]:
        """What a session says that was closed under a request does not matter."""
        try:
            yield
        except Exception as error:
            if session.closed:
                raise NotOpen(f"{self!r} was closed while {key!r} was being read", key) from error
            raise

    @contextmanager
    def _reached(self, key: str, place: str) -> Iterator[None]:
        """Until the answer's head is there."""
        from aiohttp import ClientConnectorError, ClientError, ClientResponseError, ConnectionTimeoutError, InvalidURL

        what = f"cannot read {key!r} in {self!r}"
        try:
            yield
        except ConnectionTimeoutError:  # it shows the whole URL, which may be signed
            raise StoreUnreachable(
                f"{what}: nothing answers in time at {place}: is the server up, and is the URL right?", key
            ) from None
        except ClientConnectorError as error:
            raise StoreUnreachable(
                f"{what}: nothing answers there at {place}: is the server up, and is the URL right? ({error})", key
            ) from error
        except TimeoutError as error:
            raise StoreUnreachable(f"{what}: {place} went silent: if it is slow, raise read_timeout=", key) from error
        except ClientError as error:
            shows = isinstance(error, ClientResponseError | InvalidURL)  # the whole URL, and all headers
            raise BrokenTransfer(f"{what}: {place} broke the connection off before it answered", key) from (
                None if shows else error
            )


class _Body:
    """The body of an answer as it comes: of that, what was asked for."""

    def __init__(self, store: HTTPStore, request: Request, extent: answers.Extent, version: str) -> None:
        self._store, self._request, self._version = store, request, version
        self._extent = extent
        self._chunks: list[bytes] = []
        self._at = extent.start  # where in the object the next byte is
        self._stop = answers.wanted_stop(request)

    @property
    def size(self) -> int:
        """The object's: of one that came whole and unmeasured, where its body ended."""
        return self._at if self._extent.size is None else self._extent.size

    def data(self) -> bytes:
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    async def receive(self, answer: Any) -> None:
        """All that was asked for. More is not waited for: the connection is then given up."""
        from aiohttp import ClientError

        try:
            while not self._enough() and (chunk := await answer.content.readany()):
                self._take(chunk)
        except (ClientError, TimeoutError, ConnectionError) as error:
            raise self._broken(isinstance(error, TimeoutError)) from error
        self._check()

    def _enough(self) -> bool:
        if self._extent.size is None:
            return False  # only its end tells how large it is
        end = self._extent.size if self._extent.stop is None else self._extent.stop
        return self._at >= end or (self._stop is not None and self._at >= self._stop)

    def _take(self, chunk: bytes) -> None:
        skip = max(0, self._request.start - self._at)
        stop = len(chunk) if self._stop is None else max(0, min(len(chunk), self._stop - self._at))
        if skip < stop:
            self._chunks.append(chunk if skip == 0 and stop == len(chunk) else chunk[skip:stop])
        self._at += len(chunk)

    def _check(self) -> None:
        """Whether all is there: a server may send fewer bytes than it was asked for, and say so."""
        size, start = self.size, self._request.start
        if start >= size > 0:
            self._store._behind(self._request, size)
        stop = size if self._stop is None else min(self._stop, size)
        if sum(map(len, self._chunks)) != max(0, stop - start):
            raise self._broken(False)

    def _broken(self, silent: bool) -> BrokenTransfer:
        received, key = self.data(), self._request.key
        why = "the server went silent: if it is slow, raise read_timeout=" if silent else "the answer broke off"
        return BrokenTransfer(
            f"cannot read {key!r} in {self._store!r}: {why} (after {len(received)} bytes)",
            key,
            received=received,
            version=self._version,
            size=-1 if self._extent.size is None else self._extent.size,
            stalled=silent,
        )


def _checked(url: str) -> Any:
    """The parts of a URL that can be asked. Errors do not show it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or _port_of(parts) is None:
        raise ValueError("not the URL of a web server: http://host/folder or https://host/folder")
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials do not belong into a URL: pass headers={'Authorization': …}")
    if parts.fragment:
        raise ValueError("a '#' in the URL of a web server leads nowhere: write %23 if it belongs to a name")
    return parts


def _origin(url: str) -> str:
    """Scheme, host and port: whom headers are meant for."""
    parts = urlsplit(url)
    port = _port_of(parts)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def _port_of(parts: Any) -> int | None:
    """None for what is no port: the error of `urllib` would show it."""
    try:
        return parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:
        return None


def _encoded(text: str) -> str:
    """Percent-encoded, where it is not yet: what is encoded may be signed as it is."""
    return quote(text, safe="%/:?@!$&'()*+,;=~[]")


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "aiohttp":
            raise
        raise ModuleNotFoundError('HTTP stores need aiohttp: pip install "aloader[http]"', name=error.name) from None
    return aiohttp
