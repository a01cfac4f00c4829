"""From a key to a decoded object, and from a store to its keys: what all datasets of this package have in common.

*Which thread.* Reading is awaited on the loop. `decode` runs in a thread, so that it never holds up other samples'
reads; objects that arrive in one tick of the loop share one hop there. It runs at any time and in any order, and so may
draw no random numbers. What draws them (a transform) belongs on the loop's thread, where it is one step.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from aloader.storage import Store, open_store
from aloader.storage.hops import Hops
from aloader.storage.lifetime import PerLoop

T = TypeVar("T")

#: What a sample is, and what `decode` makes, is the user's affair.
Decode = Callable[[bytes], Any]
Transform = Callable[[Any], Any]


class ObjectReader:
    """Reads objects of a store and decodes them, while it is entered; picklable in any state, and then closed."""

    def __init__(
        self, url_or_store: str | os.PathLike[str] | Store, decode: Decode | None, decode_threads: int
    ) -> None:
        check_callable("decode", decode)
        if decode_threads < 1:
            raise ValueError(f"decode_threads must be at least 1, got {decode_threads!r}")
        self.store = open_store(url_or_store)
        self._decode = decode
        self._decode_threads = decode_threads
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        return f"a dataset of {self.store!r}"

    async def read(self, key: str) -> Any:
        """The object, decoded. Errors name the key."""
        hops = self._opened.get()
        data = await self.store.get(key)
        if self._decode is None:
            return data
        try:
            return await hops.call(self._decode, data)
        except Exception as error:
            error.add_note(f"while decoding {key!r} of {self.store!r} ({len(data)} bytes)")
            raise

    def apply(self, transform: Transform | None, value: Any, key: str) -> Any:
        """The transformed value. On the loop's thread, in one step: no other sample draws random numbers in between."""
        if transform is None:
            return value
        try:
            return transform(value)
        except Exception as error:
            error.add_note(f"while transforming {key!r} of {self.store!r}")
            raise

    async def enter(self) -> None:
        await self._opened.enter()

    async def leave(self) -> None:
        await self._opened.leave()

    async def _open(self, stack: AsyncExitStack) -> Hops:
        await stack.enter_async_context(self.store)
        hops = Hops(self._decode_threads, "aloader-decode")  # starts no thread before there is something to decode
        stack.push_async_callback(hops.aclose)
        return hops


def keys_of(store: Store) -> list[str]:
    """All keys, sorted. Blocks until they are listed, whether or not an event loop runs in the calling thread."""

    async def listed() -> list[str]:
        async with store:
            return sorted([info.key async for info in store.list()])

    return run_apart(listed())


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs on a loop of its own in another thread. An interrupt here cancels it."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await work

    with ThreadPoolExecutor(1, "aloader-list") as thread:
        result = thread.submit(asyncio.run, main())
        try:
            return result.result()
        except BaseException:
            for loop, task in running:
                if not result.done():
                    loop.call_soon_threadsafe(task.cancel)
            raise


def check_callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, got {value!r}")
