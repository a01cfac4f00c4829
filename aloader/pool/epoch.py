"""One pass over the data: carries the dispatcher's decisions out on a crew, and holds what is ready for the user.

Synchronous and without waiting: both drivers (`asynchronous`, `blocking`) use it in the same way. They feed it by
letting the crew read, and take from it. Nothing that must not be lost ever lies in a coroutine: a batch is in the
dispatcher or in `_ready` until the step that returns it to the user.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from aloader import errors, options
from aloader.channel.blame import named
from aloader.channel.faults import unpack_fault
from aloader.channel.messages import Granted, LeftOut, Ticket
from aloader.channel.record import Record
from aloader.channel.tolerance import Tolerance
from aloader.device.stage import Stage, Way
from aloader.engine import Awaited, Dispatcher, DispatcherConfig, events
from aloader.errors import LoaderClosed
from aloader.pool import deaths
from aloader.pool.crew import Crew
from aloader.pool.outcomes import Lost, Outcomes, Source, Unpackable, packed, unpacked
from aloader.pool.refusals import denied
from aloader.pool.replacing import Replacing
from aloader.pool.starter import Exit
from aloader.pool.workers import Worker
from aloader.stats import EpochCounts


class Epoch:
    """See the top of this file."""

    def __init__(
        self,
        crew: Crew,
        number: int,
        source: Source,
        config: DispatcherConfig,
        finish: Callable[[Any], Any] | None = None,
        notice: Callable[[str], None] | None = None,
        key: int | None = None,
        record: Record | None = None,
        tolerance: Tolerance | None = None,
        way: tuple[Way, int, bool] | None = None,
    ) -> None:
        self.number = number
        self.finished = False
        self.closed = False
        self.counts = EpochCounts()
        self.at_end: Callable[[], object] = lambda: None  # called when everything has been given
        self._crew = crew
        self._source = source
        self._finish_batch = finish  # what is done with a batch in this process before the user gets it
        self._notice = notice
        self._key = key  # of the samples' generators
        self.record = record or Record()
        self._notices: list[str] = []  # not passed on yet
        #: What batches go through before they are given: the way, how many are ahead, and whether its end is not here.
        self.stage = None if way is None else Stage(*way[:2], unpacked, self.record.number_of, late=way[2])
        self._replacing = Replacing(crew, self.record, shares=config.interchangeable)
        self._shares = config.interchangeable
        self._source_error: BaseException | None = None
        self._dispatcher = Dispatcher(config)
        self._events: deque[events.Event] = deque()
        self._handling = False
        self._indices: dict[int, Any] = {}
        self._slots: dict[int, int] = {}  # who works on a ticket, or did
        self.taken: tuple[int, Any, int | None] | None = None  # seq, indices and slot of what was given last
        self.outcomes = None if tolerance is None else Outcomes(tolerance, self)
        self._ready: deque[events.Deliver | events.Raise] = deque() if self.outcomes is None else self.outcomes
        self._acts: Final[dict[type[Any], Callable[[Any], None]]] = {
            events.Draw: self._draw,
            events.Assign: self._assign,
            events.Grant: self._grant,
            events.Deliver: self._ready.append if self.outcomes is None else self.outcomes.deliver,
            events.Omit: self._omit,
            events.Raise: self._ready.append,
            events.Discard: lambda command: None,  # dropping it ends its leases
            events.Restart: self._restart,
            events.Prepare: lambda command: crew.prepare(crew.who.num_workers),
            events.Replace: self._replace,
            events.Finish: self._finish,
        }

    # -- for the drivers -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Draw the first tickets. The sampler's iterator must exist."""
        self._handle(events.Opened())

    def staff(self) -> None:
        """Launch the workers that are missing, and use those that are there."""
        for slot in range(self._crew.who.num_workers):
            worker = self._crew.workers.get(slot)
            if worker is None:
                self._replacing.begins(slot)
                self._crew.launch(slot, 0)
                continue
            worker.generation = 0
            if worker.pid:
                self._handle(events.WorkerReady(slot, 0, worker.served))

    @property
    def idle(self) -> bool:
        """Whether no worker has a ticket."""
        return self.closed or not any(self._dispatcher.statistics().held)

    @property
    def available(self) -> bool:
        """Whether `take` has something: a batch, an error or the end."""
        if self._ready:
            return self.stage is None or self.stage.ready(self._ready[0])
        return self.finished or self.closed

    @property
    def arrived(self) -> bool:
        """Whether the next one is here, if perhaps not ready."""
        return bool(self._ready)

    def advance(self) -> None:
        """Let the first batches go on their way."""
        if self.stage is not None:
            self.stage.advance(self._ready)

    def settle(self) -> bool:
        """If there is a batch, wait until it can be taken. False if there is none."""
        if self.stage is not None and self._ready:
            self.stage.settle(self._ready)
        return bool(self._ready)

    def take(self) -> Any:
        """The next batch. Raises what failed in its place, and StopIteration at the end."""
        self._replacing.warn()
        if self._notices and (self.counts.delivered >= options.NOTICE_AFTER or not self._ready):
            self._pass_on()
        if self.outcomes is not None:
            self.outcomes.tell(at_end=self.finished and not self._ready)
        if not self._ready:
            raise self._end()
        outcome, given = self._ready.popleft(), False
        try:
            if isinstance(outcome, events.Deliver):
                self.counts.delivered += 1
                batch = unpacked(outcome) if self.stage is None else self.stage.take(outcome)
                batch = batch if self._finish_batch is None else self._finish_batch(batch)
                given = True
                return batch
            self.counts.failed += 1
            error = outcome.error
            if type(error) is errors.WorkerLost or type(error) is errors.SampleTimeout:
                fresh = copy.copy(error)  # the dispatcher keeps its own, which must not know frames of the user's
                fresh.__cause__ = error.__cause__
                raise fresh
            raise unpack_fault(error) if isinstance(error, bytes) else cast("BaseException", error)
        finally:
            seq, slot = outcome.seq, self._slots.pop(outcome.seq, None)
            self.taken = self.record.number_of(seq), self._indices.pop(seq, None), slot
            if self.outcomes is not None:
                self.outcomes.taken(outcome, self.taken, given=given)
            if given:
                self.record.gave(seq, slot, getattr(outcome.batch, "mark", None))  # type: ignore[union-attr]
            else:
                self.record.failed(seq)
            self._handle(events.Consumed(outcome.seq))
            self._crew.flush()

    def close(self) -> None:
        """Nobody looks at this epoch any more."""
        if self.closed:
            return
        self.closed = True
        self._pass_on()
        if self.stage is not None:
            self.stage.close()
        self._handle(events.Closed())
        self._ready.clear()

    def late(self) -> str:
        """Who is late with the next batch, in words."""
        return "; ".join(deaths.standing(worker, self) for worker in self._crew.workers.values())

    def ticket(self, epoch: int, seq: int) -> tuple[Any] | None:
        """Its indices (None: it has none), if it is of this epoch and the user has not been given it; else None."""
        return (self._indices[seq],) if epoch == self.number and seq in self._indices else None

    @property
    def awaited(self) -> Awaited | None:
        """The batch that is waited for, and whose it is."""
        return self._dispatcher.awaited()

    @property
    def statistics(self) -> Any:
        """The dispatcher's."""
        return self._dispatcher.statistics()

    # -- what the crew hears ---------------------------------------------------------------------------------------

    def on_ready(self, worker: Worker) -> None:
        """A worker can be given tickets."""
        self._handle(events.WorkerReady(worker.slot, worker.generation))
        self._replacing.is_ready()

    def on_batch(self, worker: Worker, seq: int, nbytes: int, batch: Unpackable, seconds: tuple[float, float]) -> None:
        """A ticket has been finished, in so many seconds of fetching and collating."""
        counts = self.counts
        counts.fetch_seconds += seconds[0]
        counts.collate_seconds += seconds[1]
        counts.nbytes += nbytes
        self._replacing.arrived(seq, worker.slot, batch.mark)
        self._handle(events.BatchArrived(worker.slot, worker.generation, seq, nbytes, batch))

    def on_failure(self, worker: Worker, seq: int, fault: bytes | BaseException) -> None:
        """A ticket has failed in the user's code."""
        self._replacing.arrived(seq, worker.slot)
        self._handle(events.TicketFailed(worker.slot, worker.generation, seq, fault))

    def on_dry(self, worker: Worker, seq: int, mark: bytes | None = None) -> None:
        """A worker has come to the end of its share of an iterable dataset, which says this of itself."""
        self.record.dry(worker.slot, mark)
        self._handle(events.RanDry(worker.slot, worker.generation, seq))

    def on_nothing(self, worker: Worker, seq: int, mark: bytes | None, left_out: tuple[LeftOut, ...]) -> None:
        """All samples of a ticket have failed, and are left out."""
        self._replacing.arrived(seq, worker.slot, mark)
        self._handle(events.CameToNothing(worker.slot, worker.generation, seq, Lost(mark, left_out, worker.slot)))

    def on_notice(self, text: str) -> None:
        """A worker has something to say to the user."""
        self._notices.append(text)

    def _pass_on(self) -> None:
        texts, self._notices = self._notices, []
        for text in texts:
            if self._notice is not None:
                self._notice(text)

    def on_need(self, worker: Worker, seq: int, nbytes: int) -> None:
        """A worker waits for memory. What cannot be had is denied, and the worker answers with that."""
        if not denied(self._crew, self, worker, seq, nbytes):
            self._handle(events.NeedMemory(worker.slot, worker.generation, seq, nbytes))

    def on_lost(self, worker: Worker, exit: Exit) -> None:
        """A worker has died."""
        restarts = self._dispatcher.statistics().restarts
        self.counts.lost += 1
        self._handle(self._replacing.event_of(worker, exit, self))
        if self._dispatcher.statistics().restarts == restarts:
            self._replacing.lost_share(worker.slot)

    # -- carrying out ----------------------------------------------------------------------------------------------

    def _handle(self, event: events.Event) -> None:
        """Feed the dispatcher and do what it says, in order; what follows from that comes after it."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                commands: list[events.Command] = self._dispatcher.handle(self._events.popleft())
                for command in commands:
                    self._acts[type(command)](command)
        finally:
            self._handling = False
        if self.stage is not None and self.stage.stir is not None:
            self.stage.stir()  # not here, amid what a worker has said: `device_transform` may be interrupted

    def _draw(self, command: events.Draw) -> None:
        for _ in range(command.tickets):
            try:
                indices = self._source.draw()
            except StopIteration:
                self._events.append(events.Exhausted())
                return
            except BaseException as error:  # the sampler's own: raised when everything before it was delivered
                self._source_error = error
                self._events.append(events.Exhausted())
                return
            self._events.append(events.Drawn(indices))

    def _assign(self, command: events.Assign) -> None:
        slot, generation, seq, indices, allowance, alone, without = command
        worker = self._crew.workers.get(slot)
        if worker is None:
            return  # it has just gone: that will be reported
        self._indices[seq] = None if self._shares else indices
        self._slots[seq] = slot
        self.record.assigned(seq, slot)
        self._replacing.assigned(seq, slot)
        worker.served += 1
        ticket = Ticket(self._crew.who.dataset, self.number, seq, indices, allowance, self._key)
        if alone or without:
            ticket = ticket._replace(alone=alone, without=tuple((at, packed(error)) for at, error in without))
        try:
            worker.link.send(ticket)
        except Exception as error:
            error.add_note(f"the sampler's indices for batch {seq} could not be sent to a worker")
            self._events.append(events.TicketFailed(slot, generation, seq, error))

    def _restart(self, command: events.Restart) -> None:
        self._follow(self._replacing.restart(command))

    def _replace(self, command: events.Replace) -> None:
        self._follow(self._replacing.replace(command))

    def _follow(self, event: events.Event | None) -> None:
        if event is not None:
            self._events.append(event)

    def _grant(self, command: events.Grant) -> None:
        worker = self._crew.workers.get(command.slot)
        if worker is not None:
            worker.link.send(Granted(self._crew.who.dataset, self.number, command.seq))

    def _omit(self, command: events.Omit) -> None:
        if self.outcomes is not None and self.outcomes.omit(command):
            self._events.append(events.Consumed(command.seq))

    def _finish(self, command: events.Finish) -> None:
        self.finished = True

    def _end(self) -> BaseException:
        """What is raised when nothing is left: the sampler's error once, and from then on the end."""
        if not self.finished:
            return LoaderClosed("the loader was closed while a batch was waited for")
        error, self._source_error = self._source_error, None
        if error is None:
            self.record.ended = True
            self.at_end()
        return error if error is not None else StopIteration()

    def sample_at(self, epoch: int, seq: int, position: int) -> Any:
        """The index at a position of a ticket of this epoch, None where that is not known."""
        indices = self._indices.get(seq)
        if epoch != self.number or indices is None or position < 0:
            return None
        try:
            return named(indices, position, self._crew.who.auto_collation)
        except LookupError:
            return None
