"""A frozen picture of the dispatcher, for people and for tests. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass


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
    failed: int  #: of all tickets, those whose outcome was an error
    window: int  #: the window in force
    pending: int  #: asked of the sampler, not yet answered
    reserved: int  #: bytes of the budget in use
    memory_limit: int  #: bytes
    waiting_for_memory: int  #: tickets that wait to be assigned or granted for want of memory
    ready_slots: int  #: slots whose worker is ready
    live_slots: int  #: slots that have not ended
    restarts: int  #: workers replaced so far
