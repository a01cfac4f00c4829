"""Answers, whole and broken, however the bytes come in."""

from __future__ import annotations

import pytest

from aloader.errors import BrokenTransfer
from aloader.options import KIB
from aloader.storage.wire.answer import HEAD_LIMIT, REASON_LIMIT, Reply
from tests.storage.wire.receiving import fed, reply

PLAIN = b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: "v"\r\nServer: x\r\n\r\n0123456789'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6;x=y\r\n456789\r\n0\r\nLast: z\r\n\r\n"
PART = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3-6/20\r\nContent-Length: 4\r\n\r\n3456"


@pytest.mark.parametrize("text", [PLAIN, CHUNKED, b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + PLAIN])
def test_an_answer_is_the_same_wherever_it_is_cut(text: bytes) -> None:
    for cut in range(len(text)):
        found = reply(text[:cut], text[cut:])
        assert (found.status, found.body, found.length) == (200, b"0123456789", 10)
    one_by_one = reply(*(text[i : i + 1] for i in range(len(text))))
    assert one_by_one.body == b"0123456789"


def test_headers_are_found_by_lower_case_names_and_repeated_ones_are_joined() -> None:
    found = reply(b"HTTP/1.1 204 No Content\r\nX-One: a\r\nx-one: b\r\nX-TWO:  c \r\n\r\n")
    assert found == Reply(204, {b"x-one": b"a, b", b"x-two": b"c"}, b"", 0)


def test_a_large_body_is_given_away_without_a_copy() -> None:
    answer = fed(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegin")
    assert answer.direct
    room = answer.room()
    assert len(room) == 999_995
    room[:] = bytes(999_990) + b"ended"
    room.release()
    answer.filled(999_995)
    body = answer.reply().body
    assert body == b"begin" + bytes(999_990) + b"ended"
    assert answer.reply().body is body  # the memory itself, and not what was copied from it


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\nConnection: keep-alive\r\n", True),
    ],
)
@pytest.mark.parametrize("cut", [0, 5, 10])
def test_a_connection_is_kept_if_the_server_keeps_it(head: bytes, keep: bool, cut: int) -> None:
    answer = fed(head + b"\r\n" + b"0123456789"[:cut], b"0123456789"[cut:])
    assert answer.done
    assert answer.keep == keep
    assert answer.reply().body == b"0123456789"


def test_a_body_without_a_length_goes_to_the_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nETag: x\r\n\r\n"
    answer = fed(head, b"all ", b"of it")
    assert not answer.done
    answer.end()
    assert answer.reply()[2:] == (b"all of it", 9)
    assert not answer.keep


@pytest.mark.parametrize("text", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 304 Same\r\n\r\n"])
def test_an_empty_body_is_one(text: bytes) -> None:
    answer = fed(text)
    assert answer.done
    assert answer.keep
    assert answer.reply().body == b""


@pytest.mark.parametrize("pieces", [[PLAIN], [PLAIN[:-4], PLAIN[-4:]], [CHUNKED], [CHUNKED[:70], CHUNKED[70:]]])
def test_of_a_body_longer_than_wanted_the_beginning_is_taken_and_the_connection_closed(pieces: list[bytes]) -> None:
    answer = fed(*pieces, most=5)
    assert answer.done
    assert not answer.keep
    assert answer.reply().body == b"01234"
    assert answer.reply().length == (10 if pieces[0].startswith(PLAIN[:50]) else -1)


def test_a_body_just_as_long_as_wanted_is_whole() -> None:
    answer = fed(PLAIN, most=10)
    assert answer.keep
    assert answer.reply().body == b"0123456789"


def test_the_reason_of_a_failure_is_not_cut_where_an_object_would_be_but_it_is_cut() -> None:
    reason = b"x" * 100
    text = b"HTTP/1.1 404 Not Found\r\nContent-Length: 100\r\n\r\n" + reason
    assert reply(text, most=5).body == reason
    endless = b"HTTP/1.1 500 Oh\r\n\r\n" + b"x" * 3 * REASON_LIMIT
    assert reply(endless).body == b"x" * REASON_LIMIT


@pytest.mark.parametrize(
    ("text", "received", "size"),
    [
        (PLAIN[:-4], b"012345", 10),
        (PART[:-1], b"345", 20),
        (CHUNKED[:60], b"0123", -1),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 5\r\n\r\nabc", b"", -1),
        (PLAIN[:30], b"", -1),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"", -1),
    ],
)
def test_what_had_come_of_a_broken_answer_is_kept(text: bytes, received: bytes, size: int) -> None:
    with pytest.raises(BrokenTransfer, match="the connection broke, after") as caught:
        fed(text, end=True)
    assert (caught.value.received, caught.value.size, caught.value.stalled) == (received, size, False)
    assert caught.value.version == ('"v"' if received == b"012345" else "")


@pytest.mark.parametrize("behind", [b"EXTRA", PLAIN, b"\0" * 100])
def test_what_comes_behind_the_end_is_not_part_of_the_answer_and_ends_the_connection(behind: bytes) -> None:
    answer = fed(PLAIN + behind)
    assert answer.done
    assert not answer.keep
    assert answer.reply().body == b"0123456789"


def test_more_than_the_length_is_never_taken() -> None:
    answer = fed(PLAIN[:-4], b"6789EXTRA")  # what is behind stays with the connection, which is then closed
    assert answer.reply().body == b"0123456789"


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_what_is_no_answer_is_refused(text: bytes) -> None:
    with pytest.raises(BrokenTransfer, match="what came is not an HTTP answer"):
        fed(text)


@pytest.mark.parametrize("line", [b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
def test_a_head_without_end_is_refused(line: bytes) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\n", *[line] * 70]
    with pytest.raises(BrokenTransfer, match="head has more than 64 KiB"):
        fed(*pieces)
    assert not fed(*pieces[:40]).done


def test_trailers_without_end_are_refused() -> None:
    with pytest.raises(BrokenTransfer, match="head has more than"):
        fed(CHUNKED[:-11], *[b"X: " + b"y" * KIB + b"\r\n"] * (HEAD_LIMIT // KIB + 1))


def test_small_chunks_are_no_overhead_to_complain_about() -> None:
    body = b"x" * 50_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    assert reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n").body == body
