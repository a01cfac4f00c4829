"""One HTTP answer, from its first byte to its last. Bytes go in, a `Reply` comes out; no sockets and no clock here.

*Syntax* is the business of llhttp, through `httptools`: heads, chunks, and which answers end how.

*Large bodies of known length* do not pass through the parser. Once it has said how long the body is, memory of that
size is laid out, and the connection receives straight into it (`room`, `filled`). The memory belongs to a `BytesIO`,
which in the end gives it away as `bytes` without a copy, provided that no view of it is left: so `reply` must not be
called from inside the callback by which the transport reports the last byte, since the transport holds a view there.

Heads and all else that is not body are limited; a body never grows beyond its length, nor beyond `most`.
"""

from __future__ import annotations

import io
import re
import sys
from typing import Any, Final, NamedTuple

from aloader.errors import BrokenTransfer
from aloader.options import KIB

#: Bytes of a head. What chunks and trailers add to a body may be this much more, and eight bytes for each of its own.
HEAD_LIMIT: Final = 64 * KIB
OVERHEAD: Final = 8

#: Bytes of a body that is not an object's, but says why there is none.
REASON_LIMIT: Final = 64 * KIB

Headers = dict[bytes, bytes]


class Reply(NamedTuple):
    """A whole answer. Names of headers are in lower case; `length` is the body's, which is longer than what is here
    if it was cut at `most`, and -1 if it was cut and the server had not said how long it is."""

    status: int
    headers: Headers
    body: bytes
    length: int


class BrokenAnswer(BrokenTransfer):
    """`first` is where in the object `received` begins, as the server says: -1 if it does not. It may be elsewhere than
    where it was asked for."""

    first = -1


class Answer:
    """An answer that is being received."""

    __slots__ = (
        "__weakref__", "_at", "_interim", "_memory", "_most", "_parser", "_pieces", "_view", "_wanted", "done", "fed",
        "headed", "headers", "keep", "length", "status",
    )  # fmt: skip

    def __init__(self, parser: type[Any], most: int | None = None) -> None:
        """`parser` is `httptools.HttpResponseParser`."""
        self.fed = 0  # bytes that have come
        self.headed = False  # its head is complete
        self.done = False
        self.keep = False  # the connection can be used again
        self.status = 0
        self.headers: Headers = {}
        self.length: int | None = None
        self._most = most
        self._interim = False
        self._pieces: list[bytes] = []
        self._at = 0  # bytes of the body that are here
        self._wanted: int | None = None
        self._memory: io.BytesIO | None = None
        self._view: memoryview | None = None
        self._parser: Any = parser(self)

    def feed(self, data: memoryview) -> None:
        """More bytes, while `direct` is false. `BrokenTransfer` if this is no answer."""
        self.fed += len(data)
        try:
            self._parser.feed_data(data)
        except Exception as error:  # llhttp's, or what it met in a callback
            if not self.done:
                raise self.broken(f"what came is not an HTTP answer: {error.__context__ or error}") from error
            self.keep = False  # something behind the end of the answer
        if self.done:
            self._parser = None  # they refer to each other
        elif self.fed - self._at > HEAD_LIMIT + OVERHEAD * self._at:
            raise self.broken(f"the answer's head has more than {HEAD_LIMIT >> 10} KiB")
        elif self._wanted is not None:
            self._lay_out(self._wanted)

    @property
    def direct(self) -> bool:
        """Whether the rest of the body is to be received into `room`."""
        return self._view is not None

    def room(self) -> memoryview:
        """Where the next bytes of the body belong."""
        assert self._view is not None
        return self._view[self._at :]

    def filled(self, count: int) -> None:
        """So many bytes have been received into `room`."""
        self.fed += count
        self._at += count
        if self._at == self._wanted:
            self._view = None
            self.done = True

    def end(self) -> None:
        """The server has closed the connection. `BrokenTransfer` unless the answer was to end so."""
        if not self.done:
            chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
            if not self.headed or chunked or self._wanted is not None:
                raise self.broken("the connection broke")
            self.done = True

    def reply(self) -> Reply:
        """The answer, once it is done."""
        body = self._memory.getvalue() if self._memory is not None else self._joined()
        length = self.length
        if length is None:
            length = -1 if len(body) == self._most else len(body)
        return Reply(self.status, self.headers, body, length)

    def broken(self, why: str, *, stalled: bool = False) -> BrokenAnswer:
        """What to raise if it will never be done: with what has come of the body, if that is an object's."""
        self._parser = None
        here = b""
        if self.status in (200, 206):
            here = bytes(self._view[: self._at]) if self._view is not None else self._joined()
        error = BrokenAnswer(
            f"{why}, after {self._at:,} of {'?' if self.length is None else format(self.length, ',')} bytes",
            status=self.status,
            received=here,
            version=self.headers.get(b"etag", b"").decode("latin-1"),
            size=whole_size(self.status, self.headers),
            stalled=stalled,
        )
        error.first = first_byte(self.status, self.headers)
        return error

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.done:
            raise ValueError("an answer that nobody has asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.strip()
        self.headers[name] = b", ".join((self.headers[name], value)) if name in self.headers else value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200 and self.status != 101:  # "continue", "early hints"
            self._interim = True
            return
        self.headed = True
        self.keep = self._parser.should_keep_alive()
        if self.status >= 300:
            self._most = REASON_LIMIT
        length = self.headers.get(b"content-length")
        if length is not None and self.status not in (204, 304):
            self.length = self._wanted = int(length)
            if self.length > sys.maxsize:
                raise ValueError("Content-Length overflow")
            if self._most is not None and self.length > self._most:
                self._wanted, self.keep = self._most, False

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)
        self._at += len(data)
        limit = self._most if self._wanted is None else self._wanted
        if limit is not None and self._at >= limit:
            if self._at > limit or self._wanted is None:
                self.keep = False
            self.done = True

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            self.headers.clear()
        elif self.headed:
            self.done = True

    # In here.

    def _joined(self) -> bytes:
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        limit = self._most if self._wanted is None else self._wanted
        return body if limit is None or len(body) <= limit else body[:limit]

    def _lay_out(self, size: int) -> None:
        """Memory for a body of this size, with what has come of it. Zeroed by the allocator, which for large ones
        takes pages that are zero anyway; nothing in Python gives memory that is not."""
        self._memory = io.BytesIO(bytes(size))
        self._view = self._memory.getbuffer()
        self._view[: self._at] = self._joined()
        self._pieces.clear()
        self._parser = None


def first_byte(status: int, headers: Headers) -> int:
    """Where in the object the body of an answer begins; -1 if it does not say."""
    if status == 206:
        found = re.match(rb"bytes (\d{1,19})-", headers.get(b"content-range", b""))
        return int(found[1]) if found else -1
    return 0 if status == 200 else -1


def whole_size(status: int, headers: Headers) -> int:
    """The size of the object that an answer is about; -1 if it does not say."""
    if status == 206:
        total = headers.get(b"content-range", b"").rpartition(b"/")[2]
        return int(total) if total.isdigit() and len(total) < 20 else -1
    length = headers.get(b"content-length", b"")
    return int(length) if status == 200 and length.isdigit() else -1
