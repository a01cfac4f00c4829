"""What answers say, by answers that are made up."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import CredentialRetrievalError, MetadataRetrievalError

from aloader.errors import (
    AccessDenied,
    BadRange,
    BrokenTransfer,
    CredentialsExpired,
    KeyNotFound,
    ObjectChanged,
    ServerFailed,
    StorageError,
    StoreNotFound,
    Throttled,
)
from aloader.storage import Request, Response, S3Store
from aloader.storage.http_answers import Unclear, extent_of
from aloader.storage.s3.answers import ceiling, conditions, is_moved, read
from aloader.storage.s3.errors import Asked, explained, unanswered
from aloader.storage.wire.answer import Answer, Reply, whole_size

STORE = S3Store("bucket", endpoint_url="http://server")
ASKED = Asked("read", STORE, "key")
BODY = b"0123456789"
MD5 = "781e5e245d69b566979b86e28d23f2c7"


def reply(status: int = 200, body: bytes = BODY, length: int | None = None, /, **headers: str) -> Reply:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Reply(status, named, body, len(body) if length is None else length)


def asked(start: int = 0, stop: int | None = None, most: int | None = None) -> Request:
    return Request("key", start, stop, most=most)


def said(status: int, code: str = "", more: str = "", **headers: str) -> Reply:
    document = f"<Error><Code>{code}</Code><Message>it says</Message>{more}</Error>" if code else ""
    return reply(status, document.encode(), **headers)


@pytest.mark.parametrize(
    ("request_", "headers", "limit"),
    [
        (asked(), "", None),
        (asked(5), "Range: bytes=5-\r\n", None),
        (asked(5, 9), "Range: bytes=5-8\r\n", 9),
        (asked(0, 9, 4), "Range: bytes=0-8\r\n", 4),
        (Request("key", version='"v"', most=7), 'If-Match: "v"\r\n', 7),
        (Request("key", 1, None, 'W/"v"'), "Range: bytes=1-\r\n", None),
        (Request("key", 1, None, '"v"'), 'If-Match: "v"\r\nRange: bytes=1-\r\n', None),
    ],
)
def test_requests_say_which_bytes_of_which_version(request_: Request, headers: str, limit: int | None) -> None:
    assert (conditions(request_), ceiling(request_)) == (headers, limit)


@pytest.mark.parametrize("found", [reply(etag='W/"b"'), reply(206, BODY[1:], content_range="bytes 1-9/10"),
                                   reply(206, BODY[1:], content_range="bytes 1-9/10", etag='"a"')])  # fmt: skip
def test_a_weak_version_is_compared_in_the_answer(found: Reply) -> None:
    with pytest.raises(ObjectChanged, match="has been replaced"):
        read(found, Request("key", 1, None, 'W/"a"'), ASKED)
    same = found._replace(headers={**found.headers, b"etag": b'W/"a"'})
    assert read(same, Request("key", 1, None, 'W/"a"'), ASKED) == Response(BODY[1:], 10, 'W/"a"')


def test_a_version_cannot_smuggle_headers_in() -> None:
    with pytest.raises(ValueError, match="not the version of an object"):
        conditions(Request("key", version="v\r\nX: y"))


@pytest.mark.parametrize(
    ("found", "request_", "response"),
    [
        (reply(), asked(), Response(BODY, 10)),
        (reply(etag='"v"'), asked(), Response(BODY, 10, '"v"')),
        (reply(), asked(2, 5), Response(b"234", 10)),  # a server that knows no ranges
        (reply(), asked(8, 99), Response(b"89", 10)),
        (reply(200, b"0123", 10), asked(most=4), Response(b"0123", 10)),
        (reply(200, b""), asked(5, 6), Response(b"", 0)),
        (reply(206, b"234", content_range="bytes 2-4/10"), asked(2, 5), Response(b"234", 10)),
        (reply(206, b"89", content_range="bytes 8-9/10"), asked(8, 99), Response(b"89", 10)),
        (reply(206, b"2345", content_range="bytes 2-5/10"), asked(2, 5), Response(b"234", 10)),
        (reply(206, b"01", 8, content_range="bytes 0-7/10"), asked(0, 8, 2), Response(b"01", 10)),
        (reply(416, b"", content_range="bytes */0"), asked(5, 6), Response(b"", 0)),
        (said(416, "InvalidRange", "<ActualObjectSize>0</ActualObjectSize>"), asked(5), Response(b"", 0)),
        (said(416, "InvalidRange"), asked(0, 5), Response(b"", 0)),
    ],
)
def test_answers_with_an_object_are_read(found: Reply, request_: Request, response: Response) -> None:
    assert read(found, request_, ASKED) == response


@pytest.mark.parametrize(
    ("found", "request_", "error", "sentence"),
    [
        (reply(), asked(10), BadRange, "the object has 10 bytes, none from 10 on"),
        (said(416, "InvalidRange", "<ActualObjectSize>10</ActualObjectSize>"), asked(10), BadRange, "at or behind"),
        (reply(206, b"345", content_range="bytes 3-5/10"), asked(2, 6), StorageError, "sent those from 3"),
        (reply(206, b"23", content_range="bytes 2-3/10"), asked(2, 5), BrokenTransfer, "2 bytes came of 3"),
        (said(404, "NoSuchKey"), asked(), KeyNotFound, "no object 'key' in S3Store"),
        (said(404), asked(), KeyNotFound, "no object 'key' in S3Store"),
        (said(404, "NoSuchBucket"), asked(), StoreNotFound, "there is no bucket 'bucket' at http://server"),
        (said(412, "PreconditionFailed"), asked(), ObjectChanged, "has been replaced"),
        (said(403, "InvalidObjectState"), asked(), StorageError, "archived .*: it has to be restored first"),
        (said(403, "AccessDenied"), asked(), AccessDenied, "do not allow it"),
        (said(403, "SignatureDoesNotMatch"), asked(), AccessDenied, "the secret key does not belong"),
        (said(403), asked(), AccessDenied, r"do not allow it .*\[403\]"),
        (said(403, "RequestTimeTooSkewed"), asked(), AccessDenied, "clock"),
        (said(400, "ExpiredToken"), asked(), CredentialsExpired, "have expired"),
        (said(400, "ExpiredTokenException"), asked(), CredentialsExpired, r"have expired.*\[ExpiredTokenException\]"),
        (said(403, "RequestExpired"), asked(), CredentialsExpired, "have expired"),
        (said(403, "InvalidAccessKeyId"), asked(), CredentialsExpired, "does not know the access key"),
        (said(403, "TokenRefreshRequired"), asked(), CredentialsExpired, "have expired"),
        (said(403, "InvalidToken"), asked(), CredentialsExpired, "session token"),
        (said(503, "SlowDown"), asked(), Throttled, "answered 503 SlowDown: it says"),
        (said(429), asked(), Throttled, "answered 429"),
        (said(500, "InternalError"), asked(), ServerFailed, "answered 500 InternalError"),
        (said(502), asked(), ServerFailed, "answered 502$"),
        (said(400, "Strange"), asked(), StorageError, "answered 400 Strange: it says"),
        (reply(504, b"<html><body>Gateway"), asked(), ServerFailed, "answered 504"),
    ],
)
def test_failures_are_told_apart(found: Reply, request_: Request, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence) as caught:
        read(found, request_, ASKED)
    assert type(caught.value) is error
    assert isinstance(caught.value, StorageError)
    assert caught.value.key == "key"
    assert caught.value.status in (found.status, 0)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        *((status, "", ServerFailed) for status in (500, 502, 504, 507, 520, 522, 524, 599, 408, 425)),
        (400, "RequestTimeout", ServerFailed),
        *((status, "", Throttled) for status in (429, 503, 509)),
        (400, "BandwidthLimitExceeded", Throttled),
        *((status, "", StorageError) for status in (400, 405, 501)),
    ],
)
def test_what_may_go_well_the_next_time_is_told_from_what_never_will(status: int, code: str, kind: type) -> None:
    with pytest.raises(StorageError) as caught:
        read(said(status, code), asked(), ASKED)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "failure",
    [CredentialRetrievalError(provider="container", error_msg="429"), MetadataRetrievalError(error_msg="500")],
)
def test_that_credentials_could_not_be_asked_for_is_tried_again(failure: Exception) -> None:
    with pytest.raises(ServerFailed, match=r"cannot read 'key' in .*gives out the credentials has failed") as caught:
        with explained(ASKED):
            raise failure
    assert (caught.value.key, caught.value.__cause__) == ("key", failure)


@pytest.mark.parametrize(("text", "seconds"), [("7", 7), ("-1", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0)])
def test_when_to_come_back_is_told(text: str, seconds: float) -> None:
    with pytest.raises(Throttled) as caught:
        read(said(503, "SlowDown", retry_after=text), asked(), ASKED)
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize(
    ("found", "moved"),
    [
        (said(301, "PermanentRedirect", x_amz_bucket_region="eu-north-1"), True),
        (said(307, "TemporaryRedirect"), False),
        (said(400, "AuthorizationHeaderMalformed", "<Region>eu-north-1</Region>"), True),
        (reply(202), False),
        (reply(206, b"x", content_range="lines 1-2"), False),
        (reply(200, BODY, -1), False),  # cut, and nobody knows how long it is
    ],
)
def test_what_is_seldom_is_left_to_others(found: Reply, moved: bool) -> None:
    assert read(found, asked(), ASKED) is None
    assert is_moved(found) == moved


@pytest.mark.parametrize(
    ("headers", "digests"),
    [
        ({"etag": f'"{MD5}"'}, {"md5": MD5}),
        ({"etag": f'"{MD5}"', "x_amz_server_side_encryption": "AES256"}, {"md5": MD5}),
        ({"etag": f'"{MD5}"', "x_amz_server_side_encryption": "aws:kms"}, {}),
        ({"etag": f'"{MD5}"', "x_amz_server_side_encryption_customer_algorithm": "AES256"}, {}),
        ({"etag": f'"{MD5}-3"'}, {}),
        ({"etag": '"short"'}, {}),
        ({"x_amz_checksum_crc32": "DUoRhQ=="}, {"crc32": "0d4a1185"}),
        ({"x_amz_checksum_crc32": "DUoRhQ==-2"}, {}),
        ({"x_amz_checksum_sha1": "?"}, {}),
    ],
)
def test_digests_are_those_of_the_whole_object(headers: dict[str, Any], digests: dict[str, str]) -> None:
    found = read(reply(**headers), asked(), ASKED)
    assert found is not None
    assert found.digests == digests
    part = read(reply(206, BODY, content_range="bytes 0-9/20", **headers), asked(0, 10), ASKED)
    assert part is not None
    assert part.digests == {name: value for name, value in digests.items() if name == "md5"}


@pytest.mark.parametrize(
    ("head", "start", "kept"),
    [
        ("206 Part\r\nContent-Range: bytes 5-9/10", 5, b"567"),
        ("206 Part\r\nContent-Range: bytes 5-9/10", 2, b""),
        ("206 Part\r\nContent-Range: bytes 5-9/10", 6, b""),
        ("206 Part", 5, b""),
        ("200 OK", 2, b"7"),
        ("200 OK", 5, b""),
    ],
)
def test_of_a_body_that_breaks_only_what_was_asked_for_is_kept(head: str, start: int, kept: bytes) -> None:
    from httptools import HttpResponseParser

    answer = Answer(HttpResponseParser)
    answer.feed(memoryview(f'HTTP/1.1 {head}\r\nETag: "v"\r\nContent-Length: 5\r\n\r\n567'.encode()))
    error = unanswered(answer.broken("it broke"), ASKED, asked(start))
    assert isinstance(error, BrokenTransfer)
    assert (error.received, error.version) == (kept, '"v"')


@pytest.mark.parametrize("encoding", ["unheard-of", "utf-7"])
def test_a_reason_in_an_encoding_that_nobody_knows_is_no_reason(encoding: str) -> None:
    body = f'<?xml version="1.0" encoding="{encoding}"?><Error><Code>SlowDown</Code></Error>'.encode()
    with pytest.raises(ServerFailed):
        read(reply(500, body), asked(), ASKED)


def test_a_number_of_bytes_that_no_object_has_is_not_understood() -> None:
    absurd = f"bytes 2-4/{'9' * 5000}"
    assert read(reply(206, b"234", content_range=absurd), asked(2, 5), ASKED) is None
    assert whole_size(206, {b"content-range": absurd.encode()}) == -1
    with pytest.raises(Unclear, match="without a Content-Range of its own"):
        extent_of(206, {"Content-Range": absurd})
