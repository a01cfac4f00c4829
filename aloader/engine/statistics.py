"""A frozen picture of the dispatcher, for people and for tests. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aloader.engine.dispatcher import Dispatcher


@dataclass(frozen=True, slots=True)
class DispatcherStatistics:
    """Where the epoch's tickets are, and what of each bound is used."""

    state: str  #: "new", "open", "draining" (nothing more is drawn), "finished" or "closed"
    drawn: int  #: tickets drawn so far
    queued: int  #: waiting for a worker
    held: tuple[int, ...]  #: held by the worker of each slot
    landed: int  #: arrived or failed, waiting for their turn
    unconsumed: int  #: delivered or raised, not yet consumed
    consumed: int  #: consumed so far
    skipped: int  #: of all tickets, those that came to nothing: their worker's share of the data had ended
    failed: int  #: of all tickets, those whose outcome was an error
    window: int  #: the window in force
    pending: int  #: asked of the sampler, not yet answered
    reserved: int  #: bytes of the budget in use
    memory_limit: int  #: bytes
    waiting_for_memory: int  #: tickets that wait to be assigned or granted for want of memory
    ready_slots: int  #: slots whose worker is ready
    live_slots: int  #: slots that have not ended
    restarts: int  #: lost workers replaced so far


def picture(dispatcher: Dispatcher) -> DispatcherStatistics:
    """What a dispatcher is at. Only `Dispatcher.statistics` calls it."""
    work, delivery, window = dispatcher._work, dispatcher._delivery, dispatcher._window
    slots, tickets, memory = work.slots, work.tickets.values(), work.memory
    return DispatcherStatistics(
        state=_state(dispatcher),
        drawn=dispatcher._drawn - dispatcher._config.first,
        queued=sum(ticket.slot is None for ticket in tickets),
        held=tuple(len(slot.held) for slot in slots),
        landed=sum(entry is not None for entry in delivery.landed.values()),
        unconsumed=len(delivery.unconsumed),
        consumed=delivery.left - len(delivery.unconsumed),
        skipped=dispatcher._skipped,
        failed=dispatcher._failed,
        window=window.size,
        pending=window.pending,
        reserved=memory.reserved,
        memory_limit=memory.limit,
        waiting_for_memory=sum(ticket.wants is not None for ticket in tickets),
        ready_slots=sum(slot.ready for slot in slots),
        live_slots=sum(not slot.ended and not slot.dry for slot in slots),
        restarts=dispatcher._losses.replaced,
    )


def _state(dispatcher: Dispatcher) -> str:
    if dispatcher._closed:
        return "closed"
    if dispatcher._finished:
        return "finished"
    if dispatcher._drawing:
        return "open"
    return "draining" if dispatcher._opened else "new"
