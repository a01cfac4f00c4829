"""botocore's side of an open store: where the bucket is, its credentials, and a whole client for what is not a GET.

*Nothing heavy on the loop.* Importing botocore, reading its JSON and building a client take tenths of a second of
Python: all of it is done in threads. A client is built only when it is needed for the first time, inside an event loop
that lives in the thread for as long; aiobotocore binds a client to a loop with its first request, not before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aloader.errors import AccessDenied, CredentialsExpired
from aloader.storage.s3.credentials import Credentials, Given
from aloader.storage.s3.errors import UNKNOWN_KEY, Asked, explained, refused_at_once
from aloader.storage.s3.place import Place, find
from aloader.storage.s3.settings import Settings, be_patient
from aloader.storage.s3.signing import Keys


class Clients:
    """What botocore and aiobotocore have for one store on one loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._built = AsyncExitStack()
        self._loader: Any = None
        self._session: Any = None
        self._client: Any = None
        self._building = asyncio.Lock()
        self._looked = False
        self.credentials: Credentials | Given | None = None  # None: anonymous
        if settings.keys is not None:
            self.credentials = Given(settings.keys)
        elif not settings.anonymous:
            self.credentials = Credentials(self._look)

    async def find(self, settings: Settings, asked: Asked) -> Place | None:
        """Where the bucket is, if it can be reached the lean way."""
        await asyncio.to_thread(_import)
        with explained(asked):
            place, self._loader = await asyncio.to_thread(_place, settings, self._loader)
        return place

    async def aclose(self) -> None:
        await self._built.aclose()

    @asynccontextmanager
    async def calling(self, asked: Asked) -> AsyncIterator[Any]:
        """aiobotocore's client for a call, whose failures come out as a `StorageError`."""
        with explained(asked):
            client = await self._get_client()
        used = self.credentials.current(time.time()) if self.credentials is not None else None
        try:
            with explained(asked):
                yield client
        except CredentialsExpired as error:
            raise await self.renewed(error, used) from error.__cause__

    async def renewed(self, error: CredentialsExpired, refused: Keys | None) -> AccessDenied:
        """What to raise after a refusal for old credentials: others are looked for first, where there may be any. A key
        that the server does not know is a refusal like others if nothing but this key is found."""
        final = AccessDenied(str(error), error.key, status=error.status)
        if not isinstance(self.credentials, Credentials):
            return final
        try:
            if not await self.credentials.renew(refused, time.time()) and str(error).endswith(f"[{UNKNOWN_KEY}]"):
                return final
        except Exception as failure:  # said when they are asked for next; this request was refused for the old ones
            error.add_note(f"looking for new credentials failed: {type(failure).__name__}")
        return error

    async def _get_client(self) -> Any:
        """The client, which the first caller builds."""
        if self._client is None:
            async with self._building:
                if self._client is None:
                    self._client = await self._build()
        return self._client

    async def _build(self) -> Any:
        session = await self._get_session()
        if isinstance(self.credentials, Credentials):
            await session.get_credentials()  # they may take connections: on this loop, and then they are known
        context, client = await asyncio.to_thread(_client, session, self._settings)
        self._built.push_async_exit(context)
        client.meta.events.register_first("needs-retry.s3", refused_at_once)
        return client

    async def _get_session(self) -> Any:
        if self._session is None:
            self._session = await asyncio.to_thread(_session, self._loader)
        return self._session

    async def _look(self) -> Any:
        """Through the chain of places where credentials may be. Sessions remember what they have found: so from the
        second time on with a new one, and the next client has it too. The old client is kept until the store is closed,
        since requests may be under way on it."""
        if self._looked:
            self._session, self._client = await asyncio.to_thread(_session, self._loader), None
        session = await self._get_session()
        self._looked = True
        return await session.get_credentials()


# In threads.


def _import() -> None:
    """What will be needed, here where it holds nobody up."""
    try:
        import aiobotocore.session  # noqa: F401
        import httptools  # noqa: F401
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in ("aiobotocore", "httptools"):
            raise
        raise ModuleNotFoundError(f'S3 stores need {name}: pip install "aloader[s3]"', name=error.name) from None


def _place(settings: Settings, loader: Any) -> tuple[Place | None, Any]:
    """The place, and what has read botocore's JSON for it (once: 12 MB)."""
    from botocore.session import get_session

    session = get_session()
    if loader is not None:
        session.register_component("data_loader", loader)
    return find(session, settings), session.get_component("data_loader")


def _session(loader: Any) -> Any:
    """A session that shares the JSON that has been read, and has read the configuration files."""
    from aiobotocore.session import get_session

    session = get_session()
    session.register_component("data_loader", loader)
    be_patient(session)
    session.get_component("credential_provider")
    return session


def _client(session: Any, settings: Settings) -> tuple[Any, Any]:
    """A client, and the context by which it is closed."""
    from aiobotocore.config import AioConfig

    keys = settings.keys
    context = session.create_client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name=settings.region_for(session),
        aws_access_key_id=keys.access if keys else None,
        aws_secret_access_key=keys.secret if keys else None,
        aws_session_token=(keys.token or None) if keys else None,
        config=AioConfig(**settings.client_config(session)),
    )
    return context, asyncio.run(context.__aenter__())
