"""The death of a worker: what the dispatcher is told of it, and the user. Looks at what the dead has left behind;
decides nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from aloader import engine, errors
from aloader.channel import stacks
from aloader.channel.status import Doing, Status
from aloader.pool.starter import Exit
from aloader.pool.workers import Worker

if TYPE_CHECKING:
    from aloader.pool.crew import Crew

#: What `faulthandler` answers. Who was ended by another one has not crashed; a process that it had forked may have.
_CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

#: What is shown of its output.
_LAST_LINES: Final = 12


class Mourner(Protocol):
    """Who wants to know: an epoch, which knows what its tickets are made of."""

    number: int

    def sample_at(self, epoch: int, seq: int, position: int) -> Any: ...


def event_of(worker: Worker, exit: Exit, epoch: Mourner, crew: Crew) -> engine.WorkerLost:
    """What the dispatcher is told."""
    status = worker.page.read()
    mine = status.epoch == epoch.number
    sample = epoch.sample_at(status.epoch, status.seq, status.position)
    killed = exit.signal == signal.SIGKILL and not (exit.incident or worker.fault or worker.stuck or worker.requested)
    starved = crew.oom.news() if killed else ""
    hint = _hint(crew, starved) if killed else ""
    error: errors.LoaderError = worker.stuck or _lost(worker, exit, status, sample, hint)
    at_work = mine and status.doing in (Doing.FETCHING, Doing.COLLATING) and not (exit.incident or worker.requested)
    return engine.WorkerLost(
        worker.slot,
        worker.generation,
        status.seq if at_work else None,
        error,
        place=status.position if at_work and status.doing is Doing.FETCHING and status.position >= 0 else None,
        certain=bool(exit.incident) or worker.requested or status.doing is not Doing.FETCHING_SEVERAL,
        incident=exit.incident,
        oom=bool(starved),
        stuck=worker.stuck is not None,
    )


def _hint(crew: Crew, starved: str) -> str:
    """Why somebody may have sent it SIGKILL."""
    if starved:
        return (
            f" The kernel's out-of-memory killer did it: {starved}. Use fewer workers, a smaller batch_size, "
            f"concurrency= or memory_limit=, or allow more memory. Memory now: {_memory_of(crew)}."
        )
    if crew.oom.sees:
        return " It was not the kernel's out-of-memory killer, whose count has not changed: somebody sent the signal."
    return " SIGKILL often is the kernel's out-of-memory killer (see `dmesg`): use fewer workers or memory_limit=."


def _memory_of(crew: Crew) -> str:
    """What the program and each worker have in memory, in words."""
    workers = [(f"worker {worker.slot}", worker.pid) for worker in crew.workers.values() if worker.pid]
    sizes = [(who, resident(pid)) for who, pid in [("the program", os.getpid()), *workers]]
    return ", ".join(f"{who} {nbytes / 1e6:.0f} MB" for who, nbytes in sizes if nbytes)


def resident(pid: int) -> int:
    """Bytes of memory that a process has, what it shares with others included; 0 where there is none to ask."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _lost(worker: Worker, exit: Exit, status: Status, sample: Any, hint: str) -> errors.WorkerLost:
    """The error, in words."""
    if worker.fault is not None:
        how = f"was given up: {worker.fault}"
    elif worker.requested:
        how = "was ended by restart_worker"
    elif exit.incident:
        end = f", which exited with code {exit.exit_code}" if exit.exit_code else ""
        how = f"was lost with the process that workers are forked from{end}"
    elif exit.signal:
        name = signal.Signals(exit.signal).name if exit.signal in signal.valid_signals() else str(exit.signal)
        how = f"was killed by signal {name}"
    else:
        how = f"exited unexpectedly with code {exit.exit_code}"
    peak = f" Its peak memory was {exit.peak / 1e6:.0f} MB." if exit.peak else ""
    message = f"DataLoader worker (pid {worker.pid or 'unknown'}) {how}{_while(status, sample)}.{peak}{hint}"
    return errors.WorkerLost(
        message + last_words(worker, exit),
        worker=worker.slot,
        pid=worker.pid,
        signal=exit.signal,
        exit_code=exit.exit_code,
        sample=sample,
    )


def _while(status: Status, sample: Any) -> str:
    """What it was at."""
    doing = {Doing.FETCHING: "fetching", Doing.COLLATING: "collating", Doing.WAITING: "waiting for memory"}
    doing[Doing.DEBUGGING] = "its debugger was at work"
    doing[Doing.FETCHING_SEVERAL] = "fetching several samples, the latest of them"
    doing[Doing.AWAITING] = "all its samples waited, the latest of them"
    what = f" while {doing[status.doing]}" if status.doing in doing else ""
    fetching = status.doing in (Doing.FETCHING, Doing.FETCHING_SEVERAL, Doing.AWAITING)
    which = f" sample {sample!r}" if sample is not None and fetching else ""
    return f"{what}{which}" + (f" (batch {status.seq})" if status.seq >= 0 and what else "")


def last_words(worker: Worker, exit: Exit) -> str:
    """Where it crashed, as `faulthandler` has written it, and what it last wrote to its standard error."""
    dump = worker.page.crash if exit.signal in _CRASHES else b""
    crash = [stacks.text(stack.frames) for stack in stacks.different(stacks.parse(dump))[:1]]
    said = worker.page.said.strip().splitlines()[-_LAST_LINES:]
    where = "\nIt crashed here (most recent call last):\n" + crash[0] if crash else ""
    return where + ("\nThe last that it wrote to stderr:\n  " + "\n  ".join(said) if said else "")


def standing(worker: Any, epoch: Mourner) -> str:
    """What a worker (or who stands in for one) that is late is at, in words."""
    status = worker.page.read()
    seconds = time.monotonic() - status.since
    sample = epoch.sample_at(status.epoch, status.seq, status.position)
    fetching = status.doing in (Doing.FETCHING, Doing.FETCHING_SEVERAL, Doing.AWAITING)
    return (
        f"worker {worker.slot} (pid {worker.pid or worker.page.pid or 'starting'}): "
        + ("fetching" if fetching else status.doing.name.lower())
        + (f" sample {sample!r}" if sample is not None and fetching else "")
        + (f" of batch {status.seq}" if status.seq >= 0 else "")
        + (f" for {seconds:.1f} s" if status.since else "")
    )
