"""Large reads in parts, side by side: one connection gives some 50 to 90 MB/s, and a machine's network many times that.

Where the range is known, all parts are asked for at once. Where it is not, since only the answer tells how large the
object is, the first part is asked for alone, and most objects are over with it. All parts must be of one version: those
that are asked for after the first answer ask for its version, and the others' answers are compared.

A store that turns out to send everything from its front (a web server that knows no ranges) is read at once: in parts,
it would send half of the object with each of them.

It stands outside of `Retrying`: a part that breaks is resumed alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from io import BytesIO
from typing import Final

from aloader.errors import BadRange, Corrupted, ObjectChanged
from aloader.storage.base import NO_DIGESTS, Request, Response, Store, together
from aloader.storage.ranges import LARGE, PART
from aloader.storage.wrappers.wrapper import Wrapper, ask, from_front, innermost

#: Parts of one read side by side. Several reads may be in flight, and `Limited` bounds them all.
AT_ONCE: Final = 8


class Parted(Wrapper):
    """A store that reads what is larger than `large` bytes in parts of at most `part` bytes, `at_once` of them side by
    side.

    If the object is replaced while it is read, it is read from the front, once; then `ObjectChanged` is raised. The
    bytes are kept once, and beside them the parts that are on their way.
    """

    def __init__(self, store: Store, large: int = LARGE, part: int = PART, *, at_once: int = AT_ONCE) -> None:
        super().__init__(store)
        if not 0 < part <= large:
            raise ValueError(f"0 < part <= large, in bytes: got part={part!r}, large={large!r}")
        if at_once < 1:
            raise ValueError(f"at_once= is a number of parts, at least 1: got {at_once!r}")
        self.large = large
        self.part = part
        self.at_once = at_once

    async def fetch(self, request: Request) -> Response:
        if self.from_front or request.end(sys.maxsize) - request.start <= self.large:
            return await ask(self.store, request)
        try:
            return await self._read(request)
        except ObjectChanged:
            if request.version:
                raise
        return await self._read(request)

    async def _read(self, request: Request) -> Response:
        try:
            return await self._read_parts(request)
        except _FromFront:
            pass  # and what had come is let go
        return await ask(self.store, request)

    async def _read_parts(self, request: Request) -> Response:
        reading = _Reading(self.store, request)
        if request.stop is not None and request.most is None:
            return await reading.rest(request.start, request.stop, self.part, self.at_once)
        first = await ask(self.store, Request(request.key, request.start, request.stop, request.version, self.part))
        end = request.end(first.size)
        at = request.start + len(first.data)
        if at >= end:
            return first
        if self.from_front:
            raise _FromFront
        reading.take(request.start, first)
        return await reading.rest(at, end, self.part, self.at_once)


class _FromFront(Exception):  # noqa: N818
    """It turned out that each part comes with all that is before it."""


class _Reading:
    """One large read on its way."""

    def __init__(self, store: Store, request: Request) -> None:
        self._store = store
        self._request = request
        self._target = BytesIO()  # one that is full gives its bytes away without a copy
        self._version = request.version
        self._size = -1
        self._digests: Mapping[str, str] = NO_DIGESTS
        self._behind: list[tuple[int, BadRange]] = []

    async def rest(self, begin: int, end: int, part: int, at_once: int) -> Response:
        """All the parts from `begin` to `end`, or to the end of the object."""
        count = -(-(end - begin) // part)
        step = -(-(end - begin) // count)
        starts = iter(range(begin, end, step))

        async def some() -> None:
            for start in starts:
                if 0 <= self._size <= start:
                    return
                await self._fetch(start, min(start + step, end))
                if count > 1 and from_front(self._store):
                    raise _FromFront

        await together(some() for _ in range(min(at_once, count)))
        for start, error in self._behind:
            if start < self._size or self._size < 0:
                raise error
        return Response(self._target.getvalue(), self._size, self._version, self._digests)

    async def _fetch(self, start: int, stop: int) -> None:
        try:
            answer = await self._ask(start, stop)
            if _is_short(answer, start, stop):  # the target would have a hole there
                answer = await self._ask(start, stop)
        except BadRange as error:
            if start == self._request.start:
                raise
            self._behind.append((start, error))  # the object may end before: another part tells
            return
        if _is_short(answer, start, stop):
            raise Corrupted(
                f"of {self._request.key!r} in {innermost(self._store)!r} came, twice, {len(answer.data)} bytes where "
                f"{start} to {stop} were asked for, and the object has {answer.size}",
                self._request.key,
                attempts=2,
            )
        self.take(start, answer)

    async def _ask(self, start: int, stop: int) -> Response:
        key = self._request.key
        answer = await ask(self._store, Request(key, start, stop, self._version))
        if self._size >= 0 and (answer.size, answer.version) != (self._size, self._version):
            raise ObjectChanged(f"{key!r} in {innermost(self._store)!r} was replaced while it was read in parts", key)
        return answer

    def take(self, start: int, answer: Response) -> None:
        """One part has come."""
        if self._size < 0:
            self._size, self._version, self._digests = answer.size, answer.version, answer.digests
            length = self._request.end(answer.size) - self._request.start
            if length > 0:
                self._target.seek(length - 1)
                self._target.write(b"\0")  # grow once: else the bytes are moved with every part
        self._target.seek(start - self._request.start)
        self._target.write(answer.data)


def _is_short(answer: Response, start: int, stop: int) -> bool:
    """Or too long. An object that is empty has all ranges, and they are empty."""
    return len(answer.data) != max(0, min(stop, answer.size) - start)
