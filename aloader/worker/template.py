"""The template: the clean processes that workers are forked from. Run as `python -c` by the pool, never imported there.

Two stages, both of the same loop: they do what the parent says, and report which of their children have gone.

- **A** has imported torch and this package, nothing of the user's. It forks a B for each job.
- **B** has unpickled the job once and frozen it (`gc.freeze`: the collector must not write to pages that the workers
  share). It forks the workers. If loading left it with more than one thread, forking from it is not safe: it says so
  and goes, and the workers are forked from A and load for themselves.

A stage is single-threaded, has no loop, no client and no lock. It is a subreaper, so what a worker leaves behind comes
to it and is killed at the end. It ends when the parent closes its control socket, or at once with the parent (`life`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

import numpy.random  # noqa: F401  (numpy puts it off until it is used: here it is imported once for all workers)

from aloader.channel import context, life, stages
from aloader.channel.flags import Flags
from aloader.channel.job import Job, load, read_index
from aloader.worker import cuda
from aloader.worker import main as worker

_PR_SET_CHILD_SUBREAPER: Final = 36


def main(control: int, life_end: int, own_life: int) -> NoReturn:
    """Stage A: entered once by the process that the pool has started.

    It ends as its children do: to take down an interpreter that has imported torch takes longer than all else of it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the program's: it may block SIGCHLD, which would not be heard here
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.freeze()
    _live(_Stage(socket.socket(fileno=control), life_end, own_life).run)


class _Stage:
    """The loop of both stages. `job` is what a B has loaded, `settled` the context that it has taken over before."""

    def __init__(
        self, control: socket.socket, life_end: int, own_life: int, job: Job | None = None, settled: bytes = b""
    ) -> None:
        self._control = control
        self._life_end = life_end  # not bound to anybody: every child binds itself anew
        self._own_life = own_life
        self._job = job
        self._settled = settled
        self._workers: dict[int, int] = {}  # pid → key
        self._stages: set[int] = set()
        self._deadlines: dict[int, float] = {}  # pid → when it is killed
        self._signalled, self._signal = socket.socketpair()
        self._signalled.setblocking(False)
        self._signal.setblocking(False)
        signal.set_wakeup_fd(self._signal.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Until the parent closes the control socket."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._control, selectors.EVENT_READ)
            ready.register(self._signalled, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(self._until_deadline()):
                    if key.fileobj is self._control and not self._obey():
                        self._end_all()
                        return
                with contextlib.suppress(BlockingIOError):
                    self._signalled.recv(4096)
                self._reap()
                self._kill_overdue()

    # -- what the parent says --------------------------------------------------------------------------------------

    def _obey(self) -> bool:
        got = stages.receive(self._control)
        if got is None:
            return False
        packet, fds = got
        match packet:
            case stages.Load(job, size):
                self._fork_stage(job, size, *fds)
            case stages.Fork(key, size):
                self._fork_worker(key, size, *fds)
            case stages.End(key, grace):
                for pid in (pid for pid, k in self._workers.items() if k == key):
                    self._deadlines[pid] = time.monotonic() + grace
            case _:
                raise AssertionError(f"a stage got {packet!r}")
        for fd in fds:
            os.close(fd)
        return True

    def _fork_stage(self, job: int, size: int, control: int, memory: int) -> None:
        pid = os.fork()
        if pid:
            self._stages.add(pid)
            return
        _live(partial(self._become_stage, job, size, control, memory))

    def _become_stage(self, number: int, size: int, control: int, memory: int) -> None:
        self._leave()
        own_life = life.watch(self._life_end)
        with socket.socket(fileno=control) as end:
            self._load_and_serve(number, size, end, memory, own_life)

    def _load_and_serve(self, number: int, size: int, end: socket.socket, memory: int, own_life: int) -> None:
        try:
            index = read_index(memory)
            context.apply(index.context)
            cuda.refuse()  # a context must not be there when workers are forked
            job = load(memory, size)
            context.apply_after_loading(index.context)
        except BaseException as error:
            _tell(end, stages.Loaded(number, False, "".join(traceback.format_exception(error))[-8000:]))
            return
        finally:
            os.close(memory)
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            _tell(end, stages.Loaded(number, False, f"loading the dataset started {threads - 1} threads"))
            return
        gc.freeze()
        stage = _Stage(end, self._life_end, own_life, job, index.context)
        left = [] if index.setup else sorted(Flags.of_this_process().left)
        _tell(end, stages.Loaded(number, True, ", ".join(left)[:8000]))
        stage.run()

    def _fork_worker(self, key: int, size: int, link: int, status: int, memory: int = -1) -> None:
        pid = os.fork()
        if pid:
            self._workers[pid] = key
            return
        _live(partial(self._become_worker, size, link, status, memory))

    def _become_worker(self, size: int, link: int, status: int, memory: int) -> None:
        self._leave()
        own = life.watch(self._life_end)
        os.close(self._life_end)
        os.register_at_fork(after_in_child=lambda: os.close(own))
        job, self._job, settled = self._job, None, self._settled
        end = socket.socket(fileno=link)
        worker.run(end, status, lambda: job if job is not None else load(memory, size), carried=True, settled=settled)

    def _leave(self) -> None:
        """In a child: let go of everything that is the stage's own."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._signal.close()
        self._signalled.close()
        self._control.close()
        os.close(self._own_life)

    # -- children --------------------------------------------------------------------------------------------------

    def _until_deadline(self) -> float | None:
        if not self._deadlines:
            return None
        return max(0.0, min(self._deadlines.values()) - time.monotonic())

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for pid, deadline in list(self._deadlines.items()):
            if deadline <= now:
                del self._deadlines[pid]
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._deadlines.pop(pid, None)
            self._stages.discard(pid)
            key = self._workers.pop(pid, None)
            if key is not None:
                _tell(self._control, stages.Exited(key, status, usage.ru_maxrss))

    def _end_all(self) -> None:
        """Kill the workers, let the other stages end theirs, and kill whatever is left."""
        signal.set_wakeup_fd(-1)
        for end in (self._control, self._signal, self._signalled):
            end.close()
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)
        patience = time.monotonic() + 0.5
        while self._stages and time.monotonic() < patience:
            self._reap()
            time.sleep(0.001)
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._workers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _tell(parent: socket.socket, packet: stages.Packet) -> None:
    """Say it to the parent, which may not want it any more: then the next look at the socket ends the stage."""
    with contextlib.suppress(OSError):
        stages.send(parent, packet)


def _children() -> list[int]:
    """All of this process's children, those that it has adopted included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _live(act: Callable[[], Any]) -> NoReturn:
    """Live a process's life and end it without the interpreter's own end: handlers that are not its, and 0.2 s."""
    code = 1
    try:
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
