"""Bytes into an `Answer`, as a connection puts them there."""

from __future__ import annotations

from httptools import HttpResponseParser

from aloader.storage.wire.answer import Answer, Reply


def fed(*pieces: bytes, most: int | None = None, end: bool = False) -> Answer:
    """The answer after these pieces have come, and, with `end`, the end of the connection."""
    answer = Answer(HttpResponseParser, most)
    for piece in pieces:
        while piece and not answer.done:
            if answer.direct:
                room = answer.room()
                count = min(len(room), len(piece))
                room[:count] = piece[:count]
                answer.filled(count)
                piece = piece[count:]
            else:
                answer.feed(memoryview(piece))
                piece = b""
    if end:
        answer.end()
    return answer


def reply(*pieces: bytes, most: int | None = None, end: bool = False) -> Reply:
    """The whole answer that these pieces are."""
    answer = fed(*pieces, most=most, end=end)
    assert answer.done
    return answer.reply()
