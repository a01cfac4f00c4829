"""Private names of torch's iterators that tests and frameworks read: `_workers` and `_shutdown_workers`.

Torch's are `multiprocessing.Process` objects, its own children. Ours are children of the template, so each is watched
and signalled through a descriptor of the process (`pidfd_open`), which never comes to mean another one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from aloader import options
from aloader.pool.workers import Worker

if TYPE_CHECKING:
    from aloader.pool.pool import WorkerPool
    from aloader.pool.run import Run


class WorkerProcess:
    """A worker process, as `multiprocessing.Process` shows one."""

    daemon = True

    def __init__(self, worker: Worker, pool: WorkerPool | None) -> None:
        self._worker = worker
        self._pool = weakref.ref(pool) if pool is not None else lambda: None
        self.name = f"aloader-worker-{worker.key}"
        self.sentinel = -1
        if worker.pid and worker.exit is None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.sentinel = os.pidfd_open(worker.pid)
                weakref.finalize(self, os.close, self.sentinel)

    @property
    def pid(self) -> int | None:
        """None where it is not known yet: the worker has not said that it is ready."""
        return self._worker.pid or None

    ident = pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.sentinel >= 0 and not self._gone(0)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self.sentinel >= 0:
            self._gone(timeout)

    @property
    def exitcode(self) -> int | None:
        """None while it runs; minus the signal that ended it; 0 also where nobody heard how it did what it was told."""
        if self.is_alive():
            return None
        self._hear()
        exit = self._worker.exit
        if exit is not None:
            return -exit.signal if exit.signal else exit.exit_code
        return 0 if self._worker.ending else None

    def _hear(self) -> None:
        """It has gone: take in how, which whoever has forked it reports within milliseconds."""
        pool = self._pool()
        deadline = time.monotonic() + options.CLOSE_GRACE
        while self._worker.exit is None and pool is not None and not pool.closed and time.monotonic() < deadline:
            poll = select.poll()
            for fd in pool.starter.watched().values():
                poll.register(fd, select.POLLIN)
            poll.poll(20)
            pool.read_reports()

    def terminate(self) -> None:
        """SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.sentinel >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.sentinel, number)

    def _gone(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def __repr__(self) -> str:
        state = "started" if self.is_alive() else f"stopped with exitcode {self.exitcode}"
        return f"<WorkerProcess {self.name}, pid {self.pid}, {state}>"


def workers_of(run: Run, wait: Callable[[float], None] | None = None) -> list[WorkerProcess]:
    """The latest process of each slot, by slot. `wait` lets things happen, until all have said that they are ready."""
    deadline = time.monotonic() + options.STARTING_GRACE
    while wait is not None and not run.ended and time.monotonic() < deadline:
        if all(worker.pid for worker in run.crew.workers.values()):
            break
        wait(0.05)
    return [WorkerProcess(worker, run.pool) for _, worker in sorted(run.crew.latest.items())]


def shut_down(run: Run, wait: Callable[[float], None] | None = None) -> None:
    """End the epoch and its workers, those that were to be kept included."""
    run.end()
    run.crew.end()
    deadline = time.monotonic() + 2 * options.CLOSE_GRACE
    while wait is not None and run.crew.alive and time.monotonic() < deadline:
        wait(0.05)
    run.crew.detach()
