"""What is a web server's own: statuses, redirects, headers, servers that know less, bodies that break off. What
answers come is written out here, byte by byte."""

from __future__ import annotations

import asyncio
import base64
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from aloader.errors import (
    AccessDenied,
    BrokenTransfer,
    KeyNotFound,
    ObjectChanged,
    ServerFailed,
    StorageError,
    StoreUnreachable,
    Throttled,
)
from aloader.storage import HTTPStore, Parted, Request, Retrying
from aloader.storage.http_answers import Extent, extent_of, retry_after, size_when_unsatisfied


class Asked(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    connection: int


#: From a request to the bytes of the answer. After one with "Connection: close" the connection ends.
Answer = Callable[[Asked], bytes]


def answer(status: int, body: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} So", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(give: Answer) -> AsyncIterator[tuple[str, list[Asked]]]:
    """The URL of a server that answers so, and what it has been asked."""
    seen: list[Asked] = []
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        number = len(connections)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                asked = Asked(method, target, headers, number)
                seen.append(asked)
                said = give(asked)
                head_only = said.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
                writer.write(head_only if method == "HEAD" else said)
                await writer.drain()
                if b"Connection: close" in said:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()
        if connections:
            await asyncio.wait(connections, timeout=5)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, StorageError), (401, AccessDenied), (403, AccessDenied), (404, KeyNotFound), (410, KeyNotFound),
        (412, ObjectChanged), (418, StorageError), (429, Throttled), (500, ServerFailed), (502, ServerFailed),
        (503, Throttled), (504, ServerFailed),
    ],
)  # fmt: skip
async def test_each_status_is_an_error_of_its_own(status: int, kind: type[StorageError]) -> None:
    async with serving(lambda asked: answer(status, b"page", "Retry-After: 7")) as (url, _), HTTPStore(url) as store:
        for attempt in (store.get("a b"), store.get("a b", 5, 7)):
            with pytest.raises(StorageError, match="'a b' in HTTPStore") as caught:
                await attempt
            copy = pickle.loads(pickle.dumps(caught.value))
            for error in (caught.value, copy):
                assert (type(error), error.key, error.status) == (kind, "a b", status)
                assert not isinstance(error, Throttled) or error.retry_after == 7.0


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Bound and never listened on: connections are refused for as long as the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.asyncio
async def test_a_refused_connection_and_a_silent_server_are_unreachable(closed_port: int) -> None:
    async with HTTPStore(f"http://127.0.0.1:{closed_port}/?secret=hush") as store:
        with pytest.raises(StoreUnreachable, match=f"nothing answers there at .*:{closed_port}") as caught:
            await store.get("key")
        assert "hush" not in f"{caught.value} {caught.value.__cause__} {store!r}"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with HTTPStore(f"http://127.0.0.1:{silent.getsockname()[1]}", read_timeout=0.02) as store:
            with pytest.raises(StoreUnreachable, match="went silent: if it is slow, raise read_timeout="):
                await store.get("key")


@pytest.mark.asyncio
async def test_a_connection_that_is_not_made_in_time_is_told_of_without_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", never)
    async with HTTPStore("http://127.0.0.1:9/data?signature=hush") as store:
        with pytest.raises(StoreUnreachable, match="nothing answers in time at http:") as caught:
            await store.get("key")
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.asyncio
async def test_of_a_body_that_breaks_off_what_came_is_kept() -> None:
    def give(asked: Asked) -> bytes:
        part = ("Content-Range: bytes 2-9/20",) if "range" in asked.headers else ()
        closing = () if "silent" in asked.target else ("Connection: close",)
        return answer(206 if part else 200, b"half", 'ETag: "v"', *part, *closing, length=8)

    async with serving(give) as (url, _), HTTPStore(url, read_timeout=0.05) as store:
        for attempt, size in ((store.get("key"), 8), (store.get("key", 2, 10), 20), (store.get("silent"), 8)):
            with pytest.raises(BrokenTransfer, match=r"cannot read '\w+' in .*\(after 4 bytes\)") as caught:
                await attempt
            error = caught.value
            assert (error.received, error.version, error.size) == (b"half", '"v"', size)
            assert error.stalled is (error.key == "silent")
            assert pickle.loads(pickle.dumps(error)).received == b""


@pytest.mark.asyncio
async def test_an_answer_that_never_begins_is_a_broken_transfer() -> None:
    async with serving(lambda asked: b"Connection: close") as (url, _), HTTPStore(url) as store:
        with pytest.raises(BrokenTransfer, match="broke the connection off before it answered"):
            await store.get("key")


