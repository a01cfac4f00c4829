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
        self._calls: list[Call] = []  # that workers have to make which are started from now on
        self._spares: list[Worker] = []

    def use(self, loaded: Loaded, flags: bytes) -> None:
        """Start workers with this job: also those that replace others, when the pool has long loaded another.

        `flags` are those that have changed in this process since it was loaded.
        """
        self._loaded, self._flags = loaded, flags
        loaded.users.add(self._crew)
        if self._crew.ended:  # meanwhile: loading takes its time, in a thread
            self.drop()

    def drop(self) -> None:
        """Nothing will be started any more."""
        if self._loaded is not None:
            self._loaded.users.discard(self._crew)

    def call(self, message: Call) -> None:
        """Have workers that are started later make this call, if they begin with an older pickle of the dataset."""
        if self._host.starter.carries:
            self._calls.append(message)

    def prepare(self, most: int) -> Worker | None:
        """Start a spare, unless so many wait already."""
        if len(self._spares) >= most:
            return None
        worker = self._spawn()
        self._spares.append(worker)
        return worker

    def forget(self, worker: Worker) -> bool:
        """A process has gone. Whether it was a spare."""
        if worker not in self._spares:
            return False
        self._spares.remove(worker)
        return True

    def take_spares(self) -> list[Worker]:
        """Those that nobody will need."""
        spares, self._spares = self._spares, []
        return spares

    def launch(self, slot: int, generation: int) -> Worker:
        """A worker, which says by itself that it is ready."""
        worker = self._spares.pop(0) if self._spares else self._spawn()
        worker.slot, worker.generation = slot, generation
        worker.states, who = self.states.pop(slot, b""), self._who
        if slot in self.lean:
            who = who._replace(concurrency=max(1, who.concurrency // 2))
        whence = {"flags": self._flags, "resume": self.resumes.pop(slot, b""), "states": worker.states}
        worker.link.send(Start(slot=slot, generation=generation, **who._asdict(), **whence))  # type: ignore[arg-type]
        for call in self._calls:
            worker.link.send(call)
        return worker

    def _spawn(self) -> Worker:
        assert self._loaded is not None, "there is a job"
        mine, theirs = pair()
        try:
            page, status = StatusPage.create()
        except OSError:
            mine.close()
            theirs.close()
            raise
        worker = Worker(-1, 0, self._host.new_key(self._crew), Link(mine), page)
        worker.mappings.pages = self._crew.pages
        self._host.starter.start(self._loaded, worker.key, theirs, status)
        return worker
