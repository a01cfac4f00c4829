"""Blocking calls in threads, where all calls of one tick of the event loop share one hop into a thread.

A hop costs about as much as reading 100 KiB from the page cache: one for each file reads 5,000 to 9,500 small files a
second, one for each group 53,600. So calls are gathered until the loop has run everything that is ready now, and go
over together, as one queue that a thread works off.

*Slow calls.* A group must not become a line in which 64 files of a slow disk are read one after the other. The thread
that is at work looks at the clock between two calls: if `SLOW` seconds are over, it hands back what is done, and if
there is a thread to spare, that one joins in on the same queue (and may call another one in turn). So threads double
with every slow call; where all calls are slow, as many as there are may join in at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aloader.errors import NotOpen
from aloader.storage.luck import Luck

#: Seconds: well over what a group of small files takes from the page cache, well under what a disk or NFS takes.
SLOW: Final = 0.002


class Hops:
    """Threads for one event loop. Everything is called on the loop, but `_work`."""

    def __init__(self, threads: int, name: str, joining: int = 1) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads, self._joining = threads, joining
        self._gathered: deque[_Call] = deque()
        self.luck = Luck()  # of those who try to do without
        self._groups: dict[asyncio.Future[None], deque[_Call]] = {}

    def call(self, function: Callable[[Any], Any], argument: Any) -> asyncio.Future[Any]:
        """`function(argument)` in a thread, together with all that is called in this tick. Await the result."""
        if not self._gathered:
            self._loop.call_soon(self._send)
        future = self._loop.create_future()
        self._gathered.append(_Call(function, argument, future))
        return future

    async def aclose(self) -> None:
        """Calls that wait fail with `NotOpen`, those under way are waited for, the threads end."""
        for calls in (self._gathered, *self._groups.values()):
            while calls:  # a thread takes from the same queue: what it got, it does
                try:
                    call = calls.popleft()
                except IndexError:
                    break
                call.error = NotOpen("closed while this was waiting for its turn")
                call.deliver()
        if self._groups:
            await asyncio.wait(self._groups)
        self._pool.shutdown()

    def _send(self) -> None:
        calls, self._gathered = self._gathered, deque()
        if calls:
            self._start(calls)

    def _start(self, calls: deque[_Call]) -> None:
        group = self._loop.run_in_executor(self._pool, self._work, calls)
        self._groups[group] = calls
        group.add_done_callback(self._groups.pop)

    def _work(self, calls: deque[_Call]) -> None:
        """In a thread: works off the queue, which other threads may be taking from too."""
        done: list[_Call] = []
        began = time.monotonic()
        while True:
            try:
                call = calls.popleft()
            except IndexError:
                break
            call.run()
            done.append(call)
            if calls and time.monotonic() - began > SLOW:
                self._loop.call_soon_threadsafe(self._deliver, done, calls)
                done, began = [], time.monotonic()
        self._loop.call_soon_threadsafe(self._deliver, done, None)

    def _deliver(self, done: list[_Call], rest: deque[_Call] | None) -> None:
        for call in done:
            call.deliver()
        if rest:
            for _ in range(min(self._joining, len(rest), self._threads - len(self._groups))):
                self._start(rest)


class _Call:
    __slots__ = ("argument", "error", "function", "future", "result")

    def __init__(self, function: Callable[[Any], Any], argument: Any, future: asyncio.Future[Any]) -> None:
        self.function = function
        self.argument = argument
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        if self.future.cancelled():  # a peek from another thread: worth it, since a dropped read may be a slow one
            return
        try:
            self.result = self.function(self.argument)
        except StopIteration as error:  # a future refuses it, and whoever awaits would wait for ever
            self.error = RuntimeError(f"{self.function!r} raised StopIteration")
            self.error.__cause__ = error
        except BaseException as error:
            self.error = error

    def deliver(self) -> None:
        if self.future.done():  # cancelled meanwhile
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)
