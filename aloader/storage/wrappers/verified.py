"""Answers are compared with what they should be: their length, and what is known of the object. What is compared, and
how, stands in `digests`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Literal

from aloader.errors import Corrupted
from aloader.options import MIB
from aloader.storage.base import Request, Response, Store
from aloader.storage.wrappers.digests import CHECKS, computer, expected_of, parse, wrong_digest, wrong_length
from aloader.storage.wrappers.wrapper import Wrapper, ask

Check = Literal["length", "etag", "crc", "all"]

#: More bytes than these are compared in a thread: they take more than a millisecond.
IN_THREAD: Final = MIB


class Verified(Wrapper):
    """A store whose answers are compared with what they should be; what is not is fetched once more, and then
    `Corrupted` is raised, which names the key, what was expected and what came.

    `check` says what is compared, of that which the store itself says:

    - `"length"`: the number of bytes, of every answer
    - `"etag"`: also the MD5 of whole objects, where the store gives it (Amazon's ETag of an upload in one piece)
    - `"crc"`: also the CRC32 and CRC32C of whole objects, of those that were written with one
    - `"all"`: whatever there is

    CRC32C needs `google_crc32c` or `awscrt`, and is not compared where neither is installed.

    `digests` are what you know yourself, by key: `"sha256:…"`, `"md5:…"`, `"sha1:…"` or `"crc32:…"`, in hex. They are
    compared whenever the whole object is asked for, whatever `check` says. An object that has none is not refused.

    Of a range, only the length can be compared: digests are of whole objects.
    """

    def __init__(self, store: Store, check: Check = "length", digests: Mapping[str, str] | None = None) -> None:
        super().__init__(store)
        if check not in CHECKS:
            raise ValueError(f"check= is one of {', '.join(map(repr, CHECKS))}: got {check!r}")
        self.check = check
        self.digests = {key: parse(digest) for key, digest in (digests or {}).items()}
        for key, (name, _) in self.digests.items():
            if computer(name) is None:
                raise ValueError(f"the {name} of {key!r} cannot be compared here: install google_crc32c")

    async def fetch(self, request: Request) -> Response:
        answer, wrong = await self._compared(request)
        if not wrong:
            return answer
        answer, still = await self._compared(request)
        if not still:
            return answer
        raise Corrupted(
            f"{request.key!r} in {self.store!r} came damaged, twice: {still}"
            f"{'' if still == wrong else f' (the first time: {wrong})'}",
            request.key,
            attempts=2,
        )

    async def _compared(self, request: Request) -> tuple[Response, str]:
        """The answer, and what is wrong with it."""
        try:
            answer = await ask(self.store, request)
        except Corrupted as error:  # something inside has looked too
            return Response(b"", 0), str(error)
        return answer, await self._wrong(request, answer)

    async def _wrong(self, request: Request, answer: Response) -> str:
        wrong = wrong_length(request, answer)
        if wrong or request.start > 0 or len(answer.data) != answer.size:
            return wrong
        expected = list(expected_of(answer, self.check))
        if request.key in self.digests:
            expected.insert(0, self.digests[request.key])
        if not expected:
            return ""
        if len(answer.data) > IN_THREAD:
            return await asyncio.to_thread(wrong_digest, answer.data, expected)
        return wrong_digest(answer.data, expected)
