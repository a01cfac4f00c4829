"""What is a bucket's own: credentials, addresses, pages of listings, prefixes. The server is a real one."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from aloader.errors import (
    AccessDenied,
    BrokenTransfer,
    KeyNotFound,
    NotOpen,
    StorageError,
    StoreNotFound,
    StoreUnreachable,
)
from aloader.storage import ObjectInfo, S3Store, open_store
from aloader.storage.s3.settings import ENGINES
from aloader.testing.s3server import S3Server
from tests.servers import BUCKET
from tests.storage.s3.server import DATE, ETAG, answer, error, objects, store_at
from tests.storage.wire.scripted import CLOSE, Said


@pytest.fixture
def store(s3_server: S3Server) -> S3Store:
    return s3_server.store(BUCKET, f"s3/{uuid4().hex}")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Bound and never listened on: connections are refused for as long as the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Connections are accepted by the kernel, and nothing is ever answered."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.asyncio
async def test_a_wrong_secret_is_refused_and_never_shown(store: S3Store) -> None:
    async with replace(store, secret_key="not-the-secret") as wrong:
        for attempt in (wrong.get("key"), wrong.put("key", b""), anext(wrong.list())):
            with pytest.raises(AccessDenied, match="the secret key does not belong to the access key") as caught:
                await attempt
            assert "not-the-secret" not in f"{caught.value} {wrong!r}"
    assert isinstance(caught.value, PermissionError)


@pytest.mark.asyncio
async def test_an_unknown_access_key_is_refused(store: S3Store) -> None:
    async with replace(store, access_key="nobody") as wrong:
        with pytest.raises(AccessDenied, match="does not know the access key"):
            await wrong.get("key")


@pytest.mark.asyncio
@pytest.mark.usefixtures("nobody")
async def test_requests_without_credentials_say_where_they_come_from(store: S3Store) -> None:
    async with replace(store, access_key=None, secret_key=None) as without:
        with pytest.raises(AccessDenied, match="there are no credentials: set AWS_ACCESS_KEY_ID"):
            await without.get("key")
    async with replace(store, access_key=None, secret_key=None, anonymous=True) as anonymous:
        with pytest.raises(AccessDenied, match="do not allow it"):
            await anonymous.get("key")


@pytest.mark.asyncio
async def test_credentials_come_from_the_environment(
    s3_server: S3Server, store: S3Store, nobody: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    async with open_store(f"s3://{BUCKET}/{store.prefix}?endpoint_url={s3_server.endpoint_url}") as from_environment:
        await from_environment.put("key", b"1")  # no region anywhere: any will do
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    async with open_store(f"s3://{BUCKET}/{store.prefix}") as from_environment:
        assert await from_environment.get("key") == b"1"


@pytest.mark.asyncio
async def test_a_missing_bucket_is_named(s3_server: S3Server) -> None:
    async with s3_server.store("no-such-bucket") as store:
        for attempt in (store.get("key"), anext(store.list())):
            with pytest.raises(StoreNotFound, match=f"no bucket 'no-such-bucket' at {s3_server.endpoint_url}"):
                await attempt


@pytest.mark.asyncio
async def test_a_refused_connection_is_an_error_within_a_second(closed_port: int) -> None:
    url = f"http://127.0.0.1:{closed_port}"
    async with S3Store("bucket", endpoint_url=url, access_key="a", secret_key="b") as store:
        with pytest.raises(StoreUnreachable):
            await store.get("key")  # what the first request imports and opens is not the server's doing
        for attempt in (store.get("key"), store.put("key", b""), anext(store.list())):
            began = time.monotonic()
            with pytest.raises(StoreUnreachable, match=f"nothing answers there at {url}: is the server up") as caught:
                await attempt
            assert time.monotonic() - began < 10  # ten times the promise
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.asyncio
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_server_that_says_nothing_is_given_up(
    silent_port: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aloader.storage.s3.settings.ATTEMPTS", 1)
    url = f"http://127.0.0.1:{silent_port}"
    silent = S3Store("bucket", endpoint_url=url, access_key="a", secret_key="b", read_timeout=0.05, engine=engine)
    async with silent as store:
        with pytest.raises(StoreUnreachable, match=f"{url} went silent: if it is slow, raise read_timeout="):
            await store.get("key")


@pytest.mark.asyncio
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_body_that_breaks_off_is_an_error(engine: str) -> None:
    async with objects(b"", lambda _: [answer(200, bytes(10), ETag=ETAG, Last_Modified=DATE)[:-6], CLOSE]) as server:
        async with store_at(server, engine=engine) as store:
            with pytest.raises(BrokenTransfer, match=r"cannot read 'key' in S3Store.*: the connection broke") as caught:
                await store.get("key")
            assert len(server.requests) == 1
            if engine == "lean":
                error = caught.value
                assert (error.key, error.received, error.size, error.version) == ("key", bytes(4), 10, ETAG)


@pytest.mark.asyncio
async def test_what_had_come_of_a_range_begins_where_it_was_asked_for() -> None:
    whole = answer(200, bytes(range(10)), ETag=ETAG)
    async with objects(b"", lambda _: [whole[:-2], CLOSE]) as server, store_at(server) as store:
        with pytest.raises(BrokenTransfer) as caught:  # the server has ignored the range
            await store.get("key", 5, 10)
        assert caught.value.received == bytes(range(5, 8))


@pytest.mark.asyncio
async def test_a_slow_body_is_given_up() -> None:
    async with objects(b"", lambda _: [answer(200, bytes(100_000), ETag=ETAG)[:-1]]) as server:
        async with store_at(server, stall_after=0.1) as store:
            with pytest.raises(BrokenTransfer, match="slower than 16,384 bytes/s") as caught:
                await store.get("key")
            assert caught.value.stalled
            assert caught.value.received == bytes(99_999)


@pytest.mark.asyncio
async def test_another_region_is_named_and_lean_requests_are_no_longer_tried() -> None:
    def interfere(request: bytes) -> list[Said]:
        return [error(301, "PermanentRedirect", x_amz_bucket_region="eu-north-1")]

    async with objects(b"", interfere) as server, store_at(server) as store:
        for _ in range(2):
            with pytest.raises(StorageError, match="another region: pass region='eu-north-1'"):
                await store.get("key")
        assert [b"User-Agent: aloader\r" in request for request in server.requests].count(True) == 2


@pytest.mark.asyncio
async def test_a_bucket_in_another_region_is_followed_there() -> None:
    def interfere(request: bytes) -> list[Said] | None:
        if b"/eu-north-1/s3/" in request:
            return None
        return [answer(400, b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-north-1</Region></Error>")]

    async with objects(b"here", interfere) as server, store_at(server) as store:
        assert await asyncio.gather(*(store.get(f"{i}") for i in range(9))) == [b"here"] * 9
        before = len(server.requests)
        assert await store.get("key") == b"here"
        assert len(server.requests) == before + 1
        assert all(b"User-Agent: aloader\r" in request for request in server.requests)


@pytest.mark.asyncio
async def test_a_temporary_redirect_is_followed_by_the_whole_client() -> None:
    elsewhere = ""

    def interfere(request: bytes) -> list[Said] | None:
        return [error(307, "TemporaryRedirect", Location=elsewhere)] if request.startswith(b"GET /bucket/") else None

    async with objects(b"there", interfere) as server, store_at(server) as store:
        elsewhere = f"http://127.0.0.1:{server.port}/other/key"
        assert await store.get("key") == b"there"


@pytest.mark.asyncio
async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with objects(b"by proxy") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with S3Store("bucket", endpoint_url="http://far.test", access_key="a", secret_key="b") as store:
            assert await store.get("key") == b"by proxy"
        assert proxy.requests[0].startswith(b"GET http://far.test/bucket/key ")


@pytest.mark.asyncio
@pytest.mark.parametrize("who", [{"access_key": "a", "secret_key": "b"}, {"anonymous": True}])
async def test_checksums_are_not_asked_for_of_servers_that_know_none(
    who: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    async with objects(b"here") as server:
        async with S3Store("bucket", endpoint_url=f"http://127.0.0.1:{server.port}", **who) as store:
            assert await store.get("key") == b"here"
        assert b"checksum-mode" not in server.requests[0].lower()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_listing_of_more_than_a_page_is_whole(s3_server: S3Server, store: S3Store) -> None:
    keys = [f"{number:04}" for number in range(1003)]  # a page has 1,000
    async with store:
        await asyncio.gather(*(store.put(key, b"") for key in keys))
        before = s3_server.served().lists
        assert [info async for info in store.list()] == [ObjectInfo(key, 0) for key in keys]
        assert s3_server.served().lists - before == 2
        assert [info.key async for info in store.list("100")] == keys[1000:]


@pytest.mark.asyncio
async def test_keys_are_relative_to_the_prefix_which_is_a_folder(s3_server: S3Server, store: S3Store) -> None:
    async with store, s3_server.store(BUCKET) as whole:
        await whole.put(f"{store.prefix}/a", b"inside")
        await whole.put(f"{store.prefix}b", b"beside")
        assert [info.key async for info in store.list()] == ["a"]
        assert await store.get("a") == b"inside"
        with pytest.raises(KeyNotFound):
            await store.get(f"{store.prefix}/a")
        assert f"{store.prefix}/a" in [info.key async for info in whole.list(store.prefix)]


@pytest.mark.asyncio
async def test_a_copy_in_a_forked_child_makes_a_client_of_its_own(store: S3Store) -> None:
    async with store:
        await store.put("key", b"1")
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.write(writing, asyncio.run(enter_and_get(store)))
            os._exit(0)
        os.close(writing)
        assert await asyncio.to_thread(os.waitpid, child, 0) == (child, 0)
        with os.fdopen(reading, "rb") as answer:
            assert answer.read() == b"closed, then 1"
        assert await store.get("key") == b"1"  # the child has not harmed our connection


async def enter_and_get(store: S3Store) -> bytes:
    try:
        await store.get("key")
    except NotOpen:
        async with store:
            return b"closed, then " + await store.get("key")
    return b"open"


def test_no_secret_is_shown(s3_server: S3Server) -> None:
    store = replace(s3_server.store(BUCKET), session_token="token-of-the-session")
    for shown in (repr(store), str(store), f"{store}", repr(s3_server)):
        assert s3_server.secret_key not in shown
        assert s3_server.access_key not in shown
        assert "token-of-the-session" not in shown
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.secret_key, copy.session_token) == (store.secret_key, store.session_token)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bucket": ""}, "not the name of a bucket"),
        ({"bucket": "a/b"}, "not the name of a bucket"),
        ({"bucket": "b", "prefix": "a/../b"}, "not a key"),
        ({"bucket": "b", "access_key": "a"}, "go together"),
        ({"bucket": "b", "engine": "steam"}, "engine= is one of 'lean', 'botocore', 'obstore', got 'steam'"),
        ({"bucket": "b", "access_key": "a", "secret_key": "s", "anonymous": True}, "exclude each other"),
        ({"bucket": "b", "access_key": "a\n", "secret_key": "hush"}, "the access key has white space in it"),
        ({"bucket": "b", "access_key": "a", "secret_key": "hush\n"}, "the secret key has white space .*: strip"),
        ({"bucket": "b", "access_key": "a", "secret_key": "s", "session_token": " hush"}, "the session token has"),
        ({"bucket": "b", "endpoint_url": "127.0.0.1:8333"}, "is an http:// or https:// URL"),
        ({"bucket": "b", "endpoint_url": "http://user:hush@host"}, "credentials do not belong"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_at_once(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        S3Store(**arguments)  # type: ignore[arg-type]
    assert "hush" not in str(caught.value)


WITHOUT_EXTRAS = """
import asyncio, sys
import aloader.storage, aloader.datasets
assert not {"botocore", "PIL", "aiofiles", "httptools", "obstore"} & set(sys.modules), "imported early"
for missing in ("httptools", "aiobotocore"):
    sys.modules[missing] = None  # what an import of something that is not installed meets
    try:
        asyncio.run(aloader.storage.open_store("s3://bucket").__aenter__())
    except ModuleNotFoundError as error:
        print(error)
"""


@pytest.mark.slow
def test_without_its_extra_the_command_that_installs_it_is_said() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        'S3 stores need httptools: pip install "aloader[s3]"',
        'S3 stores need aiobotocore: pip install "aloader[s3]"',
    ]
