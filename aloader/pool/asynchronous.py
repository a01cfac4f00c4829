"""`async for`: the driver on an event loop. A class, not an async generator: `break` would close nothing then.

One root task owns what runs in the background (starting the workers); everything else are callbacks of the loop. A
failure of either is raised from `__anext__`, never into code of the user's.

`__anext__` waits for a wake-up that carries nothing, and takes the batch in the very step that returns it: whenever it
is cancelled, no batch is under way in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from aloader import options
from aloader.device.profiling import INLINE, PROCESSES, profiling, record_function
from aloader.errors import IN_A_FORK, LoaderBusy, LoaderClosed
from aloader.pool.privates import WorkerProcess, shut_down, workers_of
from aloader.pool.pump import Pump
from aloader.pool.run import Run
from aloader.pool.threads import in_thread
from aloader.pool.vigil import Caught


class LoopWatcher:
    """Readers and writers of an event loop, and a wake-up after each of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiter: asyncio.Future[None] | None = None
        self.failure: BaseException | None = None

    def reading(self, fd: int, callback: Callable[[], None] | None) -> None:
        """Call back when `fd` can be read."""
        if self.loop.is_closed():
            return  # it has dropped its readers
        if callback is None:
            self.loop.remove_reader(fd)
        else:
            self.loop.add_reader(fd, self.guarded, callback)

    def writing(self, fd: int, callback: Callable[[], None] | None) -> None:
        """Call back when `fd` can be written to."""
        if self.loop.is_closed():
            return
        if callback is None:
            self.loop.remove_writer(fd)
        else:
            self.loop.add_writer(fd, self.guarded, callback)

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def guarded(self, callback: Callable[[], None]) -> None:
        """Call back, let errors reach whoever waits, and let him look again."""
        try:
            callback()
        except Exception as error:
            self.failure = error
        self.wake()


