"""What must hold between two events, spelled out slowly. Only `Dispatcher.validate` calls it; it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aloader.engine.slots import Lane, OwnLane, SharedLane, Ticket

if TYPE_CHECKING:
    from aloader.engine.dispatcher import Dispatcher


def check(dispatcher: Dispatcher) -> None:
    """Raise AssertionError if the state of `dispatcher` contradicts itself."""
    _check_places(dispatcher)
    _check_slots(dispatcher)
    _check_lanes(dispatcher)
    _check_memory(dispatcher)
    _check_window(dispatcher)
    _check_nothing_waits_in_vain(dispatcher)


def _lanes(dispatcher: Dispatcher) -> list[Lane]:
    return list(dict.fromkeys(slot.lane for slot in dispatcher._slots))


def _held(dispatcher: Dispatcher) -> list[Ticket]:
    return [ticket for slot in dispatcher._slots for ticket in slot.held.values()]


def _check_places(d: Dispatcher) -> None:
    """Every ticket that was drawn and not consumed is in exactly one place."""
    queued = [seq for lane in _lanes(d) for seq in lane.queue]
    held = [ticket.seq for ticket in _held(d)]
    places = queued + held + list(d._landed) + list(d._unconsumed)
    assert len(places) == len(set(places)), "a ticket is in two places"
    assert set(queued) | set(held) == set(d._tickets), "a ticket is known and nowhere, or somewhere and unknown"
    if not d._closed:
        assert len(places) == d._drawn - (d._left - len(d._unconsumed)), "a ticket was lost"
    if d._in_order:
        assert all(seq > d._next for seq in d._landed), "a ticket's turn has come and it was not delivered"
        assert all(seq >= d._next for seq in d._tickets), "a ticket is worked on that has left"
        assert all(seq < d._next for seq in d._unconsumed), "a ticket has left before its turn"
        assert d._next == d._left
    else:
        assert not d._landed, "without order nothing waits for its turn"


def _check_slots(d: Dispatcher) -> None:
    for slot in d._slots:
        assert len(slot.held) <= d._config.credit, "a slot holds more than its credit"
        assert slot.ready or not slot.held, "a slot that is not ready holds tickets"
        assert not (slot.ready and slot.ended), "an ended slot is ready"
        for seq, ticket in slot.held.items():
            assert (ticket.seq, ticket.slot, ticket.lane) == (seq, slot, slot.lane)
    assert d._restarts == sum(slot.generation for slot in d._slots) <= d._config.max_restarts


def _check_lanes(d: Dispatcher) -> None:
    for lane in _lanes(d):
        members = [slot for slot in d._slots if slot.lane is lane]
        assert lane.live == sum(not slot.ended for slot in members)
        assert (lane in d._cycle) == (lane.live > 0), "a lane is drawn for only while it has a live slot"
        assert lane.live or not lane.queue, "tickets are queued where nobody will take them"
        for seq in lane.queue:
            assert (d._tickets[seq].lane, d._tickets[seq].slot) == (lane, None)
        takers = [] if d._closed else [slot for slot in members if slot.ready and len(slot.held) < d._config.credit]
        if isinstance(lane, SharedLane) and not d._closed:
            listed = {index for by_index in lane._by_load for index in by_index}
            assert listed == {slot.index for slot in takers}, "a slot that can take is not listed, or the reverse"
            fewest = min((len(slot.held) for slot in takers), default=None)
            taker = lane.taker()
            assert (None if taker is None else len(taker.held)) == fewest
        elif isinstance(lane, OwnLane) and not d._closed:
            assert lane.taker() is (takers[0] if takers else None)


def _check_memory(d: Dispatcher) -> None:
    tickets = list(d._tickets.values())
    reserved = sum(ticket.reserved for ticket in tickets) + sum(nbytes for _, nbytes in d._landed.values())
    assert d._memory.reserved == reserved + sum(d._unconsumed.values()), "the budget does not add up"
    assert all(ticket.reserved == 0 for ticket in tickets if ticket.slot is None), "a queued ticket keeps memory"
    waiting = {ticket.seq for ticket in tickets if ticket.wants is not None}
    assert waiting <= set(d._memory.waiting), "a ticket waits where nobody will see it"
    assert d._under_way == sum(ticket.wants is None for ticket in _held(d))


def _check_window(d: Dispatcher) -> None:
    window = d._window
    assert window.pending >= 0
    if not d._closed:
        assert window.outstanding == d._drawn - (d._left - len(d._unconsumed)) + window.pending
        assert window.outstanding <= d._config.window, "more is drawn than the window allows"
        assert not d._drawing or window.outstanding >= window.size, "a draw was forgotten"
        assert not d._finished or window.outstanding == 0


def _check_nothing_waits_in_vain(d: Dispatcher) -> None:
    waiting = sorted(ticket.seq for ticket in d._tickets.values() if ticket.wants is not None)
    if waiting:
        lowest = d._tickets[waiting[0]]
        wants = d._memory.allowance if lowest.slot is None else lowest.wants
        assert wants is not None
        assert not d._memory.fits(lowest, wants), "a ticket waits for memory that is free"
        assert not d._goes_ahead(lowest), "the ticket that everybody waits for waits for memory"
    if not d._closed:
        for lane in _lanes(d):
            if lane.queue and lane.taker() is not None:
                assert d._tickets[lane.queue[0]].wants is not None, "a ticket waits although a slot could take it"
