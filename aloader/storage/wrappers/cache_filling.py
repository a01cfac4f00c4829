"""What a cache does while it is open on a loop: fetches that several wait for, and writes that nobody waits for.

*One fetch.* Whoever asks for what is being fetched waits for the same fetch. It is a task of the cache's, not of the
first one who asked: it goes on as long as anybody waits. It stays in the table until its answer has been written, so
that there is no moment in which it is found neither here nor on the disk.

*Writes* come after the answer. What they hold in memory is bounded: beyond `AHEAD` bytes answers are not kept, or, if
the cache is to be complete, further fetches wait. What is begun is finished before the cache is closed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from aloader.errors import NotOpen, ObjectChanged, StorageError
from aloader.options import MIB
from aloader.storage.base import Request, Response
from aloader.storage.hops import Hops
from aloader.storage.wrappers.cache_entry import FRONT
from aloader.storage.wrappers.cache_folder import CacheFolder, Found
from aloader.storage.wrappers.cache_plan import PAGE, Pause, pages

#: Threads that read and that write entries.
READERS: Final = 8
WRITERS: Final = 4

#: Bytes that wait to be written, at most, in one process; in whole pages, so that their number is bounded too.
AHEAD: Final = 64 * MIB

#: What a disk may be like, without anybody having made a mistake.
REFUSALS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG})


@dataclass(slots=True)
class Counts:
    """What has happened since the cache was opened on this loop."""

    hits: int = 0
    misses: int = 0
    joined: int = 0
    kept: int = 0
    left_out: int = 0
    refused: int = 0


class _Flight:
    """A fetch under way, or one whose answer is being written."""

    __slots__ = ("outdated", "task", "waiting", "written")

    def __init__(self, task: asyncio.Task[Response]) -> None:
        self.task = task
        self.waiting = 0
        self.written: asyncio.Future[bool] | None = None
        self.outdated = False


class Filling:
    """Reads and writes entries for one event loop, on which everything is called."""

    def __init__(self, folder: CacheFolder, fetch: Callable[[Request], Awaitable[Response]], complete: bool) -> None:
        self.folder = folder
        self.counts = Counts()
        self.pause = Pause()
        self.trouble: str | None = None
        self._fetch = fetch
        self._complete = complete
        self._loop = asyncio.get_running_loop()
        self._reads = Hops(READERS, "aloader-cache-read")
        self._writes = Hops(WRITERS, "aloader-cache-write")
        self._flights: dict[Request, _Flight] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._hinted: asyncio.Task[None] | None = None
        self._writing: dict[asyncio.Future[bool], int] = {}
        self._ahead = 0  # the bytes of these

    async def prepare(self) -> None:
        """Make the folder. A disk that refuses is left alone for a while; whatever else is wrong is an error."""
        try:
            await self._reads.call(lambda folder: folder.prepare(), self.folder)
        except StorageError:
            raise
        except OSError as error:
            if error.errno not in REFUSALS:
                what = "there is a file of this name" if isinstance(error, FileExistsError) else error.strerror or error
                raise StorageError(f"cannot make a cache in {str(self.folder.folder)!r}: {what}") from error
            self._refused(error)

    async def aclose(self) -> None:
        """Fetches are given up, writes are waited for, threads end."""
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self.flush()
        finally:
            await self._reads.aclose()
            await self._writes.aclose()

    async def flush(self) -> None:
        """Wait until what has been read by now is written."""
        if self._writing:
            await asyncio.wait(list(self._writing))

    # -- reading -----------------------------------------------------------------------------------------------------

    async def find(self, request: Request) -> Found | None:
        """The entry that answers a request, unless that is being fetched now."""
        if request in self._flights:
            return None
        found: Found | None = await self._reads.call(self.folder.read, request)
        return found

    async def size(self, key: str) -> int | None:
        size: int | None = await self._reads.call(self.folder.size, key)
        return size

    async def fetched(self, request: Request) -> Response:
        """The store's answer, fetched by the first who asks."""
        flight = self._flights.get(request)
        if flight is None:
            flight = self._start(request)
        else:
            self.counts.joined += 1
        flight.waiting += 1
        try:
            await asyncio.wait([flight.task])
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                flight.task.cancel()
                self._land(request, flight)
        if flight.task.cancelled():
            raise NotOpen(f"the cache was closed while {request.key!r} was being fetched", request.key)
        return flight.task.result()

    def _start(self, request: Request) -> _Flight:
        self.counts.misses += 1
        flight = _Flight(self._loop.create_task(self._fly(request)))
        self._flights[request] = flight
        self._tasks.add(flight.task)
        flight.task.add_done_callback(lambda task: self._flown(request, flight))
        return flight

    async def _fly(self, request: Request) -> Response:
        while self._complete and self._ahead > AHEAD:
            await asyncio.wait([next(iter(self._writing))])
        try:
            return await self._fetch(request)
        except ObjectChanged:
            await self.forget(request.key, but=request)  # other parts of it may be here, of the version that has gone
            raise

    def _flown(self, request: Request, flight: _Flight) -> None:
        self._tasks.discard(flight.task)
        if flight.task.cancelled() or flight.task.exception() is not None or flight.outdated:
            self._land(request, flight)
        else:
            self._keep(request, flight)

    def _land(self, request: Request, flight: _Flight) -> None:
        if self._flights.get(request) is flight:
            del self._flights[request]

    # -- writing -----------------------------------------------------------------------------------------------------

    def _keep(self, request: Request, flight: _Flight) -> None:
        response = flight.task.result()
        size = pages(len(response.data) + FRONT) * PAGE
        full = self._writing and self._ahead + size > AHEAD and not self._complete
        if full or not self.pause.may(self._loop.time()):
            self.counts.left_out += 1
            self._land(request, flight)
            return
        flight.written = self._writes.call(lambda what: self.folder.write(*what), (request, response))
        self._writing[flight.written] = size
        self._ahead += size
        flight.written.add_done_callback(lambda written: self._written(request, flight, written))

    def _written(self, request: Request, flight: _Flight, written: asyncio.Future[bool]) -> None:
        self._ahead -= self._writing.pop(written)
        self._land(request, flight)
        error = None if written.cancelled() else written.exception()
        if isinstance(error, OSError):
            self._refused(error)
        elif error is not None:
            raise error  # a fault of ours: the loop says so
        elif not written.cancelled():
            self.counts.kept += written.result()
            self.counts.left_out += not written.result()

    def _refused(self, error: OSError) -> None:
        self.counts.refused += 1
        if self.pause.refused(self._loop.time()):
            more = "; make room there, or set a lower limit=" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            self.trouble = (
                f"the cache in {str(self.folder.folder)!r} cannot be written to: {error.strerror or error}{more}. "
                "Objects are read from the store meanwhile, and writing is tried again every minute"
            )

    async def forget(self, key: str, but: Request | None = None) -> None:
        """Delete an object's entries, those that are being written too. Answers that come yet are not kept."""
        flights = [(request, flight) for request, flight in self._flights.items() if request.key == key]
        for request, flight in flights:
            flight.outdated = True
            if request != but:
                self._land(request, flight)
        if writing := [flight.written for _, flight in flights if flight.written is not None]:
            await asyncio.wait(writing)
        await self._writes.call(self.folder.forget, key)

    async def checked(self, request: Request) -> None:
        await self._writes.call(self.folder.checked, request)

    # -- what will be read --------------------------------------------------------------------------------------------

    def hint(self, keys: list[str], at_once: int, get: Callable[[Request], Awaitable[Response]]) -> None:
        """Note the order; then fetch what is missing, so many `at_once`. Instead of what an earlier hint still does."""
        if self._hinted is not None:
            self._hinted.cancel()
        self._hinted = self._loop.create_task(self._prepare_for(keys, at_once, get))
        self._tasks.add(self._hinted)
        self._hinted.add_done_callback(self._tasks.discard)

    async def _prepare_for(self, keys: list[str], at_once: int, get: Callable[[Request], Awaitable[Response]]) -> None:
        await self._writes.call(self.folder.touch, keys)
        rest = iter(keys)
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._fetch_ahead(rest, get))

    async def _fetch_ahead(self, rest: Iterator[str], get: Callable[[Request], Awaitable[Response]]) -> None:
        for key in rest:
            if await self.size(key) is None:
                try:
                    await get(Request(key))
                except StorageError:
                    pass  # whoever reads it is told