@pytest.mark.asyncio
async def test_a_server_that_knows_no_ranges_is_read_from_its_front_and_no_further_than_needed() -> None:
    """It announces a GiB, and never sends it."""
    body = bytes(range(256))
    give: Answer = lambda asked: answer(200, body, length=1 << 30)  # noqa: E731
    async with serving(give) as (url, _), HTTPStore(url, read_timeout=0.2) as store:
        assert await store.get("key", 10, 20) == body[10:20]
        assert await store.get_ranges("key", [(10, 20), (0, 3)]) == [body[10:20], body[:3]]
        assert (await store.fetch(Request("key", most=100))) == (body[:100], 1 << 30, "", {})


@pytest.mark.asyncio
async def test_a_large_object_of_a_server_that_knows_no_ranges_is_not_read_in_parts() -> None:
    body = bytes(100)

    def give(asked: Asked) -> bytes:
        if "ranged" in asked.target:
            return answer(206, body[:10], "Content-Range: bytes 0-9/100")
        return answer(200, body)

    async with serving(give) as (url, seen), HTTPStore(url) as inner, Parted(inner, 20, 10) as store:
        assert await store.get("key") == body
        assert await store.get("key", 0, 100) == body
        assert [each.headers.get("range") for each in seen] == ["bytes=0-9", None, "bytes=0-99"]
        assert (inner.from_front, store.from_front) == (True, True)
        await inner.get("ranged", 0, 10)
        assert not inner.from_front


@pytest.mark.asyncio
async def test_a_body_without_a_length_is_read_to_its_end() -> None:
    give: Answer = lambda asked: b"HTTP/1.1 200 So\r\nConnection: close\r\n\r\n0123456789"  # noqa: E731
    async with serving(give) as (url, _), HTTPStore(url) as store:
        assert await store.fetch(Request("key", 2, 4)) == (b"23", 10, "", {})
        assert await store.get("key", 8, 20) == b"89"
        assert await store.size("key") == 10


@pytest.mark.asyncio
async def test_fewer_bytes_than_asked_for_are_an_error() -> None:
    give: Answer = lambda asked: answer(206, b"01", "Content-Range: bytes 0-1/10")  # noqa: E731
    async with serving(give) as (url, _), HTTPStore(url) as store:
        with pytest.raises(BrokenTransfer, match="after 2 bytes"):
            await store.get("key", 0, 5)


@pytest.mark.asyncio
async def test_headers_go_to_the_server_and_not_to_where_it_redirects() -> None:
    async with serving(lambda asked: answer(200, b"there")) as (elsewhere, seen):

        def give(asked: Asked) -> bytes:
            if "moved" in asked.target:
                return answer(200, b"here")
            path = "/moved?new" if "near" in asked.target else f"{elsewhere}/x%2Fy?sig=%2B"
            return answer(307, b"", f"Location: {path}")

        headers = {"Authorization": "hush", "X-Key": "hush"}
        async with serving(give) as (url, asked), HTTPStore(f"{url}/base?q=1", headers=headers) as store:
            assert await store.get("near") == b"here"
            assert [each.target for each in asked] == ["/base/near?q=1", "/moved?new"]
            assert all(each.headers["x-key"] == each.headers["authorization"] == "hush" for each in asked)
            assert await store.get("far", 0, 5) == b"there"
            assert seen[0].target == "/x%2Fy?sig=%2B"
            assert seen[0].headers["range"] == "bytes=0-4"
            assert not {"authorization", "x-key"} & seen[0].headers.keys()
            assert "hush" not in repr(store)
            assert pickle.loads(pickle.dumps(store))._headers == headers


@pytest.mark.asyncio
async def test_nothing_of_netrc_is_sent_to_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hush\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with serving(lambda asked: answer(200, b"1")) as (url, seen):
        async with HTTPStore(f"{url}/d?sig=x") as store:
            await store.get("key")
        async with HTTPStore(url, headers={"Authorization": "Bearer T"}) as store:
            await store.get("key")
    assert [each.headers.get("authorization") for each in seen] == [None, "Bearer T"]


