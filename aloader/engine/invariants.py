"""What must hold between two events, spelled out slowly. Only `Dispatcher.validate` calls it; it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aloader.engine.config import DispatcherConfig
from aloader.engine.delivery import Delivery
from aloader.engine.slots import Lane, OwnLane, SharedLane, Slot
from aloader.engine.window import Window
from aloader.engine.work import Work

if TYPE_CHECKING:
    from aloader.engine.dispatcher import Dispatcher


def check(dispatcher: Dispatcher) -> None:
    """Raise AssertionError if the state of `dispatcher` contradicts itself."""
    work, delivery, config = dispatcher._work, dispatcher._delivery, dispatcher._config
    consumed = delivery.left - len(delivery.unconsumed)
    unfinished = dispatcher._drawn - config.first - dispatcher._skipped - consumed
    _check_places(work, delivery)
    _check_order(work, delivery, config.first)
    _check_slots(work, config)
    _check_memory(work, delivery)
    assert dispatcher._losses._charged <= config.max_restarts
    if not dispatcher._closed:
        landed = sum(entry is not None for entry in delivery.landed.values())
        known = len(work.tickets) + landed + len(delivery.unconsumed)
        assert dispatcher._skipped == delivery.passed + len(delivery.landed) - landed, "a skipped ticket was lost"
        assert known == unfinished, "a ticket was lost"
        for lane in _lanes(work):
            _check_lane(lane, work, config.credit)
        _check_nothing_waits_in_vain(work)
        _check_window(dispatcher._window, unfinished, dispatcher._delivery, drawing=dispatcher._drawing)
        assert not dispatcher._finished or dispatcher._window.outstanding == 0, "finished before the end"


def _check_places(work: Work, delivery: Delivery) -> None:
    """Every ticket that was drawn and not consumed is in exactly one place."""
    lanes = _lanes(work)
    queued = [seq for lane in lanes for seq in lane.queue]
    held = [seq for slot in work.slots for seq in slot.held]
    places = [*queued, *held, *delivery.landed, *delivery.unconsumed]
    assert len(places) == len(set(places)), "a ticket is in two places"
    assert {*queued, *held} == set(work.tickets), "a ticket is known and nowhere, or somewhere and unknown"


def _lanes(work: Work) -> list[Lane]:
    return list(dict.fromkeys(lane for slot in work.slots for lane in (slot.lane, slot.dealt) if lane is not None))


def _check_order(work: Work, delivery: Delivery, first: int) -> None:
    if not delivery.in_order:
        assert not delivery.landed, "without order nothing waits for its turn"
        return
    assert delivery.next == first + delivery.left + delivery.passed, (
        "more has left, or less, than comes before the next one"
    )
    assert all(seq > delivery.next for seq in delivery.landed), "a ticket's turn has come and it has not left"
    assert all(seq >= delivery.next for seq in work.tickets), "a ticket that has left is worked on"
    assert all(seq < delivery.next for seq in delivery.unconsumed), "a ticket has left before its turn"


def _check_slots(work: Work, config: DispatcherConfig) -> None:
    for slot in work.slots:
        assert len(slot.held) <= config.credit, "a slot holds more than its credit"
        assert slot.ready or not slot.held, "a slot that is not ready holds tickets"
        assert not slot.dry or config.interchangeable, "a slot has run dry, and its tickets are its own"
        assert not (slot.ready and slot.ended), "an ended slot is ready"
        assert slot.exclusive == any(ticket.alone for ticket in slot.held.values()), "a suspect has company"
        assert not slot.exclusive or (len(slot.held) == slot.served == 1), "a suspect is not alone with a fresh worker"
        assert not slot.lifetime or slot.served <= slot.lifetime or not slot.held, "a worker outlives its time"
        for seq, ticket in slot.held.items():
            assert (ticket.seq, ticket.slot) == (seq, slot)
            assert ticket.lane in (slot.lane, slot.dealt)
    for ticket in work.tickets.values():
        assert ticket.slot is None or ticket.seq in ticket.slot.held, "a ticket believes it is held"


def _check_lane(lane: Lane, work: Work, credit: int) -> None:
    members = [slot for slot in work.slots if lane in (slot.lane, slot.dealt)]
    assert lane.live == sum(not slot.ended and not slot.dry for slot in members)
    dealt = any(slot.dealt is lane for slot in work.slots)
    assert dealt or (lane in work.cycle) == (lane.live > 0), "a lane is drawn for if and only if it has a live slot"
    again = any(slot.dry and slot.own is lane for slot in members)  # what its last worker had begun
    assert lane.live or again or not lane.queue, "tickets are queued where nobody will take them"
    assert all(work.tickets[seq].lane is lane for seq in lane.queue)
    takers = [slot for slot in members if slot.can_take(credit)]
    if isinstance(lane, SharedLane):
        _check_listing(lane, [slot for slot in takers if not slot.dry and not (slot.dealt and slot.dealt.queue)])
    elif isinstance(lane, OwnLane):
        assert lane.taker() is (takers[0] if takers else None)


def _check_listing(lane: SharedLane, takers: list[Slot]) -> None:
    listed = [slot for by_index in lane._by_load for slot in by_index.values()]
    assert sorted(slot.index for slot in listed) == [slot.index for slot in takers], "listed are those who can take"
    assert all(slot.listed == len(slot.held) for slot in takers), "a slot is listed under another load"
    taker = lane.taker()
    assert (taker and len(taker.held)) == min((len(slot.held) for slot in takers), default=None)


def _check_memory(work: Work, delivery: Delivery) -> None:
    tickets, memory = list(work.tickets.values()), work.memory
    landed = sum(entry[1] for entry in delivery.landed.values() if entry is not None)
    held = sum(ticket.reserved for ticket in tickets)
    assert memory.reserved == held + landed + sum(delivery.unconsumed.values()), "the budget does not add up"
    assert all(ticket.reserved == 0 for ticket in tickets if ticket.slot is None), "a queued ticket keeps memory"
    waiting = {ticket.seq for ticket in tickets if ticket.wants is not None}
    assert waiting <= set(memory.waiting), "a ticket waits where nobody will see it"
    assert work.under_way == sum(ticket.slot is not None and ticket.wants is None for ticket in tickets)


def _check_nothing_waits_in_vain(work: Work) -> None:
    waiting = [ticket for ticket in work.tickets.values() if ticket.wants is not None]
    if waiting:
        lowest = min(waiting, key=lambda ticket: ticket.seq)
        assert not work.memory.fits(lowest, work.memory.wanted(lowest)), "a ticket waits for memory that is free"
        assert not work.goes_ahead(lowest), "the ticket that everybody waits for waits for memory"
    for ticket in waiting:
        front = ticket.slot is not None or (ticket.lane.queue[0] == ticket.seq and ticket.lane.taker() is not None)
        assert front, "a ticket waits for memory that it could not use"
    for lane in _lanes(work):
        if lane.queue and (slot := lane.taker()) is not None:
            ticket = work.tickets[lane.queue[0]]
            alone = ticket.alone and bool(slot.held)
            assert alone or ticket.wants is not None, "a ticket waits although a slot could take it"


def _check_window(window: Window, unfinished: int, delivery: Delivery, *, drawing: bool) -> None:
    assert window.pending >= 0
    assert window.outstanding == unfinished + window.pending, "the window does not add up"
    assert delivery.blocked == sum(entry is not None for entry in delivery.landed.values())
    assert not drawing or window.outstanding >= window.bound(delivery.blocked), "a draw was forgotten"
