"""The parent's side of the template: starts it, gives it jobs, asks it for workers, hears of their end.

Everything here is a message: nothing waits, `open` (a process is started) and `close` apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections import deque
from multiprocessing import spawn
from typing import Final

from aloader import options
from aloader.channel import life, stages
from aloader.channel.context import SINGLE_THREADED
from aloader.channel.job import Carried, Job
from aloader.pool.starter import Exit

# Ctrl-C is the parent's to handle, also while the template still imports torch.
_PROGRAM: Final = """
import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)
import json, runpy, sys
own_life = runpy.run_path(sys.argv[4])["watch"](int(sys.argv[3]))  # before the second that importing torch takes
sys.path[:] = json.loads(sys.argv[1])
from aloader.worker.template import main
main(int(sys.argv[2]), int(sys.argv[3]), own_life)
"""


class TemplateStarter:
    """Workers forked from a clean process that has loaded the job once."""

    carries = True

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stage: socket.socket | None = None  # of the present job; None while workers come from A
        self._loading = False
        self._life = -1
        self._loads = 0
        self._carried: Carried | None = None
        self._waiting: deque[tuple[int, socket.socket, int]] = deque()  # workers to start when the job is loaded
        self._owners: dict[int, socket.socket] = {}  # key → control socket of the stage that it was forked from
        self._old: list[socket.socket] = []  # stages of earlier jobs, until their workers have gone
        self._lost: list[Exit] = []
        self._lock = threading.Lock()  # `open` and `load` may run in a thread while the loader is closed
        self._closed = False

    def open(self) -> None:
        """Start the template, unless it runs."""
        with self._lock:
            if self._process is None and not self._closed:
                self._open()

    def _open(self) -> None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life_end, self._life = os.pipe()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        arguments = [json.dumps([str(entry) for entry in sys.path]), str(theirs.fileno()), str(life_end), life.__file__]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [os.fsdecode(spawn.get_executable()), *flags, "-c", _PROGRAM, *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), life_end),
                    env=os.environ | SINGLE_THREADED,
                )
            finally:
                os.close(life_end)
        control.setblocking(False)
        self._control = control

    def load(self, job: Job, carried: Carried | None) -> None:
        """Fork a stage that loads this job; workers that are started from now on have it."""
        assert carried is not None
        with self._lock:
            if self._closed:
                carried.close()
            else:
                self._load(carried)

    def _load(self, carried: Carried) -> None:
        assert self._control is not None
        if self._stage is not None:
            self._old.append(self._stage)
        if self._carried is not None and self._carried is not carried:
            self._carried.close()
        self._carried = carried
        self._stage, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stage.setblocking(False)
        self._loads += 1
        self._loading = True
        with theirs, contextlib.suppress(OSError):  # that the template has gone shows in `reports`
            stages.send(self._control, stages.Load(self._loads, carried.size), (theirs.fileno(), carried.fd))
        self._close_old()

    def start(self, key: int, end: socket.socket, status: int) -> None:
        """Fork a worker, as soon as the job is loaded."""
        self._waiting.append((key, end, status))
        if not self._loading:
            self._fork_waiting()

    def end(self, key: int, grace: float) -> None:
        """Kill the worker unless it exits within `grace` seconds; its stage sees to that."""
        for waiting in [w for w in self._waiting if w[0] == key]:
            self._waiting.remove(waiting)
            self._drop(waiting)
            return
        owner = self._owners.get(key)
        if owner is not None:
            with contextlib.suppress(OSError):
                stages.send(owner, stages.End(key, grace))

    def watched(self) -> list[int]:
        """Descriptors that become readable when there is something to report."""
        return [end.fileno() for end in (self._control, self._stage, *self._old) if end is not None]

    def reports(self) -> list[Exit]:
        """The workers that have gone since the last call."""
        exits, self._lost = self._lost, []
        for end in [e for e in (*self._old, self._stage, self._control) if e is not None]:
            if not self._read(end, exits):
                self._stage_gone(end, exits)
        self._close_old()
        return exits

    def close(self) -> None:
        """End every process and wait for the template to go: milliseconds, or it is killed."""
        with self._lock:
            self._closed = True
            self._end_all()

    def _end_all(self) -> None:
        for waiting in self._waiting:
            self._drop(waiting)
        self._waiting.clear()
        for end in (*self._old, self._stage, self._control):
            if end is not None:
                _hang_up(end)
        self._stage = self._control = None
        self._old.clear()
        self._owners.clear()
        if self._carried is not None:
            self._carried.close()
            self._carried = None
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2 * options.CLOSE_GRACE)
            os.close(self._life)  # kills whatever of it is left
            process.kill()
            process.wait()

    def forked(self) -> None:
        """In a fork of this process: let go of everything without a word to the template."""
        for end in (*self._old, self._stage, self._control):
            if end is not None:
                end.close()
        if self._process is not None:
            os.close(self._life)
            self._process.returncode = 0  # it is not this process's child
            self._process = None

    # ---------------------------------------------------------------------------------------------------------------

    def _fork_waiting(self) -> None:
        while self._waiting:
            key, end, status = waiting = self._waiting.popleft()
            owner = self._stage if self._stage is not None else self._control
            assert owner is not None
            assert self._carried is not None
            own_job = () if self._stage is not None else (self._carried.fd,)
            self._owners[key] = owner
            with contextlib.suppress(OSError):
                stages.send(owner, stages.Fork(key, self._carried.size), (end.fileno(), status, *own_job))
            self._drop(waiting)

    def _drop(self, waiting: tuple[int, socket.socket, int]) -> None:
        _, end, status = waiting
        end.close()
        os.close(status)

    def _read(self, end: socket.socket, exits: list[Exit]) -> bool:
        """Take in what a stage has said. False if it has gone."""
        try:
            while (got := stages.receive(end)) is not None:
                packet, _ = got
                if isinstance(packet, stages.Exited):
                    self._owners.pop(packet.key, None)
                    exits.append(Exit.of(packet.key, packet.status, packet.peak * 1024))
                elif isinstance(packet, stages.Loaded) and end is self._stage:
                    self._loaded(packet)
                    if not packet.ok:
                        return True
        except BlockingIOError:
            return True
        return False

    def _loaded(self, packet: stages.Loaded) -> None:
        self._loading = False
        if not packet.ok:
            assert self._stage is not None
            self._stage.close()
            self._stage = None
            if "threads" in packet.reason[:60]:
                warnings.warn(
                    f"{packet.reason}, and a process with threads cannot be forked safely: every worker loads the "
                    "dataset for itself. Open clients and start threads in __aenter__ or on first use, not on loading.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self._fork_waiting()

    def _stage_gone(self, end: socket.socket, exits: list[Exit]) -> None:
        """A stage has died: its workers go with it, and the next start begins anew."""
        end.close()
        if end in self._old:
            self._old.remove(end)
        for key in [key for key, owner in self._owners.items() if owner is end]:
            del self._owners[key]
            exits.append(Exit(key, signal.SIGKILL, 0, 0))
        if end is not self._control and end is not self._stage:
            return
        exits.extend(Exit(key, signal.SIGKILL, 0, 0) for key, _, _ in self._waiting)
        carried, self._carried = self._carried, None
        with self._lock:
            self._end_all()
            self._open()
            if carried is not None:
                self._load(carried)

    def _close_old(self) -> None:
        """Let stages of earlier jobs go whose workers have gone: they end when their socket closes."""
        busy = set(map(id, self._owners.values()))
        for end in [e for e in self._old if id(e) not in busy]:
            self._old.remove(end)
            _hang_up(end)


def _hang_up(end: socket.socket) -> None:
    """Close a stage's socket so that it notices, also where a crew still watches a duplicate."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
