"""GETs the lean way: signed here, sent over connections of our own. A twentieth of the CPU that a whole client takes.

Nothing is tried again here: that is for who knows how often and when.
"""

from __future__ import annotations

import time
from typing import Final

from aloader.errors import BrokenTransfer, CredentialsExpired, StoreUnreachable
from aloader.storage.base import Request, Response
from aloader.storage.s3.answers import ceiling, conditions, is_moved, read, said_by
from aloader.storage.s3.clients import Clients
from aloader.storage.s3.errors import Asked, explained, unanswered
from aloader.storage.s3.place import Place
from aloader.storage.s3.signing import CHECKSUM_MODE, Keys, Signer, encoded
from aloader.storage.wire.pool import Pool

#: What every request says of who sends it.
AGENT: Final = "User-Agent: aloader\r\nAccept-Encoding: identity\r\n"


class Lean:
    """The GETs of one store on one loop. `root` stands before every key."""

    def __init__(self, place: Place, root: str, pool: Pool, clients: Clients) -> None:
        self._base = place.base + encoded(root)
        self._pool = pool
        self._signer = Signer(place.origin.authority, place.region, place.checksums)
        self._clients = clients
        self._credentials = clients.credentials
        self._unsigned = CHECKSUM_MODE if place.checksums else ""
        self.moved_to: str | None = None  # a region ("": unknown): the server says that the bucket is not here

    async def fetch(self, request: Request, asked: Asked) -> Response | None:
        """The answer, or a `StorageError`; None if only the whole client can make sense of what the server said."""
        path = self._base + encoded(request.key)
        keys, signature = None, self._unsigned
        if self._credentials is not None:
            now = time.time()
            keys = self._credentials.current(now) or await self._ask_for_keys(now, asked)
            signature = self._signer.headers(path, keys, now)
        try:
            reply = await self._pool.get(path, f"{AGENT}{signature}{conditions(request)}", ceiling(request))
        except (BrokenTransfer, StoreUnreachable) as error:
            raise unanswered(error, asked, request) from error
        if is_moved(reply):
            self.moved_to = said_by(reply).region
        try:
            return read(reply, request, asked)
        except CredentialsExpired as error:
            raise await self._clients.renewed(error, keys) from None

    async def _ask_for_keys(self, now: float, asked: Asked) -> Keys:
        assert self._credentials is not None
        with explained(asked):
            return await self._credentials.get(now)
