"""Which worker gets which ticket, when memory may be taken, and in which order batches leave.

A pure, synchronous state machine: feed `Dispatcher.handle` one event at a time and carry out the commands it returns,
in their order. No asyncio, processes, torch, clock, logging or I/O may enter here. It makes no difference how late the
driver answers a command; events of different workers may come in any order.

A ticket is always in exactly one place, and the place is its state:

    ===========  ====================  ====================================================================
    state        kept in               leaves it by
    ===========  ====================  ====================================================================
    queued       `lane.queue`          assigned: its lane has a ready slot with credit, and its allowance is free
    held         `slot.held`           BatchArrived, TicketFailed → landed; WorkerLost → landed if it was running,
                                       else queued again, without its reservation
    landed       `_landed`             its turn has come: Deliver or Raise (with `in_order=False`: at once)
    unconsumed   `_unconsumed`         Consumed; then it is forgotten
    ===========  ====================  ====================================================================

A queued ticket whose slot could take it, or a held one whose worker has asked for more memory, may besides be *waiting
for memory* (`Ticket.wants`); a held ticket that is not is *under way*: its worker will say something about it.

What holds after every event:

1.  Tickets are numbered as they are drawn and leave exactly once: in the order of their numbers with `in_order=True`.
2.  A slot holds at most `credit` tickets, all given to its present generation; an ended or starting slot holds none.
    What is said in the name of another generation, or of a ticket the slot does not hold, changes nothing.
3.  At most `window` tickets are drawn (or being drawn) and not consumed.
4.  Reservations add up to at most `memory_limit`, but for one ticket that goes ahead (`_goes_ahead`) and for what
    arrives larger than its worker had asked for.
5.  No ticket waits that could go: the lowest that waits for memory may not have it, and every queue whose lane has a
    taker has its first ticket waiting for memory.

Why nothing is stuck for ever: with `in_order=True` take the lowest undelivered ticket. All that its slot holds or has
queued is higher, so it has credit as soon as its worker is ready; when all that was delivered has been consumed, it may
exceed the budget. With `in_order=False` whatever is under way will free memory on its own; if nothing is and nothing is
unconsumed, the lowest waiting ticket may exceed the budget. (Not "the lowest that has not arrived": that one may have
come back from a lost worker and find every other worker full of tickets that wait for memory.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

from aloader import options
from aloader.engine import invariants
from aloader.engine.events import (
    Assign,
    BatchArrived,
    Closed,
    Command,
    Consumed,
    Deliver,
    Discard,
    Draw,
    Drawn,
    Event,
    Exhausted,
    Finish,
    Grant,
    NeedMemory,
    Opened,
    Raise,
    Restart,
    TicketFailed,
    WorkerLost,
    WorkerReady,
)
from aloader.engine.memory import Memory
from aloader.engine.slots import Lane, Slot, Ticket, make_slots
from aloader.engine.statistics import DispatcherStatistics
from aloader.engine.window import Window


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """The bounds of one epoch. For samplers that must not be drawn ahead, `window` equals `narrow_window`."""

    slots: int
    credit: int
    window: int
    narrow_window: int
    memory_limit: int
    in_order: bool = True
    wide_window_bytes: int = options.WIDE_WINDOW_BYTES
    first_allowance: int = options.FIRST_ALLOWANCE
    max_restarts: int = options.MAX_WORKER_RESTARTS

    def __post_init__(self) -> None:
        assert self.slots >= 1, "without slots nothing can be assigned"
        assert self.credit >= 1, "without credit nothing can be assigned"
        assert 1 <= self.narrow_window <= self.window, "the narrow window is the smaller one, and not empty"


class Dispatcher:
    """One epoch's decisions. See the top of this file."""

    __slots__ = (
        "_closed",
        "_commands",
        "_config",
        "_cycle",
        "_discarded",
        "_drawing",
        "_drawn",
        "_failed",
        "_finished",
        "_in_order",
        "_landed",
        "_last_loss",
        "_left",
        "_memory",
        "_next",
        "_restarts",
        "_slots",
        "_tickets",
        "_unconsumed",
        "_under_way",
        "_window",
    )

    def __init__(self, config: DispatcherConfig) -> None:
        self._config = config
        self._in_order = config.in_order
        self._slots = make_slots(config.slots, config.credit, in_order=config.in_order)
        self._cycle: deque[Lane] = deque(dict.fromkeys(slot.lane for slot in self._slots))  # live lanes, next first
        wide_bytes = min(config.wide_window_bytes, config.memory_limit // 4)
        self._window = Window(config.narrow_window, config.window, wide_bytes)
        self._memory = Memory(config.memory_limit, config.first_allowance)
        self._tickets: dict[int, Ticket] = {}  # queued and held
        self._landed: dict[int, tuple[Deliver | Raise, int]] = {}  # with the bytes reserved
        self._unconsumed: dict[int, int] = {}  # the bytes reserved
        self._under_way = 0  # held and not waiting for memory
        self._next = 0  # lowest undelivered seq (in order)
        self._drawn = 0
        self._left = 0  # delivered and raised so far
        self._failed = 0
        self._discarded = 0
        self._restarts = 0
        self._last_loss: object = None  # its error
        self._drawing = False
        self._finished = False
        self._closed = False
        self._commands: list[Command] = []

    def handle(self, event: Event) -> list[Command]:
        """What must be done, in this order, now that `event` has happened."""
        if self._closed:
            self._after_close(event)
        else:
            _HANDLERS[type(event)](self, event)
            if self._memory.waiting:
                self._serve_memory()
        commands, self._commands = self._commands, []
        return commands

    # -- drawing ----------------------------------------------------------------------------------------------------

    def _on_opened(self, event: Opened) -> None:
        assert self._state() == "new", "an epoch opens once"
        self._drawing = True
        self._draw()

    def _on_drawn(self, event: Drawn) -> None:
        assert self._window.pending > 0, "the sampler was advanced without being asked to"
        self._window.pending -= 1
        seq = self._drawn
        self._drawn = seq + 1
        if not self._cycle:
            self._give_up(seq)
            return
        lane = self._cycle[0]
        self._cycle.rotate(-1)
        self._tickets[seq] = Ticket(seq, event.indices, lane)
        heappush(lane.queue, seq)
        self._feed(lane)

    def _on_exhausted(self, event: Exhausted) -> None:
        self._drawing = False
        self._window.exhaust()
        self._finish_if_done()

    def _draw(self) -> None:
        if self._drawing and (count := self._window.ask()):
            self._commands.append(Draw(count))

    # -- giving tickets and memory ----------------------------------------------------------------------------------

    def _on_worker_ready(self, event: WorkerReady) -> None:
        slot = self._current(event.slot, event.generation)
        if slot is not None and not slot.ready:
            slot.ready = True
            slot.lane.update(slot)
            self._feed(slot.lane)

    def _on_need_memory(self, event: NeedMemory) -> None:
        slot = self._current(event.slot, event.generation)
        ticket = slot.held.get(event.seq) if slot is not None else None
        if ticket is None:
            return
        if ticket.wants is None:
            self._under_way -= 1
        ticket.wants = None
        if event.nbytes <= ticket.reserved or self._memory.ask(ticket, event.nbytes):
            self._grant(ticket)

    def _feed(self, lane: Lane) -> None:
        """Assign from the front of the queue for as long as there is a taker and memory."""
        queue = lane.queue
        while queue and (slot := lane.taker()) is not None:
            ticket = self._tickets[queue[0]]
            if ticket.wants is not None or not self._memory.ask(ticket, self._memory.allowance):
                return
            self._assign(ticket, slot)

    def _assign(self, ticket: Ticket, slot: Slot) -> None:
        seq = heappop(ticket.lane.queue)
        ticket.slot = slot
        slot.held[seq] = ticket
        self._under_way += 1
        slot.lane.update(slot)
        self._commands.append(Assign(slot.index, slot.generation, seq, ticket.indices, ticket.reserved))

    def _grant(self, ticket: Ticket) -> None:
        assert ticket.slot is not None
        self._under_way += 1
        self._commands.append(Grant(ticket.slot.index, ticket.slot.generation, ticket.seq))

    def _serve_memory(self) -> None:
        """Let waiting tickets have their memory, lowest first, until one may not."""
        memory = self._memory
        while memory.waiting:
            ticket = self._waiting_ticket(memory.waiting[0])
            if ticket is not None:
                wants = memory.allowance if ticket.slot is None else ticket.wants
                assert wants is not None
                if not memory.fits(ticket, wants) and not self._goes_ahead(ticket):
                    return
                ticket.wants = None
                memory.reserve(ticket, wants)
            heappop(memory.waiting)
            if ticket is not None:
                self._give(ticket)

    def _waiting_ticket(self, seq: int) -> Ticket | None:
        """The ticket that waits for memory under `seq`, unless it has gone or could not use it any more."""
        ticket = self._tickets.get(seq)
        if ticket is None or ticket.wants is None:
            return None
        if ticket.slot is None and (ticket.lane.queue[0] != seq or ticket.lane.taker() is None):
            ticket.wants = None  # its worker was lost: it asks again when there is another
            return None
        return ticket

    def _give(self, ticket: Ticket) -> None:
        """Its memory is reserved: tell its worker, or find it one."""
        if ticket.slot is not None:
            self._grant(ticket)
            return
        slot = ticket.lane.taker()
        assert slot is not None
        self._assign(ticket, slot)
        self._feed(ticket.lane)

    def _goes_ahead(self, ticket: Ticket) -> bool:
        """Whether the lowest waiting ticket may exceed the budget, since memory would not free itself."""
        if self._unconsumed:
            return False
        return ticket.seq == self._next if self._in_order else not self._under_way

    # -- arrivals and failures --------------------------------------------------------------------------------------

    def _on_batch_arrived(self, event: BatchArrived) -> None:
        index, generation, seq, nbytes, batch = event
        ticket = self._let_go(index, generation, seq)
        if ticket is None:
            self._discard(batch)
            return
        self._memory.reserve(ticket, nbytes)
        self._land(seq, Deliver(seq, batch), nbytes)
        if nbytes != self._memory.allowance:
            self._memory.allowance = nbytes
        self._window.learn(nbytes)
        self._draw()
        self._feed(ticket.lane)

    def _on_ticket_failed(self, event: TicketFailed) -> None:
        ticket = self._let_go(event.slot, event.generation, event.seq)
        if ticket is not None:
            self._fail(ticket, event.error)
            self._feed(ticket.lane)

    def _let_go(self, index: int, generation: int, seq: int) -> Ticket | None:
        """Take a ticket out of the hands of its slot; None if that slot and generation does not hold it."""
        slot = self._current(index, generation)
        ticket = slot.held.pop(seq, None) if slot is not None else None
        if slot is None or ticket is None:
            return None
        if ticket.wants is None:
            self._under_way -= 1
        del self._tickets[seq]
        slot.lane.update(slot)
        return ticket

    def _current(self, index: int, generation: int) -> Slot | None:
        slot = self._slots[index]
        return slot if slot.generation == generation and not slot.ended else None

    def _fail(self, ticket: Ticket, error: object) -> None:
        self._memory.reserve(ticket, 0)
        self._failed += 1
        self._land(ticket.seq, Raise(ticket.seq, error), 0)

    def _discard(self, batch: object) -> None:
        self._discarded += 1
        self._commands.append(Discard(batch))

    # -- lost workers -----------------------------------------------------------------------------------------------

    def _on_worker_lost(self, event: WorkerLost) -> None:
        slot = self._current(event.slot, event.generation)
        if slot is None:
            return
        self._last_loss = event.error
        self._take_back(slot, event.running)
        if self._restarts < self._config.max_restarts:
            self._restarts += 1
            slot.generation += 1
            self._commands.append(Restart(slot.index, slot.generation))
        else:
            self._end(slot)
        self._feed(slot.lane)

    def _take_back(self, slot: Slot, running: int | None) -> None:
        """Queue again what a lost worker held; only what it was running fails."""
        held, slot.held = slot.held, {}
        slot.ready = False
        slot.lane.update(slot)
        for seq, ticket in held.items():
            if ticket.wants is None:
                self._under_way -= 1
            ticket.wants = None
            ticket.slot = None
            self._memory.reserve(ticket, 0)
            if seq == running:
                del self._tickets[seq]
                self._fail(ticket, self._last_loss)
            else:
                heappush(slot.lane.queue, seq)

    def _end(self, slot: Slot) -> None:
        """Give a slot up, and with the last slot of a lane whatever is queued in it."""
        slot.ended = True
        lane = slot.lane
        lane.live -= 1
        if not lane.live:
            self._cycle.remove(lane)
            for seq in sorted(lane.queue):
                del self._tickets[seq]
                self._give_up(seq)
            lane.queue.clear()

    def _give_up(self, seq: int) -> None:
        """Fail a ticket for which there is no slot.

        When none is left at all, drawing ends here and not with the last slot: had everything drawn already arrived,
        the epoch would otherwise seem complete.
        """
        if not self._cycle:
            self._drawing = False
        self._failed += 1
        self._land(seq, Raise(seq, self._last_loss), 0)

    # -- delivery ---------------------------------------------------------------------------------------------------

    def _land(self, seq: int, outcome: Deliver | Raise, reserved: int) -> None:
        if not self._in_order:
            self._leave(seq, outcome, reserved)
            return
        landed = self._landed
        landed[seq] = outcome, reserved
        while (entry := landed.pop(self._next, None)) is not None:
            self._leave(self._next, *entry)
            self._next += 1

    def _leave(self, seq: int, outcome: Deliver | Raise, reserved: int) -> None:
        self._left += 1
        self._unconsumed[seq] = reserved
        self._commands.append(outcome)

    def _on_consumed(self, event: Consumed) -> None:
        self._consume(event.seq)
        self._window.outstanding -= 1
        self._draw()
        self._finish_if_done()

    def _consume(self, seq: int) -> None:
        reserved = self._unconsumed.pop(seq, None)
        assert reserved is not None, f"{seq} was consumed without being delivered, or twice"
        self._memory.reserved -= reserved

    def _finish_if_done(self) -> None:
        if not self._drawing and not self._window.outstanding and not self._finished:
            self._finished = True
            self._commands.append(Finish())

    # -- closing ----------------------------------------------------------------------------------------------------

    def _on_closed(self, event: Closed) -> None:
        """Forget all but what the driver has: delivered batches are its own to give back."""
        self._closed = True
        self._drawing = False
        for outcome, _ in self._landed.values():
            if isinstance(outcome, Deliver):
                self._discard(outcome.batch)
        for slot in self._slots:
            slot.held.clear()
            slot.lane.queue.clear()
        self._landed.clear()
        self._tickets.clear()
        self._under_way = 0
        self._memory.waiting.clear()
        self._memory.reserved = sum(self._unconsumed.values())
        self._window.exhaust()

    def _after_close(self, event: Event) -> None:
        if isinstance(event, BatchArrived):
            self._discard(event.batch)
        elif isinstance(event, Consumed):
            self._consume(event.seq)

    # -- inspection -------------------------------------------------------------------------------------------------

    def statistics(self) -> DispatcherStatistics:
        """A snapshot; looks at all slots, so not for every batch."""
        held = tuple(len(slot.held) for slot in self._slots)
        return DispatcherStatistics(
            state=self._state(),
            drawn=self._drawn,
            queued=len(self._tickets) - sum(held),
            held=held,
            landed=len(self._landed),
            unconsumed=len(self._unconsumed),
            consumed=self._left - len(self._unconsumed),
            failed=self._failed,
            discarded=self._discarded,
            window=self._window.size,
            pending=self._window.pending,
            reserved=self._memory.reserved,
            memory_limit=self._memory.limit,
            waiting_for_memory=sum(ticket.wants is not None for ticket in self._tickets.values()),
            ready_slots=sum(slot.ready for slot in self._slots),
            live_slots=sum(not slot.ended for slot in self._slots),
            restarts=self._restarts,
        )

    def _state(self) -> str:
        if self._closed:
            return "closed"
        if self._finished:
            return "finished"
        if self._drawing:
            return "open"
        return "draining" if self._drawn else "new"

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"<Dispatcher {now.state}: {now.drawn} drawn, {now.queued} queued, {list(now.held)} held, "
            f"{now.landed} landed, {now.unconsumed} unconsumed, {now.consumed} consumed; "
            f"{now.reserved}/{now.memory_limit} bytes, {now.live_slots} live slots>"
        )

    def validate(self) -> None:
        """Assert every invariant. For tests: it looks at everything."""
        invariants.check(self)


_HANDLERS: Final[dict[type[Event], Callable[[Dispatcher, Any], None]]] = {
    Opened: Dispatcher._on_opened,
    Drawn: Dispatcher._on_drawn,
    Exhausted: Dispatcher._on_exhausted,
    WorkerReady: Dispatcher._on_worker_ready,
    NeedMemory: Dispatcher._on_need_memory,
    BatchArrived: Dispatcher._on_batch_arrived,
    TicketFailed: Dispatcher._on_ticket_failed,
    WorkerLost: Dispatcher._on_worker_lost,
    Consumed: Dispatcher._on_consumed,
    Closed: Dispatcher._on_closed,
}
