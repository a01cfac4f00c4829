"""From a key to a decoded object: what all datasets of this package have in common.

*Which thread.* Reading is awaited on the loop. `decode` runs in a thread, so that it never holds up other samples'
reads; objects that arrive in one tick of the loop share one hop there. (Decoders of ours that take less time than the
hop run on the loop: see `decoders`.) It runs at any time and in any order, and so may draw no random numbers. What
draws them (a transform) belongs on the loop's thread, where it is one step.

*Large objects* of which the size is known are asked for as a range: stores can then read parts of them side by side.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from aloader.datasets.decoders import Decode, at_once, decoder
from aloader.datasets.elsewhere import ELSEWHERE
from aloader.errors import ObjectChanged
from aloader.storage import BaseStore, Request, Store, open_store
from aloader.storage.files import NOW_BYTES
from aloader.storage.hops import Hops
from aloader.storage.lifetime import PerLoop
from aloader.storage.ranges import LARGE

T = TypeVar("T")

#: What a sample is, and what `decode` makes, is the user's affair.
Transform = Callable[[Any], Any]


class ObjectReader:
    """Reads objects of a store and decodes them, while it is entered; picklable in any state, and then closed."""

    def __init__(
        self, url_or_store: str | os.PathLike[str] | Store, decode: str | Decode | None, decode_threads: int
    ) -> None:
        self._decode = decoder(decode)
        _check_threads(decode_threads)
        self.store = open_store(url_or_store)
        self._looks = _reads_as_it_says(type(self.store))
        self._decode_threads = decode_threads
        self._opened = PerLoop(self, self._open)

    def __repr__(self) -> str:
        return f"a dataset of {self.store!r}"

    async def read(self, key: str, size: int = -1) -> Any:
        """The object, decoded. Errors name the key. `size`: what the listing said, if there was one."""
        return await self.decoded(self._decode, key, size)

    async def decoded(self, decode: Decode | None, key: str, size: int = -1) -> Any:
        """The object, as this decoder has it."""
        hops = self._opened.get()
        data = await (self._large(key, size) if size > LARGE else self.store.get(key))
        if decode is None:
            return data
        try:
            return decode(data) if len(data) <= at_once(decode) else await hops.call(decode, data)
        except Exception as error:
            self._note(error, key, data)
            raise

    def at_hand(self, key: str) -> Any:
        """The object, decoded, if both can be had at once; `ELSEWHERE` if not. `NotOpen` where it is not entered."""
        self._opened.get()
        decode = self._decode
        most = NOW_BYTES if decode is None else at_once(decode)
        if not (most and self._looks and isinstance(self.store, BaseStore)):
            return ELSEWHERE
        data = self.store.get_now(key, most)
        if data is None:
            return ELSEWHERE
        try:
            return data if decode is None else decode(data)
        except Exception as error:
            self._note(error, key, data)
            raise

    def _note(self, error: Exception, key: str, data: bytes) -> None:
        error.add_note(f"while decoding {key!r} of {self.store!r} ({len(data)} bytes)")

    async def _large(self, key: str, size: int) -> bytes:
        if not isinstance(self.store, BaseStore):
            return await self.store.get(key, 0, size)
        answer = await self.store.fetch(Request(key, 0, size))
        if answer.size != size:
            raise ObjectChanged(
                f"{key!r} in {self.store!r} has {answer.size} bytes, and had {size} when it was listed: list again", key
            )
        return answer.data

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


def _check_threads(number: object) -> None:
    if not isinstance(number, int) or number < 1:
        raise ValueError(f"decode_threads must be at least 1, got {number!r}")


def _reads_as_it_says(kind: type[Any]) -> bool:
    """Whether `get_now` gives what `get` does: not in a class that has a `get` or `fetch` of its own and not this."""
    own = next((each for each in kind.__mro__ if vars(each).keys() & {"get_now", "get", "fetch"}), kind)
    return "get_now" in vars(own)


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