class AsyncBatches:
    """The iterator of `async for`. Made on a running loop; `owner` is kept alive by it."""

    def __init__(self, run: Run, owner: object) -> None:
        self._owner = owner
        self.run = run
        loop = asyncio.get_running_loop()
        self._watcher = LoopWatcher(loop)
        self._root: asyncio.Task[None] | None = None
        self._since = time.perf_counter()
        self._passed = self._since  # when the consumer last let the loop run
        self._finalizer = weakref.finalize(self, _abandon, run, loop)
        run.on_end = partial(_let_go, self._finalizer, self._watcher)
        if run.epoch.stage is not None:
            Pump(run.epoch.stage, run.epoch, loop, self._watcher.guarded)
        self._drawn_early = not run.source.heavy
        if self._drawn_early:
            run.epoch.open()  # in the consumer's own step, as torch draws while it makes an iterator
        if run.heavy:
            self._root = loop.create_task(_start(run, self._watcher, self._drawn_early), name="aloader epoch")
        else:
            run.begin(self._watcher)

    def __aiter__(self) -> Self:
        return self

    @property
    def taken(self) -> Any:
        """Of the batch that was given last: seq, indices, worker and epoch."""
        return self.run.taken

    async def __anext__(self) -> Any:
        run, epoch = self.run, self.run.epoch
        began = time.perf_counter()
        epoch.counts.user_seconds += began - self._since
        run.step(began)
        self._check()
        try:
            if not run.ended:
                run.crew.read_all()
                epoch.advance()
            if not epoch.available:
                await self._arrival()
            elif began - self._passed > options.LOOP_PASS:
                await self._pass()
            return self._take()
        finally:
            self._since = time.perf_counter()
            epoch.counts.wait_seconds += self._since - began

    def _check(self) -> None:
        watcher = self._watcher
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # asyncio says that none runs where a coroutine goes on in a fork
            raise LoaderClosed(IN_A_FORK) from None
        if watcher.waiter is not None:
            raise LoaderBusy("two tasks wait in one iterator, and a batch goes to one of them only: give each its own")
        if loop is not watcher.loop:
            raise LoaderClosed("this iterator belongs to another event loop; iterate the loader again on this one")
        if self.run.closed and not self.run.epoch.finished:
            raise LoaderClosed(self.run.why_closed)

    def _take(self) -> Any:
        """What `__anext__` gives; in the same step, nothing is awaited after it."""
        if self._watcher.failure is not None and not self.run.epoch.available:
            failure, self._watcher.failure = self._watcher.failure, None
            self._end()
            raise failure
        try:
            if not profiling():
                return self.run.epoch.take()
            with record_function(INLINE if self.run.pool is None else PROCESSES):  # never across an await
                return self.run.epoch.take()
        except StopIteration:
            self._end()
            raise StopAsyncIteration from None

    async def _pass(self) -> None:
        """Let the loop run once. Meanwhile the batch that is ready is this consumer's."""
        watcher = self._watcher
        watcher.waiter = watcher.loop.create_future()
        try:
            await asyncio.sleep(0)
        finally:
            watcher.waiter = None
            self._passed = time.perf_counter()

    async def _arrival(self) -> None:
        """Wait until there is something to take. Raises torch's error when that takes too long."""
        run, watcher = self.run, self._watcher
        loop = watcher.loop
        since, starting = loop.time(), not run.crew.ready
        try:
            while not run.epoch.available and watcher.failure is None:
                if run.epoch.arrived:  # it waits for the device, and nobody for a worker
                    since = loop.time()
                patience = run.patience(loop.time() - since)
                if patience == 0:
                    await self._raise_late()
                    continue
                if (caught := run.caught()) is not None:
                    await self._replace(caught)
                    continue
                if run.crew.unseated:
                    run.crew.insist()
                    patience = min(options.SEAT_PATIENCE, patience if patience is not None else math.inf)
                await self._pause(run.attention(patience))
                if starting and run.crew.ready:
                    since, starting = loop.time(), False
        finally:
            watcher.waiter = None
            self._passed = time.perf_counter()

    async def _raise_late(self) -> None:
        """Ask where its worker is stuck, and raise torch's error; unless the batch comes meanwhile."""
        late = self.run.inquire()
        while not late.over():
            await self._pause(options.STACK_POLL)
        if not self.run.epoch.available and self._watcher.failure is None:
            raise self.run.late(late)

    async def _replace(self, caught: Caught) -> None:
        """Ask workers that are stuck where that is, and kill them."""
        while not caught.over():
            await self._pause(options.STACK_POLL)
        caught.replace()

    async def _pause(self, seconds: float | None) -> None:
        """Wait until something has happened, at most so many seconds."""
        watcher = self._watcher
        watcher.waiter = watcher.loop.create_future()
        alarm = None if seconds is None else watcher.loop.call_later(seconds, watcher.wake)
        try:
            await watcher.waiter
        finally:
            if alarm is not None:
                alarm.cancel()

    def _end(self) -> None:
        """The epoch is over: natural end or failure."""
        self._finalizer.detach()
        self.run.end()
        self.run.crew.detach(self.run.epoch)

    @property
    def _workers(self) -> list[WorkerProcess]:
        return workers_of(self.run) if self.run.pool is not None else []

    def _shutdown_workers(self) -> None:
        self._finalizer.detach()
        if self.run.pool is not None:
            shut_down(self.run)

    async def aclose(self) -> None:
        """End the epoch, and wait for workers that are not kept. Idempotent; nobody else may be waiting in it."""
        run, watcher = self.run, self._watcher
        self._finalizer.detach()
        if self._root is not None and not self._root.done():
            self._root.cancel()
            await asyncio.wait([self._root])
        watcher.wake()
        await finish(run)


async def finish(run: Run) -> None:
    """End a run, and wait for workers that are not kept."""
    try:
        if not run.ended:
            run.end()
            if not run.persistent:
                await _all_gone(run)
    finally:  # cancelled, too: a loop that watches what is closed would take a later socket of that number for it
        run.crew.detach(run.epoch)


async def _all_gone(run: Run) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2 * options.CLOSE_GRACE):
            while run.crew.alive:
                gone = loop.create_future()
                run.crew.when_gone = lambda gone=gone: gone.done() or gone.set_result(None)
                await gone


async def _start(run: Run, watcher: LoopWatcher, drawn: bool) -> None:
    """The root task: what takes time before batches flow."""
    try:
        await in_thread(run.prepare)
        if not run.ended:
            if not drawn:
                run.epoch.open()
            run.begin(watcher)
    except asyncio.CancelledError:
        run.end()
        raise
    except BaseException as error:
        watcher.failure = error
    finally:
        watcher.wake()


def _let_go(finalizer: weakref.finalize[..., AsyncBatches], watcher: LoopWatcher) -> None:
    """The run has ended: whoever waits looks again, and nothing is left to do for an iterator that is dropped."""
    finalizer.detach()
    watcher.wake()


def _abandon(run: Run, loop: asyncio.AbstractEventLoop) -> None:
    """The iterator has been dropped, perhaps by the collector in the middle of anything: not in this step."""

    def end() -> None:
        run.end()
        run.crew.detach(run.epoch)

    if loop.is_running():
        loop.call_soon_threadsafe(end)
    else:
        end()
