"""How a crew's processes begin: forked or spawned, perhaps ahead of time, and told who they are. Listens to nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aloader.channel.link import Link, pair
from aloader.channel.messages import Call, Start
from aloader.channel.roles import Who
from aloader.channel.status import StatusPage
from aloader.pool.starter import Loaded
from aloader.pool.workers import Worker

if TYPE_CHECKING:
    from aloader.pool.crew import Crew, Host


class Launcher:
    """What workers are started with. A *spare* is a process that knows its job and not yet who it is: all that takes
    time is behind it."""

    def __init__(self, host: Host, who: Who, crew: Crew) -> None:
        self.resumes: dict[int, bytes] = {}  # by slot: where its next worker goes on (pickled), if not at the beginning
        self.states: dict[int, bytes] = {}  # of lost workers' generators, by slot: who replaces them goes on there
        self.lean: set[int] = set()  # slots that took too much memory: they have half as many samples in flight
        self._host = host
        self._who = who
        self._crew = crew
        self._loaded: Loaded | None = None
        self._flags = b""
        self._calls: list[Call] = []  # of all that have been broadcast
        self._spares: dict[int, Worker] = {}  # by slot

    def use(self, loaded: Loaded, flags: bytes) -> None:
        """Start workers with this job: also those that replace others, when the pool has long loaded another.

        `flags` are those that have changed in this process since it was loaded.
        """
        self._loaded, self._flags = loaded, flags
        loaded.users.add(self._crew)

    def drop(self) -> None:
        """Nothing will be started any more."""
        if self._loaded is not None:
            self._loaded.users.discard(self._crew)

    def call(self, message: Call) -> None:
        """Have workers make this call that are told later who they are, if their dataset is an older one."""
        self._calls.append(message)

    def prepare(self, slot: int) -> Worker | None:
        """Start a process for that slot, unless one waits already: it is told who it is when it is needed."""
        if slot in self._spares:
            return None
        self._spares[slot] = worker = self._spawn(slot)
        return worker

    def forget(self, worker: Worker) -> bool:
        """A process has gone. Whether it was a spare."""
        if self._spares.get(worker.slot) is not worker:
            return False
        del self._spares[worker.slot]
        return True

    def take_spares(self) -> list[Worker]:
        """Those that nobody will need."""
        spares, self._spares = list(self._spares.values()), {}
        return spares

    def launch(self, slot: int, generation: int) -> Worker:
        """A worker, which says by itself that it is ready."""
        worker = self._spares.pop(slot, None) or self._spawn(slot)
        worker.generation = generation
        worker.states, who = self.states.pop(slot, b""), self._who
        if slot in self.lean:
            who = who._replace(concurrency=max(1, who.concurrency // 2))
        whence = {"flags": self._flags, "resume": self.resumes.pop(slot, b""), "states": worker.states}
        worker.link.send(Start(slot=slot, generation=generation, **who._asdict(), **whence))  # type: ignore[arg-type]
        for call in self._calls[worker.calls :]:
            worker.link.send(call)
        return worker

    def _spawn(self, slot: int) -> Worker:
        assert self._loaded is not None, "there is a job"
        mine, theirs = pair()
        try:
            page, status = StatusPage.create()
        except OSError:
            mine.close()
            theirs.close()
            raise
        worker = Worker(slot, 0, self._host.new_key(self._crew), Link(mine), page)
        starter = self._host.starter
        worker.calls = 0 if starter.carries else len(self._calls)
        starter.start(self._loaded, worker.key, theirs, status)
        return worker
