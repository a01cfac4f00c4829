"""GETs through obstore, whose work is done in Rust by threads of its own: for who has cores to spare. Needs the extra
`obstore`.

*Fork.* Its threads are started once in a process, and a forked child has none: every request would wait for ever there,
also on a new store. So the process that was the first to use it is remembered, and its children are refused.

What it cannot do is left to the whole client, as on the lean way: keys that it would rewrite, places that it cannot be
told of. It has no limit for slow bodies (`min_rate`), and it says of failures what stands in their text.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from aloader.errors import BrokenTransfer, CredentialsExpired, StorageError, StoreUnreachable
from aloader.storage.base import Request, Response
from aloader.storage.s3.answers import asked_version, check_version, read
from aloader.storage.s3.clients import Clients
from aloader.storage.s3.errors import Asked, explained
from aloader.storage.s3.place import Place
from aloader.storage.s3.settings import Settings
from aloader.storage.wire.answer import Reply

#: Keys that it takes as they are.
PLAIN_KEY: Final = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)

#: Seconds for which it keeps credentials before it asks for them again.
KEPT: Final = 10.0

#: It bounds a whole transfer, however large; ours bounds the waits.
NO_LIMIT: Final = "24h"


class Rust:
    """The GETs of one store on one loop. `root` stands before every key."""

    moved_to: Final = None  # it follows redirects

    def __init__(self, store: Any, root: str, clients: Clients, server: str) -> None:
        self._store = store
        self._root = root
        self._clients = clients
        self._server = server

    async def fetch(self, request: Request, asked: Asked) -> Response | None:
        """The answer, or a `StorageError`; None if only the whole client can ask for this."""
        from obstore.exceptions import BaseError

        key = self._root + request.key
        if not PLAIN_KEY.fullmatch(key):
            return None
        if self._clients.credentials is not None:
            with explained(asked):  # where there are none, this says so
                await self._clients.credentials.get(datetime.now(UTC).timestamp())
        try:
            response = await self._get(key, request)
        except (BaseError, FileNotFoundError) as error:
            reply = _reply(str(error))
            if reply is None:
                raise self._unanswered(str(error), asked) from error
            if reply.status == 416 and request.start:  # an empty object? The text does not say
                return None
            try:
                return read(reply, request, asked)
            except CredentialsExpired as expired:
                raise await self._clients.renewed(expired, None) from error
        check_version(response.version, request, asked)
        return response

    async def _get(self, key: str, request: Request) -> Response:
        import obstore

        options: Any = {"if_match": version} if (version := asked_version(request)) else {}
        if request.stop is not None:
            options["range"] = (request.start, request.stop)
        elif request.start:
            options["range"] = {"offset": request.start}
        answer = await obstore.get_async(self._store, key, options=options or None)
        size, most = int(answer.meta["size"]), request.most
        data = b""
        if most is None or size <= most:
            data = bytes(await answer.bytes_async())
        else:
            async for chunk in answer.stream(min_chunk_size=most):
                data = bytes(chunk[:most])
                break
        return Response(data, size, str(answer.meta["e_tag"] or ""))

    def _unanswered(self, text: str, asked: Asked) -> StorageError:
        if "kind: Connect" in text:
            return StoreUnreachable(
                f"{asked}: nothing answers there at {self._server}: is the server up, and is its address right?",
                asked.key,
            )
        if "kind: Timeout" in text:
            return StoreUnreachable(
                f"{asked}: {self._server} went silent: if it is slow, raise read_timeout=", asked.key
            )
        return BrokenTransfer(f"{asked}: the connection broke: {text.partition(chr(10))[0]}", asked.key)


def make(place: Place, settings: Settings, root: str, clients: Clients) -> Rust | None:
    """For the running loop; None if obstore cannot be told of the place. `StorageError` in a forked child."""
    try:
        from obstore.store import S3Store
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'engine="obstore" needs obstore: pip install "aloader[obstore]"', name=error.name
        ) from None
    if _first_user() != os.getpid():
        raise StorageError(
            'engine="obstore" does not work here: this process was forked from one that had used obstore, whose '
            'threads do not come along. Use engine="lean", or open such stores only after the fork'
        )
    in_host = place.base == "/"
    if not in_host and place.base != f"/{settings.bucket}/":
        return None
    store = S3Store(
        settings.bucket,
        endpoint=str(place.origin),
        region=place.region or "us-east-1",
        virtual_hosted_style_request=in_host,
        skip_signature=settings.anonymous,
        credential_provider=None if settings.anonymous else _provider(clients),
        client_options={
            "allow_http": True,
            "timeout": NO_LIMIT,
            "connect_timeout": timedelta(seconds=settings.connect_timeout),
            "read_timeout": timedelta(seconds=settings.read_timeout),
        },
        retry_config={"max_retries": 0},
    )
    return Rust(store, root, clients, str(place.origin))


@cache
def _first_user() -> int:
    """The process that was the first to use obstore. It is remembered for as long as obstore's own threads are there,
    which are the process's too: not the state of any store."""
    return os.getpid()


def _provider(clients: Clients) -> Any:
    async def credentials() -> dict[str, Any]:
        assert clients.credentials is not None
        now = datetime.now(UTC)
        keys = clients.credentials.current(now.timestamp()) or await clients.credentials.get(now.timestamp())
        return {
            "access_key_id": keys.access,
            "secret_access_key": keys.secret,
            "token": keys.token or None,
            "expires_at": now + timedelta(seconds=KEPT),
        }

    return credentials


def _reply(text: str) -> Reply | None:
    """The server's answer, of which the text of an error tells; None if there was none."""
    status = re.search(r"status code: (\d{3})", text)
    if status is None:
        return None
    document = re.search(r"<Error>.*?</Error>", text, re.DOTALL)
    body = document[0].encode() if document else b""
    return Reply(int(status[1]), {}, body, len(body))
