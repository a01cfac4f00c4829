"""What a store holds while it is open on one loop: who makes its GETs, and aiobotocore for all else.

*Another region.* Where the bucket turns out to be in another region than was thought, its place is looked for once
more; if that leads nowhere new, aiobotocore makes the GETs from then on, and its errors say what is wrong.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import replace

from aloader.storage.base import Request, Response
from aloader.storage.s3 import fallback, rust
from aloader.storage.s3.clients import Clients
from aloader.storage.s3.errors import Asked
from aloader.storage.s3.lean import Lean
from aloader.storage.s3.place import Place
from aloader.storage.s3.rust import Rust
from aloader.storage.s3.settings import Settings
from aloader.storage.wire.pool import Pool
from aloader.storage.wire.watch import Patience


class Opened:
    """`root` stands before every key."""

    def __init__(self, settings: Settings, root: str) -> None:
        self._settings = settings
        self._root = root
        self._stack = AsyncExitStack()
        self._engine: Lean | Rust | None = None  # None: aiobotocore
        self._place: Place | None = None
        self._moving = asyncio.Lock()
        self._moved = False
        self.clients = Clients(settings)
        self._stack.push_async_callback(self.clients.aclose)

    async def open(self, asked: Asked) -> None:
        await self._go_to(await self.clients.find(self._settings, asked))

    async def aclose(self) -> None:
        await self._stack.aclose()

    async def fetch(self, request: Request, asked: Asked) -> Response:
        """The answer to a request, or a `StorageError`."""
        engine = self._engine
        if engine is not None:
            response = await engine.fetch(request, asked)
            if response is not None:
                return response
            if engine.moved_to is not None:
                await self._move(engine, engine.moved_to, asked)
                return await self.fetch(request, asked)
        return await fallback.fetch(self.clients, self._settings.bucket, self._root + request.key, request, asked)

    async def _move(self, engine: Lean | Rust, region: str, asked: Asked) -> None:
        async with self._moving:
            if self._engine is not engine:
                return  # another task has done it
            place = None
            if region and not self._moved:  # once: two regions may each name the other
                place = await self.clients.find(replace(self._settings, region=region), asked)
            self._moved = True
            await self._go_to(place if place != self._place else None)

    async def _go_to(self, place: Place | None) -> None:
        """GETs go to this place now. Those under way at the old one may end there."""
        self._place = place
        settings = self._settings
        if place is None or settings.engine == "botocore":
            self._engine = None
        elif settings.engine == "obstore":
            self._engine = rust.make(place, settings, self._root, self.clients)
        else:
            pool = Pool(
                place.origin,
                max_connections=settings.max_connections,
                connect_timeout=settings.connect_timeout,
                patience=Patience(settings.read_timeout, settings.min_rate, settings.stall_after),
                ssl=await _trust(place),
            )
            self._stack.push_async_callback(pool.aclose)
            self._engine = Lean(place, self._root, pool, self.clients)


async def _trust(place: Place) -> ssl.SSLContext | None:
    if place.origin.scheme != "https":
        return None
    return await asyncio.to_thread(ssl.create_default_context, cafile=place.certificates)  # it reads a large file
