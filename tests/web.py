"""A web server on this machine: the files of a folder, by aiohttp's own file server, which knows ranges and versions.

It has a thread and a loop of its own, so that tests may use as many loops as they like.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Self

from aiohttp import web


class FileServer:
    """`with FileServer(folder) as server:`; it counts the connections that it has accepted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = ""

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(ready),), name="file-server")
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_static("/", self._folder)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address: Any = runner.addresses[0]
        self.url = f"http://127.0.0.1:{address[1]}"
        ready.set()
        await self._over.wait()
        await runner.cleanup()
