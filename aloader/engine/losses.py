"""Lost workers: how many of them are replaced, and which ticket is to blame, if one is. Pure; queues nothing.

A worker may die of anything: the kernel's want of memory, somebody's `kill`, a crash in a decoder. Only what it was
working on can be to blame, and mostly is not. So a ticket at which two workers have died is given by itself, to a fresh
worker that fetches its samples one by one; and a sample is guilty only if the worker dies of it then, at the very place
where others have died before, or may have. That it was one of many at work when they died makes it a suspect and is no
proof: one of the others must have died of this ticket alone. (Blaming what a worker merely holds condemns a hundred
innocents in three hundred kills; and blaming the ticket alone, still some.)
"""

from __future__ import annotations

from typing import Final

from aloader.engine.events import WorkerLost
from aloader.engine.slots import Slot, Ticket

#: Deaths after which a ticket is given alone.
SUSPECT_AFTER: Final = 2

#: In place of a position: the ticket was one of several at work.
AMONG_OTHERS: Final = -1


class Losses:
    """What an epoch has lost so far. `tolerant`: a ticket can do without a sample that ends workers."""

    __slots__ = ("_charged", "_free", "_incident", "_max", "_oom", "_tolerant", "replaced")

    def __init__(self, max_restarts: int, *, tolerant: bool) -> None:
        self._max = max_restarts
        self._tolerant = tolerant
        self._charged = 0  # of `max_restarts`
        self._free = False  # the death that has just been looked at counts for nothing
        self._incident = 0, False  # the latest, and whether its workers are replaced
        self._oom = False  # a worker has been ended for want of memory, and replaced
        self.replaced = 0

    def is_replaced(self, event: WorkerLost) -> bool:
        """Whether another process comes in place of the lost one. What has ended several counts once; the second one
        that the kernel ended for want of memory is one too many."""
        incident, answer = self._incident
        free, self._free = self._free, False
        if not event.incident or event.incident != incident:
            answer = (free or self._charged < self._max) and not (event.oom and self._oom) and not event.final
            self._charged += answer and not free
            if event.incident:
                self._incident = event.incident, answer
        self.replaced += answer
        self._oom |= event.oom and answer
        return answer

    def condemned(self, slot: Slot, event: WorkerLost) -> Ticket | None:
        """The ticket that is not to be tried again, if there is one; others are suspected, or do without a sample.

        A sample that kills is to cost others nothing: a death at the place where one was before does not count, and
        when it is condemned, those that did are given back.
        """
        self._free = False
        if not event.certain:
            for ticket in slot.held.values():
                _note_death(ticket, AMONG_OTHERS)
                ticket.charged += 1
            return None
        blamed = slot.held.get(event.running) if event.running is not None else None
        if blamed is None:
            return None
        again = event.place is not None and event.place in blamed.deaths and not event.stuck
        guilty = _is_guilty(blamed, event.place, stuck=event.stuck)
        self._free = again or guilty
        if not guilty:
            blamed.charged += not again
            return None
        self._charged, blamed.charged = max(0, self._charged - blamed.charged), 0
        left_out = [place for place, _ in blamed.without]
        if not self._tolerant or event.place is None or event.place in left_out:  # what is to fill its place kills, too
            return blamed
        blamed.without += ((event.place, event.error),)
        blamed.deaths, blamed.stuck_at, blamed.alone = (), None, False
        return None


def _is_guilty(ticket: Ticket, place: int | None, *, stuck: bool) -> bool:
    """A worker has died at work on `ticket`, at the sample in this place (None: at all of it), or has been stuck there.
    Whether that is not to be tried again."""
    if stuck:
        before, ticket.stuck_at = ticket.stuck_at, AMONG_OTHERS if place is None else place
        ticket.alone |= place is None  # one call was for all of it: the next worker shows at which it is stuck
        return place is not None and before in (place, AMONG_OTHERS)
    there = [before for before in ticket.deaths if before in (place, None, AMONG_OTHERS)]
    guilty = ticket.alone and len(there) >= SUSPECT_AFTER and set(there) != {AMONG_OTHERS}
    _note_death(ticket, place)
    return guilty


def _note_death(ticket: Ticket, place: int | None) -> None:
    ticket.deaths += (place,)
    ticket.alone |= len(ticket.deaths) >= SUSPECT_AFTER
