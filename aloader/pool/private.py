"""Plain `for` over an async dataset with `num_workers=0`: a private loop in a thread, so that it works where a loop
already runs (notebooks), and where none does."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self, TypeVar

from aloader import options
from aloader.device.profiling import INLINE, profiling, record_function
from aloader.errors import IN_A_FORK, LoaderClosed
from aloader.pool.asynchronous import AsyncBatches

T = TypeVar("T")


class PrivateLoop:
    """A loop that runs in a thread until it is told to stop, at the latest when the interpreter ends.

    (A daemon thread that is torn out of torch's code at that moment ends the process with "terminate called".)
    """

    def __init__(self, crew: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.ending = False  # what is given to a loop that is about to stop would never be run
        self._pid = os.getpid()
        self._at_exit = partial(_leave, self, crew)
        atexit.register(self._at_exit)
        self._thread = threading.Thread(target=self._run, name="aloader-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            atexit.unregister(self._at_exit)

    @property
    def elsewhere(self) -> bool:
        """Whether this is a fork of the process that has the thread: whoever waits for it here waits for ever."""
        return os.getpid() != self._pid

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it. An interrupted caller cancels it."""
        if self.elsewhere:
            coroutine.close()
            raise LoaderClosed(IN_A_FORK)
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def join(self, timeout: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout)

    def stop(self) -> None:
        """End the thread once what it does at the moment is done. Waits for nobody."""
        self.ending = True
        if not self.loop.is_closed() and not self.elsewhere:
            self.loop.call_soon_threadsafe(self.loop.stop)


class PrivateLoopBatches:
    """The iterator. `open` makes the crew and the asynchronous iterator, on the private loop."""

    def __init__(self, crew: Any, open_batches: Callable[[], AsyncBatches], owner: Any) -> None:
        self._owner = owner
        self._crew = crew
        self.loop = PrivateLoop(crew)
        self._finalizer = weakref.finalize(self, _abandon, self.loop, crew)
        self._batches = self.loop.call(_called(open_batches))
        self._taken_there: list[Any] = []  # by the loop's thread, and not given: a batch

    def __iter__(self) -> Self:
        return self

    @property
    def taken(self) -> Any:
        """Of the batch that was given last: seq, indices, worker and epoch."""
        return self._batches.taken

    def __next__(self) -> Any:
        if not profiling():
            return self._next()
        with record_function(INLINE):
            return self._next()

    def _next(self) -> Any:
        taken, stage = self._taken_there, self._batches.run.epoch.stage
        if not taken:
            try:
                self.loop.call(_next(self._batches, taken))
            except StopAsyncIteration:
                self.close()
                raise StopIteration from None
        try:
            batch = taken[0] if stage is None else stage.give_late(taken[0])
        except Exception:
            taken.clear()
            raise
        taken.clear()  # what is interrupted is given the next time
        return batch

    def __len__(self) -> int:
        return len(self._owner._index_sampler)

    def close(self) -> None:
        """Leave the dataset's `async with`, and end the thread. Idempotent."""
        if self._finalizer.detach() is not None and not self.loop.elsewhere:
            try:
                self.loop.call(_close(self._batches, self._crew))
            finally:
                self.loop.stop()

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


async def _called(function: Callable[[], T]) -> T:
    return function()


async def _next(batches: AsyncBatches, taken: list[Any]) -> None:
    """Take the next batch, if none is there: whoever waited for that may be interrupted when it has come."""
    if not taken:
        taken.append(await batches.__anext__())


async def _close(batches: AsyncBatches, crew: Any) -> None:
    await batches.aclose()
    await crew.aclose()


def _abandon(loop: PrivateLoop, crew: Any) -> None:
    """The iterator has been dropped: the dataset is left on its loop, and nobody waits for that."""

    async def end() -> None:
        await crew.aclose()
        loop.stop()

    if not loop.ending and not loop.elsewhere:  # the iterator is dropped, and then the interpreter ends
        loop.ending = True
        asyncio.run_coroutine_threadsafe(end(), loop.loop)


def _leave(loop: PrivateLoop, crew: Any) -> None:
    """The interpreter ends."""
    _abandon(loop, crew)
    loop.join(2 * options.CLOSE_GRACE)
