"""Whoever makes the GETs, they are the same GETs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest
import pytest_asyncio

from aloader.errors import AccessDenied, BadRange, KeyNotFound, ObjectChanged, StorageError, StoreNotFound
from aloader.storage import Request, S3Store
from aloader.storage.s3.settings import ENGINES
from aloader.testing.s3server import S3Server
from tests.servers import BUCKET
from tests.storage.s3.server import DATE, answer, error, objects, store_at
from tests.storage.test_conformance import ODD_KEYS

BODY = bytes(range(256)) * 5000
MD5 = hashlib.md5(BODY).hexdigest()
RANGES = [(0, None), (0, 1), (5, 1000), (1000, None), (len(BODY) - 5, len(BODY) + 5), (0, len(BODY))]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def store(s3_server: S3Server, engine: str) -> AsyncIterator[S3Store]:
    """With an object "key" and an empty one, "empty"."""
    async with replace(s3_server.store(BUCKET, f"engines/{uuid4().hex}"), engine=engine) as store:
        await store.put("key", BODY)
        await store.put("empty", b"")
        yield store


@pytest.mark.slow
@pytest.mark.asyncio
async def test_what_was_written_is_read_in_every_way(store: S3Store) -> None:
    """Ranges come as asked, with size, version and digests; of an empty object every range is empty; keys are kept."""
    version = (await anext(store.list("key"))).version
    for start, stop in RANGES:
        found = await store.fetch(Request("key", start, stop, version))
        assert found.data == BODY[start:stop]
        assert type(found.data) is bytes
        assert (found.size, found.version) == (len(BODY), version)
        assert found.digests.get("md5", MD5) == MD5
    found = await store.fetch(Request("key", most=1000))
    assert (found.data, found.size) == (BODY[:1000], len(BODY))
    for start, stop in ((0, None), (0, 5), (3, 9), (3, None)):
        assert (await store.fetch(Request("empty", start, stop)))[:2] == (b"", 0)
    keys = [*ODD_KEYS, "double//slash", "-._~", "a:b@c!$'()*,"]
    await asyncio.gather(*(store.put(key, key.encode()) for key in keys))
    assert await asyncio.gather(*map(store.get, keys)) == [key.encode() for key in keys]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_failures_are_told_apart(store: S3Store) -> None:
    with pytest.raises(KeyNotFound, match="no object 'missing'"):
        await store.get("missing")
    with pytest.raises(BadRange):
        await store.get("key", len(BODY), len(BODY) + 1)
    with pytest.raises(ObjectChanged, match="has been replaced") as caught:
        await store.fetch(Request("key", 0, 5, '"another"'))
    assert caught.value.key == "key"
    async with replace(store, bucket="no-such-bucket") as elsewhere:
        with pytest.raises(StoreNotFound):
            await elsewhere.get("key")
    async with replace(store, secret_key="wrong") as wrong:
        with pytest.raises(AccessDenied, match="the secret key does not belong"):
            await wrong.get("key")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_obstore_is_refused_in_a_child_of_a_process_that_has_used_it() -> None:
    async with objects(b"here") as server, store_at(server, engine="obstore") as store:
        assert await store.get("key") == b"here"
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.write(writing, asyncio.run(refused(store)).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as said:
            text = await asyncio.to_thread(said.read)
        assert os.waitpid(child, 0) == (child, 0)
        assert "forked from one that had used obstore" in text
        assert 'Use engine="lean"' in text
        assert await store.get("key") == b"here"


@pytest.mark.asyncio
async def test_weak_versions_are_not_sent_and_compared(engine: str) -> None:
    body = b"0123456789"

    def script(request: bytes) -> list[bytes]:
        if b"\r\nif-match:" in request.lower():
            return [error(412, "PreconditionFailed")]
        return [answer(206, body[5:], Content_Range="bytes 5-9/10", ETag='W/"a"', Last_Modified=DATE)]

    async with objects(b"", script) as server, store_at(server, engine=engine) as store:
        assert (await store.fetch(Request("key", 5, 10, 'W/"a"'))).data == body[5:]
        with pytest.raises(ObjectChanged, match=r"cannot read 'key' in .*has been replaced"):
            await store.fetch(Request("key", 5, 10, 'W/"b"'))


async def refused(store: S3Store) -> str:
    try:
        await store.__aenter__()
    except StorageError as error:
        return str(error)
    return "opened"


@pytest.mark.asyncio
async def test_a_missing_obstore_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    async with objects(b"here") as server:
        with pytest.raises(ModuleNotFoundError, match=r'pip install "aloader\[obstore\]"'):
            await store_at(server, engine="obstore").__aenter__()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_large_object_that_comes_in_chunks_tells_its_size_with_its_end() -> None:
    chunked = b'HTTP/1.1 200 OK\r\nETag: "v"\r\nTransfer-Encoding: chunked\r\n\r\n'
    chunked += b"5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"
    async with objects(b"", lambda request: [chunked]) as server, store_at(server, region="here") as store:
        for asked in (Request("key", most=4), Request("key", 2, 6)):  # of which less is wanted than comes
            found = await store.fetch(asked)
            assert b"0123456789".find(found.data) == asked.start
            assert (found.size, found.version, len(found.data) >= 4) == (10, '"v"', True)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_part_that_does_not_say_which_one_it_is_is_refused() -> None:
    part = b"HTTP/1.1 206 Part\r\nContent-Length: 4\r\n\r\n2345"
    async with objects(b"", lambda request: [part]) as server, store_at(server, region="here") as store:
        with pytest.raises(StorageError, match=r"cannot read 'key' in .* does not say which bytes"):
            await store.get("key", 2, 6)
