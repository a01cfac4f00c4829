"""Workers that take the place of others in an epoch: where they go on, and what the user is told. The dispatcher says
when and which; the crew starts them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aloader import engine, errors
from aloader.channel.record import Record
from aloader.pool import deaths
from aloader.pool.starter import Exit
from aloader.pool.workers import Worker

if TYPE_CHECKING:
    from aloader.pool.crew import Crew

_LOST_SHARE: Final = (
    "The rest of its share of the iterable dataset is lost: nobody could go on where it was. One is replaced where "
    "its dataset has state_dict and load_state_dict, as often as max_worker_restarts allows. Iterating on gives what "
    "the other workers read."
)


class Replacing:
    """What an epoch knows of workers that have gone. `shares`: each has its own share of an iterable dataset."""

    def __init__(self, crew: Crew, record: Record, *, shares: bool) -> None:
        self._crew = crew
        self._shares = shares
        self._arrivals = record.arrivals()  # of datasets with a state: what is not to be made again
        self._losses: dict[int, BaseException] = {}  # by slot: the latest
        self._untold: list[Warning] = []
        self._wants_spare = False

    def assigned(self, seq: int, slot: int) -> None:
        """A worker is given a ticket."""
        if self._arrivals is not None:
            self._arrivals.assigned(seq, slot)

    def arrived(self, seq: int, slot: int, mark: bytes | None = None) -> None:
        """It has been answered: whoever replaces the worker does not make it again."""
        if self._arrivals is not None:
            self._arrivals.gave(seq, slot, mark)

    def event_of(self, worker: Worker, exit: Exit, epoch: deaths.Mourner) -> engine.WorkerLost:
        """What the dispatcher is told of a death."""
        event = deaths.event_of(worker, exit, epoch, self._crew)
        assert isinstance(event.error, BaseException)
        self._losses[worker.slot] = event.error
        return event

    def is_ready(self) -> None:
        """A worker can be given tickets. Whoever has lost one may lose another: the next one is started now, so that it
        has not to be waited for then, and not while a replacement has yet to come up."""
        if self._wants_spare:
            self._wants_spare = False
            self._crew.prepare(1)

    def lost_share(self, slot: int) -> None:
        """Nobody goes on with it."""
        if self._shares:
            self._losses[slot].add_note(_LOST_SHARE)

    def begins(self, slot: int) -> None:
        """A worker is to be started there: note where it goes on. Raises what its dataset raised when it was asked."""
        if self._arrivals is None:
            return
        resume = self._arrivals.shares[slot].resume()
        self._crew.launcher.resumes[slot] = pickle.dumps(resume, 5)
        if self._shares and (resume.reads_from, resume.beyond) != (resume.low, ()):
            self._crew.launcher.states.pop(slot, None)  # they are those behind what it reads again

    def restart(self, command: engine.Restart) -> engine.WorkerLost | None:
        """Start another process, and say why. Returns what has happened if none can be started."""
        if command.lean:
            self._crew.launcher.lean.add(command.slot)
        failed = self._launch(command.slot, command.generation, self._crew.launch)
        if failed is None:
            self._wants_spare = True
            what = "Another process goes on with its batches: nothing is lost."
            self._untold.append(errors.WorkerWarning(f"{self._losses.pop(command.slot)}\n{what}"))
        return failed

    def replace(self, command: engine.Replace) -> engine.WorkerLost | None:
        """Let a process go and start another one; the same."""
        self._crew.launcher.states[command.slot] = self._crew.workers[command.slot].noted
        return self._launch(command.slot, command.generation, self._crew.replace)

    def _launch(self, slot: int, generation: int, launch: Callable[[int, int], None]) -> engine.WorkerLost | None:
        """If it fails (no descriptors, no memory; a dataset that could not say where it was), it is as if the process
        had died at once, so that nobody waits for it. It would fail again: nobody takes its place."""
        try:
            self.begins(slot)
            launch(slot, generation)
        except Exception as error:
            before = self._losses.get(slot, "a DataLoader worker was to be replaced")
            lost = errors.WorkerLost(f"{before}\nIt could not be replaced: {error}", worker=slot)
            self._losses[slot] = lost
            self.lost_share(slot)
            return engine.WorkerLost(slot, generation, None, lost, final=True)
        return None

    def warn(self) -> None:
        """Tell the user, in a step of his."""
        while self._untold:
            warnings.warn(self._untold.pop(0), stacklevel=5)  # behind the epoch's step and the driver's two
