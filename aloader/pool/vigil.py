"""Watching for workers that are stuck in a sample, which only another process can do: `sample_timeout`.

A sample of an ordinary dataset runs in its worker's only thread, and cannot be interrupted there. So the parent looks
at the status pages while its consumer waits for a batch, and whoever stands at one sample for too long is asked for his
stack and killed. The engine gives its tickets to a new process, and fails the sample when it is stuck there as well.

Samples on a worker's loop, and in its threads, are timed by the worker itself (`worker.deadlines`). Here it is only
seen whether its loop goes round: within twice the time, whatever it had begun is over.

`Vigil` decides, from what was seen and when; `Caught` acts. Only time in which somebody looks is counted: while the
program does something else, or is stopped, nobody sees what the workers do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from aloader import options
from aloader.channel.lateness import sample_timeout
from aloader.channel.status import Status
from aloader.errors import SampleTimeout
from aloader.pool.inquiry import Inquiry, indices_of, report

#: How often the pages are looked at, at least: seconds, and part of the time that a sample may take.
_PACE: Final = 1.0
_SHARE: Final = 0.25


class Seen(NamedTuple):
    """What a worker's page says. `key` is its process's; `timed`: it looks after its samples itself; `samples`: how
    many the ticket has."""

    slot: int
    key: int
    status: Status
    timed: bool = False
    samples: int = 1


class Stand(NamedTuple):
    """Where a worker stands, and for how many seconds it has been seen there."""

    key: int
    epoch: int
    seq: int
    position: int
    seconds: float = 0.0


class Vigil:
    """Who is stuck. `limit` is in seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.pace = min(_PACE, limit * _SHARE)
        self._stands: dict[int, Stand] = {}
        self._looked = -math.inf

    def look(self, workers: Iterable[Seen], now: float, undisturbed: float = math.inf) -> list[Seen]:
        """Those that are stuck, at every look: whoever was told of them may have been cancelled before they were
        killed. `undisturbed`: seconds since the user was last in a debugger."""
        passed = min(now - self._looked, 2 * self.pace)
        self._looked = now
        stuck, stands = [], {}
        for seen in workers:
            doing, epoch, seq, position, _ = seen.status
            if not doing.name.startswith("FETCHING") or undisturbed < passed:
                continue
            stand, before = Stand(seen.key, epoch, seq, position), self._stands.get(seen.slot)
            if before is not None and before[:4] == stand[:4]:
                stand = stand._replace(seconds=before.seconds + passed)
            stands[seen.slot] = stand
            if stand.seconds >= self._patience(seen):
                stuck.append(seen)
        self._stands = stands
        return stuck

    def _patience(self, seen: Seen) -> float:
        limit = self._limit * (seen.samples if seen.status.position == -1 else 1)
        return 2 * limit + options.CLOSE_GRACE if seen.timed else limit


class Caught:
    """Workers that are stuck: they are asked for their stacks. Look again until it is `over`; then `replace` them."""

    def __init__(self, crew: Any, epoch: Any, seen: list[Seen], seconds: float) -> None:
        self._crew = crew
        self._seconds = seconds
        self._asked: list[tuple[Any, Seen, Any, Inquiry]] = []
        for one in seen:
            worker, status = crew.workers[one.slot], one.status
            (indices,) = epoch.ticket(status.epoch, status.seq) or (None,)
            self._asked.append((worker, one, indices, worker.inquire(status.epoch, status.seq)))

    def over(self) -> bool:
        """Whether all have answered, or are not waited for any longer."""
        return all(inquiry.over() for *_, inquiry in self._asked)

    def replace(self) -> None:
        """Kill those that have not moved meanwhile."""
        for worker, seen, indices, inquiry in self._asked:
            if self._crew.workers.get(seen.slot) is worker and worker.page.read()[:4] == seen.status[:4]:
                worker.stuck = self._error(seen, indices, inquiry)
                self._crew.kill(seen.slot)
                worker.requested = False  # not by the user

    def _error(self, seen: Seen, indices: Any, inquiry: Inquiry) -> SampleTimeout:
        _, _, seq, position, _ = seen.status
        samples = [] if indices is None else indices_of(indices, self._crew.who.auto_collation)
        index = samples[position] if 0 <= position < len(samples) else None
        stack = report(f"Worker {seen.slot}", inquiry.told(), samples)
        together = seen.samples if position == -1 else 0
        seconds = self._seconds * (together or 1)
        return sample_timeout(index, seconds, stack, batch=seq, worker=seen.slot, together=together)


class Watch:
    """The vigil over a crew while one of its epochs is under way."""

    def __init__(self, crew: Any, epoch: Any, seconds: float) -> None:
        self._crew = crew
        self._epoch = epoch
        self._seconds = seconds
        self._vigil = Vigil(seconds)
        self._next = -math.inf
        self.pace = self._vigil.pace

    def look(self) -> Caught | None:
        """Whoever is stuck, if anybody is. Looks no more often than it must."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + self.pace
        seen = [self._seen(worker) for worker in self._crew.workers.values() if worker.stuck is None]
        stuck = self._vigil.look(seen, now, self._crew.undisturbed)
        return Caught(self._crew, self._epoch, stuck, self._seconds) if stuck else None

    def _seen(self, worker: Any) -> Seen:
        status = worker.page.read()
        (indices,) = self._epoch.ticket(status.epoch, status.seq) or (None,)
        together = status.position == -1 and indices is not None
        samples = len(indices_of(indices, self._crew.who.auto_collation)) if together else 1
        return Seen(worker.slot, worker.key, status, worker.page.timed, max(1, samples))