@pytest.mark.asyncio
async def test_the_proxy_of_the_environment_is_asked_with_its_credentials_but_where_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with serving(lambda asked: answer(200, b"1")) as (url, seen):
        port = url.rpartition(":")[2]
        monkeypatch.setenv("http_proxy", f"http://me:p%40ss@127.0.0.1:{port}")
        async with HTTPStore("http://proxied.test/d") as store:
            assert await store.get("key") == b"1"
        monkeypatch.setenv("no_proxy", f"127.0.0.1:{port}")
        async with HTTPStore(url) as store:
            assert await store.get("key") == b"1"
    assert [each.target for each in seen] == ["http://proxied.test/d/key", "/key"]
    login = "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert [each.headers.get("proxy-authorization") for each in seen] == [login, None]
    assert not any("authorization" in each.headers for each in seen)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("location", "message"),
    [("/round", "more than 10 redirects"), ("ftp://x/?hush", "no http URL"), ("http://u:hush@h/", "no http URL")],
)
async def test_redirects_that_lead_nowhere_are_errors_that_do_not_show_them(location: str, message: str) -> None:
    async with serving(lambda asked: answer(302, b"", f"Location: {location}")) as (url, _), HTTPStore(url) as store:
        with pytest.raises(StorageError, match=message) as caught:
            await store.get("key")
        assert "hush" not in str(caught.value)


@pytest.mark.asyncio
async def test_the_query_of_a_signed_url_is_sent_as_it_is_and_never_shown() -> None:
    async with serving(lambda asked: answer(403 if "bad" in asked.target else 200, b"1")) as (url, seen):
        async with HTTPStore(f"{url}/a%2Bb/ü d?sig=hu%2Fsh%3D&x=y+z") as store:
            assert await store.get("k?#&%/ü") == b"1"
            assert seen[0].target == "/a%2Bb/%C3%BC%20d/k%3F%23%26%25/%C3%BC?sig=hu%2Fsh%3D&x=y+z"
            with pytest.raises(AccessDenied, match="is a signed URL still valid") as caught:
                await store.get("bad")
            assert "hu%2Fsh" not in f"{caught.value} {store!r}"
            assert repr(store) == f"HTTPStore('{url}/a%2Bb/%C3%BC%20d?…')"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "not the URL of a web server"), ("host/x", "not the URL"), ("http:///x", "not the URL"),
        ("http://user:hush@host/", "credentials do not belong into a URL"), ("http://h:hush/", "not the URL"),
        ("http://host/#hush", "'#' in the URL"),
    ],
)  # fmt: skip
def test_what_is_no_url_of_a_web_server_is_refused_at_once(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        HTTPStore(url)
    assert "hush" not in str(caught.value)


@pytest.mark.asyncio
async def test_compressed_answers_are_not_asked_for_and_refused() -> None:
    async with serving(lambda asked: answer(200, b"zip", "Content-Encoding: gzip")) as (url, seen):
        async with HTTPStore(url) as store:
            for attempt in (store.get("key"), store.size("key")):
                with pytest.raises(StorageError, match=r"in another coding \(gzip\)"):
                    await attempt
    assert {each.headers["accept-encoding"] for each in seen} == {"identity"}


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [403, 405, 501])
async def test_the_size_is_asked_for_with_a_range_where_head_is_refused(status: int) -> None:
    def give(asked: Asked) -> bytes:
        if asked.method == "HEAD":
            return answer(status)
        if "empty" in asked.target:
            return answer(416, b"", "Content-Range: bytes */0")
        return answer(206, b"0", "Content-Range: bytes 0-0/77")

    async with serving(give) as (url, _), HTTPStore(url) as store:
        assert await store.size("key") == 77
        assert await store.size("empty") == 0


@pytest.mark.asyncio
async def test_what_has_no_strong_tag_is_compared_when_the_answer_is_there() -> None:
    tags = ['ETag: W/"1"', 'ETag: W/"1"', 'ETag: W/"2"', "Last-Modified: then", "Last-Modified: later"]
    async with serving(lambda asked: answer(200, b"data", tags.pop(0))) as (url, seen), HTTPStore(url) as store:
        first = await store.fetch(Request("key"))
        assert (await store.fetch(Request("key", 0, None, first.version))).version == 'W/"1"'
        with pytest.raises(ObjectChanged):
            await store.fetch(Request("key", 0, None, first.version))
        first = await store.fetch(Request("key"))
        with pytest.raises(ObjectChanged):
            await store.fetch(Request("key", 0, None, first.version))
    assert not any("if-match" in each.headers for each in seen)


