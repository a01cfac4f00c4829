"""Plain `for`: the driver that waits in the calling thread. No second thread, no event loop."""

from __future__ import annotations

import contextlib
import math
import select
import time
import weakref
from collections.abc import Callable
from typing import Any, Self

from aloader import options
from aloader.device.profiling import PROCESSES, profiling, record_function
from aloader.errors import LoaderClosed
from aloader.pool.privates import WorkerProcess, shut_down, workers_of
from aloader.pool.run import Run
from aloader.pool.vigil import Caught


class PollWatcher:
    """Calls back from `wait`. `select.poll` as it is: a selector on top of it costs more than the system call."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, dict[int, Callable[[], None]]] = {}

    def reading(self, fd: int, callback: Callable[[], None] | None) -> None:
        """Call back when `fd` can be read."""
        self._set(fd, select.POLLIN, callback)

    def writing(self, fd: int, callback: Callable[[], None] | None) -> None:
        """Call back when `fd` can be written to."""
        self._set(fd, select.POLLOUT, callback)

    def wake(self) -> None:
        """Nobody waits while somebody else runs: it is one thread."""

    def wait(self, timeout: float | None) -> None:
        """Wait for something to happen, at most `timeout` seconds, and call back."""
        for fd, events in self._poll.poll(None if timeout is None else math.ceil(timeout * 1000)):
            callbacks = self._callbacks.get(fd, {})
            for event in (select.POLLIN, select.POLLOUT):
                callback = callbacks.get(event)
                if callback is not None and events & (event | select.POLLHUP | select.POLLERR):
                    callback()

    def _set(self, fd: int, event: int, callback: Callable[[], None] | None) -> None:
        known = self._callbacks.setdefault(fd, {})
        if callback is None:
            known.pop(event, None)
        else:
            known[event] = callback
        if known:
            self._poll.register(fd, sum(known))
        else:
            del self._callbacks[fd]
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)


class Batches:
    """The iterator of plain `for`. `owner` is kept alive by it (a loader that keeps its iterator gives None)."""

    def __init__(self, run: Run, owner: object, len_of: Any) -> None:
        self._owner = owner
        self._len_of = len_of
        self._watcher = PollWatcher()
        self._start(run)

    def _start(self, run: Run) -> None:
        self.run = run
        self._since = time.perf_counter()
        self._finalizer = weakref.finalize(self, _abandon, run)
        run.on_end = self._finalizer.detach
        run.prepare()
        run.epoch.open()
        run.begin(self._watcher)

    def restart(self, run: Run) -> None:
        """Go on with another epoch: torch's persistent iterator is one object, and making it again rewinds it."""
        self.close()
        self._start(run)

    def __iter__(self) -> Self:
        return self

    @property
    def taken(self) -> Any:
        """Of the batch that was given last: seq, indices, worker and epoch."""
        return self.run.taken

    def __next__(self) -> Any:
        if not profiling():
            return self._next()
        with record_function(PROCESSES):
            return self._next()

    def _next(self) -> Any:
        run = self.run
        epoch, counts = run.epoch, run.epoch.counts
        began = time.perf_counter()
        counts.user_seconds += began - self._since
        run.step(began)
        try:
            if run.closed and not epoch.finished:
                raise LoaderClosed(run.why_closed)
            if not epoch.available:
                self._wait_for_batch(run)
            elif not run.ended:
                self._watcher.wait(0)  # what has arrived is read in every call, so that no worker runs out of tickets
                epoch.advance()
            return epoch.take()
        finally:
            self._since = time.perf_counter()
            counts.wait_seconds += self._since - began
            if epoch.finished:
                run.end()
                run.crew.detach(run.epoch)

    def _wait_for_batch(self, run: Run) -> None:
        since, starting = time.perf_counter(), not run.crew.ready
        while not run.epoch.available:
            if run.epoch.settle():
                continue
            patience = run.patience(time.perf_counter() - since)
            if patience == 0:
                self._raise_late(run)
                continue
            if (caught := run.caught()) is not None:
                self._replace(caught)
                continue
            if run.crew.unseated:
                run.crew.insist()
                patience = min(options.SEAT_PATIENCE, patience if patience is not None else math.inf)
            self._watcher.wait(run.attention(patience))
            if starting and run.crew.ready:
                since, starting = time.perf_counter(), False

    def _raise_late(self, run: Run) -> None:
        """Ask where its worker is stuck, and raise torch's error; unless the batch comes meanwhile."""
        late = run.inquire()
        while not late.over():
            self._watcher.wait(options.STACK_POLL)
        if not run.epoch.available:
            raise run.late(late)

    def _replace(self, caught: Caught) -> None:
        """Ask workers that are stuck where that is, and kill them."""
        while not caught.over():
            self._watcher.wait(options.STACK_POLL)
        caught.replace()

    @property
    def _workers(self) -> list[WorkerProcess]:
        return workers_of(self.run, self._watcher.wait)

    def _shutdown_workers(self) -> None:
        self._finalizer.detach()
        shut_down(self.run, self._watcher.wait)

    def __len__(self) -> int:
        return len(self._len_of)

    def close(self) -> None:
        """End the epoch, and wait for workers that are not kept."""
        run = self.run
        self._finalizer.detach()
        was_ended = run.ended
        run.end()
        deadline = time.monotonic() + 2 * options.CLOSE_GRACE
        while not was_ended and not run.persistent and run.crew.alive and time.monotonic() < deadline:
            self._watcher.wait(0.05)
        run.crew.detach(run.epoch)

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


def _abandon(run: Run) -> None:
    """The iterator has been dropped."""
    run.end()
    run.crew.detach(run.epoch)
