"""Which worker gets which ticket, when memory may be taken, and in which order batches leave.

A pure, synchronous state machine: feed `Dispatcher.handle` one event at a time and carry out the commands it returns,
in their order. No asyncio, processes, torch, clock, logging or I/O may enter here. It makes no difference how late the
driver answers a command; events of different workers may come in any order. (`work` says why nothing is stuck.)

A ticket is always in exactly one place, and the place is its state:

    ===========  =====================  ===================================================================
    state        kept in                leaves it by
    ===========  =====================  ===================================================================
    queued       `lane.queue`           being assigned: its lane has a ready slot with credit, and there is
                                        memory for its allowance; or failing: its lane's last slot has ended.
                                        A slot whose process is worn, or not fresh where the ticket must be
                                        alone, is given another one first, when it holds nothing
    held         `slot.held`            BatchArrived, TicketFailed, CameToNothing: landed. WorkerLost: queued
                                        again, without its reservation; landed if it is to blame (`losses`), or
                                        nobody can have it.
                                        RanDry, if it is not older than that: gone
    landed       `Delivery.landed`      Deliver, Raise or Omit, when its turn has come (without order: at once)
    unconsumed   `Delivery.unconsumed`  Consumed: then it is forgotten
    ===========  =====================  ===================================================================

A queued ticket whose slot could take it, or a held one whose worker has asked for more memory, may besides be *waiting
for memory* (`Ticket.wants`); a held ticket that is not is *under way*: its worker will say something about it.

What holds after every event:

1.  Tickets are numbered as they are drawn, from `config.first` on, and leave exactly once: in the order of their
    numbers with `in_order=True`.
2.  A slot holds at most `credit` tickets, all given to its present generation; an ended or starting slot holds none.
    What is said in the name of another generation, or of a ticket the slot does not hold, changes nothing.
3.  At most `window` tickets are drawn (or being drawn) and not consumed; more, up to `far_window`, by as many as are
    landed and blocked by one before them.
4.  Reservations add up to at most `memory_limit`, but for one ticket that goes ahead (`Work.goes_ahead`) and for what
    arrives larger than its worker had asked for.
5.  No ticket waits that could go: the lowest that waits for memory may not have it, and every queue whose lane has a
    taker has its first ticket waiting for memory.

Of an iterable dataset, tickets are interchangeable: each says "the next batch of yours". A slot whose worker has run
dry is given no more; what it had left is skipped, and others are drawn for those that go on. A worker that is lost and
not replaced takes its share with it: one ticket says so, and the rest of its tickets are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aloader.engine import events, invariants, statistics
from aloader.engine.config import DispatcherConfig
from aloader.engine.delivery import Delivery
from aloader.engine.events import (
    BatchArrived,
    Command,
    Deliver,
    Discard,
    Draw,
    Event,
    Finish,
    Omit,
    Raise,
    Restart,
)
from aloader.engine.losses import Losses
from aloader.engine.slots import Slot
from aloader.engine.window import Window
from aloader.engine.work import Awaited, Work


class Dispatcher:
    """One epoch's decisions. See the top of this file."""

    __slots__ = (
        "_closed",
        "_config",
        "_delivery",
        "_drawing",
        "_drawn",
        "_failed",
        "_finished",
        "_last_loss",
        "_losses",
        "_opened",
        "_skipped",
        "_untold",
        "_window",
        "_work",
    )

    def __init__(self, config: DispatcherConfig) -> None:
        self._config = config
        self._delivery = Delivery(in_order=config.in_order, first=config.first)
        self._work = Work(config, self._delivery)
        much = config.memory_limit // 4
        windows = config.narrow_window, config.window, config.far_window
        self._window = Window(*windows, min(config.wide_window_bytes, much), much)
        self._drawn = config.first  # the number of the next ticket
        self._failed = 0
        self._skipped = 0
        self._losses = Losses(config.max_restarts, tolerant=config.tolerant)
        self._last_loss: object = None  # its error
        self._untold = False  # it took a share with it, and no ticket has said so yet
        self._opened = False
        self._drawing = False
        self._finished = False
        self._closed = False

    def handle(self, event: Event) -> list[Command]:
        """What must be done, in this order, now that `event` has happened."""
        commands: list[Command] = []
        if self._closed:
            self._after_close(event, commands)
            return commands
        _HANDLERS[type(event)](self, event, commands)
        if self._delivery.blocked:
            self._draw(commands)
        if self._work.memory.waiting:
            self._work.serve(commands)
        return commands

    # -- drawing ----------------------------------------------------------------------------------------------------

    def _on_opened(self, event: events.Opened, commands: list[Command]) -> None:
        assert not self._opened, "an epoch opens once"
        self._opened = self._drawing = True
        self._draw(commands)

    def _on_drawn(self, event: events.Drawn, commands: list[Command]) -> None:
        assert self._window.pending > 0, "the sampler was advanced without being asked to"
        self._window.pending -= 1
        seq = self._drawn
        self._drawn = seq + 1
        if self._untold:
            self._tell(seq, commands)
        elif self._work.cycle:
            self._work.add(seq, event.indices, commands)
        elif self._config.interchangeable:
            self._skip([seq], commands)
        else:
            self._give_up(seq, commands)

    def _on_exhausted(self, event: events.Exhausted, commands: list[Command]) -> None:
        self._drawing = False
        self._window.exhaust()
        self._finish_if_done(commands)

    def _draw(self, commands: list[Command]) -> None:
        if self._drawing and (count := self._window.ask(self._delivery.blocked)):
            commands.append(Draw(count))

    # -- what workers say -------------------------------------------------------------------------------------------

    def _on_worker_ready(self, event: events.WorkerReady, commands: list[Command]) -> None:
        slot = self._work.current(event.slot, event.generation)
        if slot is not None:
            self._work.ready(slot, event.served, commands)

    def _on_need_memory(self, event: events.NeedMemory, commands: list[Command]) -> None:
        slot = self._work.current(event.slot, event.generation)
        ticket = slot.held.get(event.seq) if slot is not None else None
        if ticket is not None:
            self._work.need(ticket, event.nbytes, commands)

    def _on_batch_arrived(self, event: BatchArrived, commands: list[Command]) -> None:
        index, generation, seq, nbytes, batch = event
        ticket = self._work.let_go(index, generation, seq)
        if ticket is None:
            commands.append(Discard(batch))
            return
        memory = self._work.memory
        memory.learn(nbytes)
        memory.reserve(ticket, nbytes)
        memory.allowance = nbytes
        self._delivery.land(seq, Deliver(seq, batch), nbytes, commands)
        self._window.learn(nbytes)
        self._draw(commands)
        self._work.refill(self._work.slots[index], commands)

    def _on_ticket_failed(self, event: events.TicketFailed, commands: list[Command]) -> None:
        ticket = self._work.let_go(event.slot, event.generation, event.seq)
        if ticket is not None:
            self._work.memory.reserve(ticket, 0)
            self._fail(event.seq, event.error, commands)
            self._work.refill(self._work.slots[event.slot], commands)

    def _on_came_to_nothing(self, event: events.CameToNothing, commands: list[Command]) -> None:
        ticket = self._work.let_go(event.slot, event.generation, event.seq)
        if ticket is not None:
            self._work.memory.reserve(ticket, 0)
            self._delivery.land(event.seq, Omit(event.seq, event.what), 0, commands)
            self._work.refill(self._work.slots[event.slot], commands)

    def _fail(self, seq: int, error: object, commands: list[Command]) -> None:
        """An error is the outcome of a ticket that has no memory."""
        self._failed += 1
        self._delivery.land(seq, Raise(seq, error), 0, commands)

    def _on_ran_dry(self, event: events.RanDry, commands: list[Command]) -> None:
        assert self._config.interchangeable, "only a share of an iterable dataset runs dry"
        slot = self._work.current(event.slot, event.generation)
        if slot is not None:
            self._skip(self._work.run_dry(slot, event.seq), commands)
            self._work.refill(slot, commands)

    def _skip(self, seqs: list[int], commands: list[Command]) -> None:
        """Nobody works on these, and nothing is missing: draw others, while somebody is left to work on them."""
        for seq in seqs:
            self._delivery.skip(seq, commands)
        self._skipped += len(seqs)
        self._window.outstanding -= len(seqs)
        if not self._work.cycle and not self._untold:
            self._drawing = False
        self._draw(commands)
        self._finish_if_done(commands)

    # -- lost workers -----------------------------------------------------------------------------------------------

    def _on_worker_lost(self, event: events.WorkerLost, commands: list[Command]) -> None:
        slot = self._work.current(event.slot, event.generation)
        if slot is None:
            return
        self._last_loss = event.error
        if self._config.interchangeable:
            if self._is_complete(slot) or not self._losses.is_replaced(event):
                self._lose_share(slot, event.running, commands)
            else:
                self._work.take_back(slot, None)
                self._restart(slot, event, commands)
            return
        failed = self._losses.condemned(slot, event)
        replaced = self._losses.is_replaced(event)
        if not replaced and failed is None and event.running is not None:
            failed = slot.held.get(event.running)
        self._work.take_back(slot, None if failed is None else failed.seq)
        if failed is not None:
            self._fail(failed.seq, event.error, commands)
        if replaced:
            self._restart(slot, event, commands)
            return
        for seq in self._work.end(slot):
            self._give_up(seq, commands)
        self._work.refill(slot, commands)

    def _restart(self, slot: Slot, event: events.WorkerLost, commands: list[Command]) -> None:
        if event.oom:
            self._window.halve()
        slot.begin_anew()
        commands.append(Restart(slot.index, slot.generation, event.oom))
        self._work.refill(slot, commands)

    def _lose_share(self, slot: Slot, running: int | None, commands: list[Command]) -> None:
        """The rest of a lost worker's share is lost with it. That is said once, in the place of one of its tickets, or
        of the next one drawn."""
        complete = self._is_complete(slot)
        lost = self._work.abandon(slot)
        if lost:
            told = running if running in lost else min(lost)
            lost.remove(told)
            self._fail(told, self._last_loss, commands)
        elif not complete:
            self._untold = True
        self._skip(lost, commands)
        self._work.refill(slot, commands)

    def _is_complete(self, slot: Slot) -> bool:
        """Whether its worker has nothing left to make: its share has been read, and all of it has arrived."""
        return slot.dry and not slot.held and not slot.own.queue

    def _tell(self, seq: int, commands: list[Command]) -> None:
        self._untold = False
        self._drawing = bool(self._work.cycle)
        self._fail(seq, self._last_loss, commands)

    def _give_up(self, seq: int, commands: list[Command]) -> None:
        """Fail a ticket that no slot is left for.

        When none is left at all, drawing ends here and not with the last slot: had everything drawn already arrived,
        the epoch would otherwise seem complete.
        """
        if not self._work.cycle:
            self._drawing = False
        self._fail(seq, self._last_loss, commands)

    # -- the consumer -----------------------------------------------------------------------------------------------

    def _on_consumed(self, event: events.Consumed, commands: list[Command]) -> None:
        self._work.memory.reserved -= self._delivery.consume(event.seq)
        self._window.outstanding -= 1
        self._draw(commands)
        self._finish_if_done(commands)

    def _finish_if_done(self, commands: list[Command]) -> None:
        if self._opened and not self._drawing and not self._window.outstanding and not self._finished:
            self._finished = True
            commands.append(Finish())

    def _on_closed(self, event: events.Closed, commands: list[Command]) -> None:
        self._closed = True
        self._drawing = False
        self._work.memory.reserved -= sum(entry[1] for entry in self._delivery.landed.values() if entry is not None)
        self._delivery.withdraw(commands)
        self._work.clear()
        self._window.exhaust()

    def _after_close(self, event: Event, commands: list[Command]) -> None:
        if isinstance(event, BatchArrived):
            commands.append(Discard(event.batch))
        elif isinstance(event, events.Consumed):
            self._work.memory.reserved -= self._delivery.consume(event.seq)

    # -- inspection -------------------------------------------------------------------------------------------------

    def statistics(self) -> statistics.DispatcherStatistics:
        """A snapshot. It looks at all slots and tickets: not for every batch."""
        return statistics.picture(self)

    def awaited(self) -> Awaited | None:
        """What the user waits for, and whose it is; None where it has not been drawn, or nobody holds it yet."""
        return self._work.awaited()

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"<Dispatcher {now.state}: {now.drawn} drawn, {now.queued} queued, {list(now.held)} held, "
            f"{now.landed} landed, {now.unconsumed} unconsumed, {now.consumed} consumed; "
            f"{now.reserved}/{now.memory_limit} bytes, {now.live_slots} live slots>"
        )

    def validate(self) -> None:
        """Assert every invariant. It looks at everything: for tests."""
        invariants.check(self)


#: Which method takes which event. A table, not a `match`: the events come by the hundred thousand, and a chain of
#: isinstance would cost as much as the rest.
_HANDLERS: Final[dict[type[Event], Callable[[Dispatcher, Any, list[Command]], None]]] = {
    events.Opened: Dispatcher._on_opened,
    events.Drawn: Dispatcher._on_drawn,
    events.Exhausted: Dispatcher._on_exhausted,
    events.WorkerReady: Dispatcher._on_worker_ready,
    events.NeedMemory: Dispatcher._on_need_memory,
    BatchArrived: Dispatcher._on_batch_arrived,
    events.TicketFailed: Dispatcher._on_ticket_failed,
    events.CameToNothing: Dispatcher._on_came_to_nothing,
    events.RanDry: Dispatcher._on_ran_dry,
    events.WorkerLost: Dispatcher._on_worker_lost,
    events.Consumed: Dispatcher._on_consumed,
    events.Closed: Dispatcher._on_closed,
}
