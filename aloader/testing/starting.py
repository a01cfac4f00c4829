"""Servers that are started in a thread while a loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def started(start: Callable[[], T], end: Callable[[], object]) -> T:
    """What `start` gives, called in a thread. Who is cancelled meanwhile waits for it, and for `end`: what has been
    started is nobody's."""
    starting = asyncio.create_task(asyncio.to_thread(start))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        if starting.exception() is None:
            await asyncio.to_thread(end)
        raise
