"""Scenarios in which the program itself is killed: each is a fork of this process, which has imported everything and
makes no loader. It adopts whatever a program leaves behind, so that nothing can hide.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from .leftovers import OTHERS, descendants, end_all
from .run import Ground, Outcome, run
from .scenario import Scenario, scenario

_SUBREAPER: Final = 36

#: Seconds that a program has to end once it was told to, that what it has started has to go after it, and that it has
#: to come as far as to be killed.
TO_END: Final = 10.0
TO_GO: Final = 3.0
TO_COME: Final = 30.0


class Nursery:
    """A process that is asked for one scenario after the other. Make it before there are threads."""

    def __init__(self) -> None:
        self._end, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            self._end.close()
            _serve(theirs)
        theirs.close()
        self._said = self._end.makefile("r")

    def run(self, seed: int) -> Outcome:
        """What came of it."""
        self._end.sendall(f"{seed}\n".encode())
        return Outcome(**json.loads(self._said.readline()))

    def close(self) -> None:
        """End it."""
        self._said.close()
        self._end.close()
        os.waitpid(self.pid, 0)


def _serve(end: socket.socket) -> NoReturn:
    try:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        with end, end.makefile("r") as asked:
            for line in asked:
                outcome = one(scenario(int(line)))
                end.sendall(json.dumps(outcome.as_dict()).encode() + b"\n")
    finally:
        os._exit(0)


def one(chosen: Scenario) -> Outcome:
    """A program that is killed, seen from the process that it was forked from."""
    began, outcome = time.perf_counter(), Outcome(chosen.seed)
    assert chosen.parent is not None
    shared = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="chaos") as folder, open(Path(folder, "said"), "w+") as said:
        temp = Path(folder, "temp")
        temp.mkdir()
        heard, tells = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(heard)
            _child(chosen, temp, tells, said.fileno())
        os.close(tells)
        took = _wait_for(heard, chosen.parent.batch)
        time.sleep(chosen.parent.delay)  # sleep: the moment at which it is killed is what is tested
        os.kill(pid, chosen.parent.signal)
        outcome.complaints += _ended(pid, chosen.parent.signal)
        gone = _gone()
        os.close(heard)
        outcome.complaints += [f"left behind: {what}" for what in gone[1]]
        outcome.complaints += [f"left behind: file {path}" for path in temp.iterdir()]
        new = {name for name in set(os.listdir("/dev/shm")) - shared if not name.startswith(OTHERS)}
        outcome.complaints += [f"left behind: file /dev/shm/{name}" for name in new]
        said.seek(0)
        if text := said.read().strip():
            outcome.complaints.append(f"it said: {text}")
    outcome.numbers = {"programs killed": 1, "batches": max(0, took)}
    outcome.slowest = {"until all had gone after the program": gone[0]}
    outcome.seconds = time.perf_counter() - began
    return outcome


def _child(chosen: Scenario, temp: Path, tells: int, said: int) -> NoReturn:
    """The program. What it sees is told by complaints on its standard error, and that must stay empty."""
    os.dup2(said, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temp)
    try:
        ground = Ground(temp=temp)
        while True:  # until it is killed
            outcome = run(chosen, ground, _telling(tells))
            if outcome.complaints:
                os.write(2, "\n".join(outcome.complaints).encode())
                os._exit(1)
    except KeyboardInterrupt:
        os._exit(130)
    finally:
        os._exit(2)


def _telling(tells: int) -> Callable[[int], Any]:
    return lambda taken: os.write(tells, b".")


def _wait_for(heard: int, batches: int) -> int:
    """Wait until it has taken so many batches: one dot more, for the beginning. What it has taken."""
    seen, deadline = 0, time.monotonic() + TO_COME
    while seen < batches + 2 and time.monotonic() < deadline:
        ready, _, _ = select.select([heard], [], [], 0.5)
        if ready:
            dots = os.read(heard, batches + 2 - seen)
            if not dots:
                break  # it has ended by itself
            seen += len(dots)
    return seen - 1


def _ended(pid: int, signalled: int) -> list[str]:
    """Wait for its end; complain if it does not come. Ctrl-C is pressed once more after a while: what it raises is lost
    where it comes while Python runs a finalizer."""
    deadline = time.monotonic() + TO_END
    again = deadline - TO_END / 2 if signalled == signal.SIGINT else deadline
    while time.monotonic() < deadline:
        found, _ = os.waitpid(pid, os.WNOHANG)
        if found:
            return []
        if time.monotonic() > again:
            os.kill(pid, signalled)
            again = deadline
        time.sleep(0.001)  # sleep: until it has gone
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return [f"the program was still there {TO_END:g} s after the signal"]


def _gone() -> tuple[float, list[str]]:
    """Wait for what it has started to go. The seconds that took, and what has not gone."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = list(descendants(os.getpid()))
        if not left or time.monotonic() > began + TO_GO:
            break
        time.sleep(0.001)  # sleep: until they have gone
    end_all(os.getpid())
    return time.monotonic() - began, [f"process {one.pid} at depth {one.depth}" for one in left]
