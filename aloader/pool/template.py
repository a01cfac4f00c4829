"""The parent's side of the template: starts it, gives it jobs, asks it for workers, hears of their end.

Everything here is a message: nothing waits, `open` (a process is started) and `close` apart.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from aloader import options
from aloader.channel import stages
from aloader.channel.job import Carried, Job
from aloader.pool import advice
from aloader.pool.forks import no_forks
from aloader.pool.launch import launch
from aloader.pool.starter import Exit, Loaded


class _Stage(Loaded):
    """A job and the stage that has loaded it, or is about to."""

    def __init__(self, carried: Carried) -> None:
        super().__init__(job=None)
        self.carried = carried
        self.end: socket.socket | None = None  # None: workers are forked from A, and load for themselves
        self.loading = False
        self.waiting: deque[tuple[int, socket.socket, int]] = deque()  # workers to start when the job is loaded

    def drop(self, waiting: tuple[int, socket.socket, int]) -> None:
        """Close this process's copies of a worker's descriptors."""
        _, end, status = waiting
        end.close()
        os.close(status)

    def close(self) -> None:
        """Let it go: the stage ends when its socket closes."""
        while self.waiting:
            self.drop(self.waiting.popleft())
        self.hang_up()
        self.carried.close()

    def hang_up(self) -> None:
        """Give up the process, not the job."""
        if self.end is not None:
            _hang_up(self.end)
        self.end = None


class TemplateStarter:
    """Workers forked from a clean process that has loaded their job once."""

    carries = True

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._life = -1
        self._lives: set[int] = set()  # write ends of every life pipe, those of templates that are being buried too
        self._no_forks = no_forks()  # while descriptors are here that are another process's alone
        self._loads = 0
        self._stages: list[_Stage] = []  # the present job's last; earlier ones until their workers have gone
        self._burials: list[threading.Thread] = []  # they wait for templates that have been given up
        self._owners: dict[int, socket.socket] = {}  # key → control socket of the stage that it was forked from
        self._unforked: list[Exit] = []  # workers that were ended before their job was loaded, to be reported yet
        self._lock = threading.Lock()  # `open` and `load` may run in a thread while the loader is closed
        self._closed = False
        self._incidents = 0  # templates and stages that were lost

    def open(self) -> None:
        """Start the template, unless it runs."""
        with self._lock:
            if self._process is None and not self._closed:
                self._open()

    def _open(self) -> None:
        with self._no_forks:
            self._process, self._control, self._life = launch()
            self._lives.add(self._life)

    def load(self, job: Job, carried: Carried | None) -> _Stage:
        """Fork a stage that loads this job."""
        assert carried is not None
        stage = _Stage(carried)
        with self._lock:
            if self._closed:
                stage.close()
            else:
                self._load(stage)
                self._stages.append(stage)
                self._retire()
        return stage

    def _load(self, stage: _Stage) -> None:
        assert self._control is not None
        stage.loading = True
        self._loads += 1
        load = stages.Load(self._loads, stage.carried.size)
        with self._no_forks:
            stage.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stage.end.setblocking(False)
            with theirs, contextlib.suppress(OSError):  # that the template has gone shows in `reports`
                stages.send(self._control, load, (theirs.fileno(), stage.carried.fd))

    def start(self, loaded: _Stage, key: int, end: socket.socket, status: int) -> None:
        """Fork a worker, as soon as its job is loaded."""
        loaded.waiting.append((key, end, status))
        if not loaded.loading:
            self._fork_waiting(loaded)

    def end(self, key: int, grace: float) -> None:
        """Kill the worker unless it exits within `grace` seconds; its stage sees to that."""
        for stage in self._stages:
            for waiting in [w for w in stage.waiting if w[0] == key]:
                stage.waiting.remove(waiting)
                stage.drop(waiting)
                self._unforked.append(Exit(key, 0, 0, 0))
                return
        owner = self._owners.get(key)
        if owner is not None:
            with contextlib.suppress(OSError):
                stages.send(owner, stages.End(key, grace))

    def watched(self) -> dict[Any, int]:
        """Descriptors that become readable when there is something to report, by what they belong to."""
        ends = (self._control, *(stage.end for stage in self._stages))
        return {end: end.fileno() for end in ends if end is not None}

    def reports(self) -> list[Exit]:
        """The workers that have gone since the last call."""
        exits, self._unforked = self._unforked, []
        for stage in list(self._stages):
            if stage.end is not None and not self._read(stage.end, exits, stage):
                self._stage_gone(stage, exits)
        if self._control is not None and not self._read(self._control, exits):
            self._begin_anew(exits)
        if self._lock.acquire(blocking=False):  # else a job is being loaded, which comes to this as well
            try:
                self._retire()
            finally:
                self._lock.release()
        return exits

    def close(self) -> None:
        """End every process and wait for the template to go: milliseconds, or it is killed."""
        with self._lock:
            self._closed = True
            for stage in self._stages:
                stage.close()
            self._stages.clear()
            self._end_template()()
        for thread in self._burials:
            thread.join()

    def _end_template(self) -> Callable[[], None]:
        """Make its processes go. Returns what waits for that."""
        if self._control is not None:
            _hang_up(self._control)
            self._control = None
        self._owners.clear()
        process, self._process = self._process, None
        return partial(self._bury, process, self._life) if process is not None else lambda: None

    def _bury(self, process: subprocess.Popen[bytes], life_end: int) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 * options.CLOSE_GRACE)
        with self._no_forks:
            self._lives.discard(life_end)
            os.close(life_end)  # kills whatever of it is left
        process.kill()
        process.wait()

    def forked(self) -> None:
        """In a fork of this process: let go of everything without a word to the template."""
        for end in (self._control, *(stage.end for stage in self._stages)):
            if end is not None:
                end.close()
        for stage in self._stages:
            while stage.waiting:
                stage.drop(stage.waiting.popleft())
        while self._lives:
            os.close(self._lives.pop())
        if self._process is not None:
            self._process.returncode = 0  # it is not this process's child
            self._process = None

    # ---------------------------------------------------------------------------------------------------------------

    def _fork_waiting(self, stage: _Stage) -> None:
        owner = stage.end if stage.end is not None else self._control
        own_job = () if stage.end is not None else (stage.carried.fd,)
        while stage.waiting:
            key, end, status = waiting = stage.waiting.popleft()
            if owner is not None:
                self._owners[key] = owner
                with contextlib.suppress(OSError):
                    stages.send(owner, stages.Fork(key, stage.carried.size), (end.fileno(), status, *own_job))
            stage.drop(waiting)

    def _read(self, end: socket.socket, exits: list[Exit], stage: _Stage | None = None) -> bool:
        """Take in what a stage has said. False if it has gone."""
        try:
            while (got := stages.receive(end)) is not None:
                packet, _ = got
                if isinstance(packet, stages.Exited):
                    self._owners.pop(packet.key, None)
                    exits.append(Exit.of(packet.key, packet.status, packet.peak * 1024))
                elif isinstance(packet, stages.Loaded) and stage is not None:
                    if not packet.ok:
                        self._not_loaded(stage, packet.reason)
                        return True
                    stage.loading = False
                    self._fork_waiting(stage)
                    advice.warn_of_flags(packet.reason)
        except BlockingIOError:
            return True
        return False

    def _not_loaded(self, stage: _Stage, reason: str) -> None:
        """Workers cannot be forked from this stage: they load for themselves, and say themselves what is wrong."""
        stage.loading = False
        stage.hang_up()
        if "threads" in reason[:60]:
            warnings.warn(
                f"{reason}, and a process with threads cannot be forked safely: every worker loads the "
                "dataset for itself. Open clients and start threads in __aenter__ or on first use, not on loading.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._fork_waiting(stage)

    def _stage_gone(self, stage: _Stage, exits: list[Exit]) -> None:
        """A stage has died: by what it loaded (then only the workers that meet the same are lost), or later."""
        if stage.loading:
            self._not_loaded(stage, "loading ended the process")
            return
        self._incidents += 1
        for key in [key for key, owner in self._owners.items() if owner is stage.end]:
            del self._owners[key]
            exits.append(Exit(key, signal.SIGKILL, 0, 0, self._incidents))
        if stage is self._stages[-1] or stage.users:
            self._begin_anew(exits)
        else:
            stage.hang_up()

    def _begin_anew(self, exits: list[Exit]) -> None:
        """The template is lost, or a stage with workers that nobody could end: all of them go, and others come."""
        with self._lock:
            died, code = self._end_of_template()
            self._incidents += 1
            for key, owner in self._owners.items():
                how = (died, code) if owner is self._control else (signal.SIGKILL, 0)
                exits.append(Exit(key, *how, 0, self._incidents))
            for stage in self._stages:
                exits.extend(Exit(key, died, code, 0, self._incidents) for key, _, _ in stage.waiting)
                while stage.waiting:
                    stage.drop(stage.waiting.popleft())
                stage.hang_up()
            thread = threading.Thread(target=self._end_template(), name="aloader-bury")
            thread.start()
            self._burials = [*(t for t in self._burials if t.is_alive()), thread]
            if self._closed:
                return
            self._open()
            for stage in self._stages:
                self._load(stage)

    def _end_of_template(self) -> tuple[int, int]:
        """The signal that ended it or its exit code: what a worker died of that it was to start."""
        try:
            code = 0 if self._process is None else self._process.wait(0.02)
        except subprocess.TimeoutExpired:
            return signal.SIGKILL, 0  # a stage of it has died
        return max(0, -code), max(0, code)

    def _retire(self) -> None:
        """Let stages of earlier jobs go when nobody starts workers with them any more, and theirs have gone."""
        busy = set(map(id, self._owners.values()))
        for stage in self._stages[:-1]:
            if not stage.users and not stage.waiting and id(stage.end) not in busy:
                self._stages.remove(stage)
                stage.close()


def _hang_up(end: socket.socket) -> None:
    """Close a stage's socket so that it notices, also where a crew still watches a duplicate."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
