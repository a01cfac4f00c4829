"""How worker processes come into being: the interface, and the one over multiprocessing's contexts.

A starter knows processes only by `key`, a number that is never used again. It decides nothing: it starts, ends and
reports. The other implementation is the template (`template`), which is the default on Linux.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import weakref
from collections.abc import Callable
from multiprocessing import reduction, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

from aloader.channel import life
from aloader.channel.job import Carried, Job
from aloader.pool.outside import Outside
from aloader.pool.unpicklable import explained


class Exit(NamedTuple):
    """A process that has gone: the signal that ended it or its exit code, and its largest resident set in bytes. Those
    that have gone with what they were forked from have the number of that `incident`."""

    key: int
    signal: int
    exit_code: int
    peak: int
    incident: int = 0

    @classmethod
    def of(cls, key: int, status: int, peak: int = 0) -> Exit:
        """From a status as `os.wait` gives it."""
        code = os.waitstatus_to_exitcode(status)
        return cls(key, max(0, -code), max(0, code), peak)


class Loaded:
    """A job that workers can be started with. `users` are the crews that may still start one."""

    def __init__(self, job: Job | None) -> None:
        self.job = job
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()


class Starter(Protocol):
    """Starts processes. `open` and `load` may take time and are called in a thread by the async driver."""

    carries: bool  # whether jobs reach workers pickled in a memfd (`load`), or as they are

    def open(self) -> None: ...
    def load(self, job: Job, carried: Carried | None) -> Loaded: ...
    def start(self, loaded: Any, key: int, end: socket.socket, status: int) -> None: ...
    def end(self, key: int, grace: float) -> None: ...
    def watched(self) -> dict[Any, int]: ...
    def reports(self) -> list[Exit]: ...
    def close(self) -> None: ...
    def forked(self) -> None: ...


class _Descriptor:
    """A descriptor that survives both ways into a child: inherited by fork, or duplicated while it is spawned."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], _Descriptor], tuple[Any]]:
        return _detached, (reduction.DupFd(self.fd),)


def _detached(duplicate: Any) -> _Descriptor:
    return _Descriptor(duplicate.detach())


class ContextStarter:
    """Workers from a multiprocessing context, as torch starts them: fork, spawn or forkserver with its own rules."""

    carries = False

    def __init__(self, context: BaseContext) -> None:
        self._context: Any = context
        self._forks = context.get_start_method() == "fork"
        self._opened = False
        self._processes: dict[int, BaseProcess] = {}
        self._life: tuple[int, ...] = _pipe()  # none once it is closed: the numbers are somebody else's then

    def open(self) -> None:
        """Start what multiprocessing starts once, and waits for: not with the first worker, on somebody's loop."""
        if not self._forks:
            resource_tracker.ensure_running()
        if self._context.get_start_method() == "forkserver" and not self._opened:
            self._opened = True
            first = self._context.Process(target=int)  # whoever starts the first one waits for the server to come up
            first.start()
            first.kill()
            first.join()

    def load(self, job: Job, carried: Carried | None) -> Loaded:
        """The job is handed to each process as it is."""
        return Loaded(job)

    def start(self, loaded: Loaded, key: int, end: socket.socket, status: int) -> None:
        """Start a worker and close this process's copies of its descriptors."""
        life_end, _ = self._life
        job: Any = loaded.job if self._forks else Outside(loaded.job)
        arguments = (_Descriptor(end.fileno()), _Descriptor(status), _Descriptor(life_end), job, self._forks)
        process = self._context.Process(target=_entry, args=arguments, daemon=True, name=f"aloader-worker-{key}")
        try:
            process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            if self._forks or loaded.job is None:
                raise
            raise explained(error, loaded.job, self._context.get_start_method()) from error
        finally:
            end.close()
            os.close(status)
            if not self._forks:
                job.close()
        self._processes[key] = process

    def end(self, key: int, grace: float) -> None:
        """Kill the process, unless it exits within `grace` seconds.

        Nobody else can wait for it while the user's program runs, so it is waited for here, 50 ms at most.
        """
        process = self._processes.get(key)
        if process is not None:
            process.join(min(grace, 0.05))
            process.kill()

    def watched(self) -> dict[Any, int]:
        """Descriptors that become readable when there is something to report, by what they belong to."""
        return {process: process.sentinel for process in self._processes.values()}

    def reports(self) -> list[Exit]:
        """The processes that have gone since the last call."""
        gone = [(key, process) for key, process in self._processes.items() if process.exitcode is not None]
        exits = []
        for key, process in gone:
            code = process.exitcode or 0
            del self._processes[key]
            process.close()
            exits.append(Exit(key, max(0, -code), max(0, code), 0))
        return exits

    def close(self) -> None:
        """Kill what is left and wait for it."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join(1.0)
            with contextlib.suppress(ValueError):
                process.close()
        self._processes.clear()
        ends, self._life = self._life, ()
        for fd in ends:
            os.close(fd)

    def forked(self) -> None:
        """In a fork of this process: its copy of the life pipe must not keep the workers alive."""
        for fd in self._life[1:]:
            os.close(fd)


def _pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe()  # closed on exec (PEP 446)
    return read_end, write_end


def _entry(end: _Descriptor, status: _Descriptor, life_end: _Descriptor, job: Job, forked: bool) -> None:
    """What such a process runs. The worker's code is imported here: pool and worker meet in the channel only."""
    own = life.watch(life_end.fd)
    os.close(life_end.fd)
    os.register_at_fork(after_in_child=lambda: os.close(own))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker: Any = __import__("aloader.worker.main", fromlist=["run"])
    worker.run(socket.socket(fileno=end.fd), status.fd, lambda: job, carried=False)
    sys.stdout.flush()
