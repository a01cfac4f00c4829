"""Work that would hold up an event loop, in a thread of its own.

Not in the loop's default executor: that is the user's, and may be full of the user's work.
"""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from aloader.channel.leases import Kept

T = TypeVar("T")

_QUICK: Final = 8 << 20  # bytes that are unmapped in well under a millisecond


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs here, or an error that says what to do without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no asyncio event loop is running here, and `async for` and `async with` of a loader need one: use them in "
            "a coroutine that asyncio runs (with anyio: its asyncio backend), or plain `for` and `with`"
        ) from None


async def in_thread(function: Callable[[], T]) -> T:
    """Run `function` in a new thread. A cancelled caller leaves it to end by itself."""
    loop = running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:
            error = raised
            if isinstance(raised, StopIteration):  # a future cannot hold it, and would be waited for for ever
                error = RuntimeError("StopIteration was raised in a thread")
                error.__cause__ = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop has been closed: nobody waits

    threading.Thread(target=run, name="aloader-work").start()  # no daemon: torch must not be torn from a thread
    return await future


def dispose(memories: list[mmap.mmap], then: Callable[[], None] | None = None) -> None:
    """Unmap memory, in a thread if it is much (0.4 s per GiB where this is the last mapping) or may be page-locked
    (whose end waits for whatever the driver is at), and then say so."""

    def run() -> None:
        for memory in memories:
            try:
                memory.close()
            except BufferError:
                pass  # somebody still looks at it: it goes with the last view
        if then is not None:
            then()

    if sum(map(len, memories)) <= _QUICK and not any(isinstance(memory, Kept) for memory in memories):
        run()
        return
    try:
        threading.Thread(target=run, name="aloader-unmap", daemon=False).start()  # also from a daemon: a driver is told
    except RuntimeError:  # no thread can be had, as when the interpreter ends: then here
        run()