@pytest.mark.asyncio
async def test_a_server_that_ignores_the_version_is_not_believed() -> None:
    async with serving(lambda asked: answer(200, b"data", 'ETag: "new"')) as (url, seen), HTTPStore(url) as store:
        with pytest.raises(ObjectChanged):
            await store.fetch(Request("key", 0, None, '"old"'))
    assert seen[0].headers["if-match"] == '"old"'


@pytest.mark.asyncio
async def test_it_is_only_read_from_and_cannot_be_listed() -> None:
    async with HTTPStore("http://127.0.0.1:9") as store:
        with pytest.raises(StorageError, match="a web server is only read from"):
            await store.put("key", b"")
        with pytest.raises(StorageError, match="Give the keys yourself"):
            store.list()


@pytest.mark.asyncio
async def test_connections_are_used_again_also_after_errors() -> None:
    def give(asked: Asked) -> bytes:
        return answer(404 if "no" in asked.target else 206, b"12", "Content-Range: bytes 0-1/9")

    async with serving(give) as (url, seen), HTTPStore(url, max_connections=1) as store:
        for _ in range(3):
            assert await store.get("yes", 0, 2) == b"12"
            with pytest.raises(KeyNotFound):
                await store.get("no")
    assert [each.connection for each in seen] == [1] * 6


def test_headers_that_say_what_a_body_holds() -> None:
    assert extent_of(206, {"Content-Range": "bytes 5-9/20"}) == Extent(5, 10, 20)
    assert extent_of(200, {"Content-Length": "20"}) == Extent(0, None, 20)
    assert extent_of(200, {"Content-Length": "-2"}) == extent_of(200, {}) == Extent(0, None, None)
    assert size_when_unsatisfied({"Content-Range": "bytes */20"}) == 20
    assert size_when_unsatisfied({"Content-Range": "bytes */*"}) is size_when_unsatisfied({}) is None
    for plain in ("identity", "aws-chunked", "AWS-Chunked, identity"):
        assert extent_of(200, {"Content-Length": "20", "Content-Encoding": plain}) == Extent(0, None, 20)
    with pytest.raises(ValueError, match="gzip"):
        extent_of(200, {"Content-Encoding": "aws-chunked,gzip"})
    for wrong in ("", "bytes */20", "bytes 0-1/*", "lines 0-1/2"):
        with pytest.raises(ValueError):
            extent_of(206, {"Content-Range": wrong})


def test_how_long_to_wait_is_seconds_or_a_date() -> None:
    assert retry_after("120", 0) == 120
    assert retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 20) == 40
    assert retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 200) == retry_after("", 0) == retry_after("soon", 0) == 0
    for absurd in ("9" * 400, "9" * 5000, f"01 Jan {9**20} 00:00:00 +0000", f"Thu, 01 Jan 1970 00:01:00 +{9**20}"):
        assert retry_after(absurd, 0) == 0


WITHOUT_EXTRA = """
import asyncio, sys
sys.modules["aiohttp"] = None  # what an import of something that is not installed meets
import aloader.storage
asyncio.run(aloader.storage.HTTPStore("http://host").__aenter__())
"""


@pytest.mark.slow
def test_without_its_extra_the_command_that_installs_it_is_said() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        'ModuleNotFoundError: HTTP stores need aiohttp: pip install "aloader[http]"'
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("length", [None, 9])
async def test_an_answer_that_begins_behind_what_was_asked_for_is_not_taken_for_it(length: int | None) -> None:
    def later(asked: Asked) -> bytes:
        if asked.headers["range"] != "bytes=2-":
            return answer(206, b"9", "Content-Range: bytes 9-9/10", 'ETag: "1"')
        return answer(206, b"56789", "Content-Range: bytes 5-9/10", 'ETag: "1"', "Connection: close", length=length)

    async with serving(later) as (url, _), Retrying(HTTPStore(url), first_delay=0) as store:
        with pytest.raises(StorageError, match="bytes from 2 on were asked for, and those from 5 on came"):
            await store.get("k", 2)


@pytest.mark.asyncio
async def test_a_traceback_does_not_show_what_an_answer_that_is_none_was_asked_with() -> None:
    async with (
        serving(lambda asked: b"garbage\r\n\r\nConnection: close") as (url, _),
        HTTPStore(f"{url}/data?signature=s3cret", headers={"Authorization": "t0ken"}) as store,
    ):
        with pytest.raises(BrokenTransfer, match="before it answered") as caught:
            await store.get("k")
    shown = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in shown
    assert "t0ken" not in shown
