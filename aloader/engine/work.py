"""Who works on what: tickets from their drawing until they arrive, fail, or nobody is left to work on them.

Assigning needs a ticket at the front of a queue, a slot that can take it, and memory; the first two are settled in
`slots`, the sums of the third in `memory`. What follows from an arrival or a loss is the dispatcher's business.

Why nothing is stuck for ever: with `in_order=True` take the lowest undelivered ticket. All that its slot holds or has
queued is higher, so it has credit as soon as its worker is ready; when all that was delivered has been consumed, it may
exceed the budget. With `in_order=False` whatever a worker is at will free memory on its own; if every worker that holds
something waits, and nothing is unconsumed, the lowest waiting ticket may exceed the budget. (Not "the lowest that has
not arrived": that one may have come back from a lost worker and find every other worker full of tickets that wait for
memory; and a worker that fetches one after the other does not begin it, though it has memory, behind one that waits.)
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from aloader.engine.config import DispatcherConfig
from aloader.engine.delivery import Delivery
from aloader.engine.events import Assign, Command, Grant, Prepare, Replace
from aloader.engine.memory import Memory
from aloader.engine.slots import Lane, Slot, Ticket, make_slots


class Awaited(NamedTuple):
    """A ticket that somebody waits for, and whose it is."""

    seq: int
    indices: object
    slot: int


class Work:
    """Tickets queued and held, the slots that hold them, and the memory they have."""

    __slots__ = (
        "_credit",
        "_delivery",
        "_first",
        "_shares",
        "_to_deal",
        "cycle",
        "memory",
        "slots",
        "tickets",
        "under_way",
    )

    def __init__(self, config: DispatcherConfig, delivery: Delivery) -> None:
        self._delivery = delivery
        self.memory = Memory(config.memory_limit, config.first_allowance, config.lean_bytes, config.slots + 1)
        self._first = config.first - config.first_slot  # the seq of which slot 0 would be the first
        self._to_deal = config.first + config.slots * config.credit
        self._shares = config.interchangeable
        self._credit = config.credit
        self.slots = make_slots(config.slots, config.credit, in_order=config.in_order, lifetime=config.lifetime)
        self.cycle: deque[Lane] = deque(dict.fromkeys(slot.lane for slot in self.slots))  # live lanes, the next first
        if config.in_order:
            self.cycle.rotate(-config.first_slot)
        self.tickets: dict[int, Ticket] = {}  # queued and held
        self.under_way = 0  # held and not waiting for memory

    # -- tickets and slots come ------------------------------------------------------------------------------------

    def add(self, seq: int, indices: object, commands: list[Command]) -> None:
        """Queue a ticket in the next live lane; there must be one."""
        slot = self.slots[(seq - self._first) % len(self.slots)]
        if slot.dealt is not None and seq < self._to_deal and not slot.ended and not slot.dry:
            lane: Lane = slot.dealt
            self._front_waits_no_more(slot)  # of the shared queue: the slot is no taker of that for a while
        else:
            lane = self.cycle[0]
            self.cycle.rotate(-1)
        self.tickets[seq] = Ticket(seq, indices, lane)
        heappush(lane.queue, seq)
        slot.lane.update(slot)
        self.feed(lane, commands)
        if lane is not slot.lane:
            self.feed(slot.lane, commands)

    def current(self, index: int, generation: int) -> Slot | None:
        """The slot, if it is that generation's word that counts in it."""
        slot = self.slots[index]
        return slot if slot.generation == generation and not slot.ended else None

    def ready(self, slot: Slot, served: int, commands: list[Command]) -> None:
        if not slot.ready:
            slot.ready = True
            slot.served = served
            slot.lane.update(slot)
            self.refill(slot, commands)

    def refill(self, slot: Slot, commands: list[Command]) -> None:
        """Give a slot what it can take: what was dealt to it first."""
        if slot.dealt is not None:
            self.feed(slot.dealt, commands)
        self.feed(slot.lane, commands)

    def feed(self, lane: Lane, commands: list[Command]) -> None:
        """Assign from the front of the queue for as long as there is a taker and memory."""
        queue = lane.queue
        while queue and (slot := lane.taker()) is not None:
            ticket = self.tickets[queue[0]]
            if not self._suits(slot, ticket):
                if slot.held:
                    return  # it is fed again when it holds nothing
                self._replace(slot, commands)
                continue
            if ticket.wants is not None or not self.memory.ask(ticket, self.memory.allowance):
                return
            self._assign(ticket, slot, commands)

    def _suits(self, slot: Slot, ticket: Ticket) -> bool:
        """Whether the process that a slot has now may be given this ticket."""
        return not slot.worn and not (ticket.alone and slot.served)

    def _replace(self, slot: Slot, commands: list[Command]) -> None:
        """It holds nothing and will have another process: what waits for it waits on."""
        slot.begin_anew()
        commands.append(Replace(slot.index, slot.generation))

    def _assign(self, ticket: Ticket, slot: Slot, commands: list[Command]) -> None:
        seq = heappop(ticket.lane.queue)
        ticket.slot = slot
        slot.held[seq] = ticket
        slot.served += 1
        slot.exclusive = ticket.alone
        self.under_way += 1
        slot.lane.update(slot)
        where = slot.index, slot.generation, seq
        commands.append(Assign(*where, ticket.indices, ticket.reserved, ticket.alone, ticket.without))
        if slot.lifetime and not slot.prepared and slot.served > slot.lifetime - 2 * self._credit:
            slot.prepared = True
            commands.append(Prepare(slot.index))

    # -- memory ----------------------------------------------------------------------------------------------------

    def need(self, ticket: Ticket, nbytes: int, commands: list[Command]) -> None:
        """The worker of a held ticket asks for `nbytes` in all."""
        if ticket.wants is None:
            self.under_way -= 1
        ticket.wants = None
        self.memory.learn(nbytes)
        if nbytes <= ticket.reserved or self.memory.ask(ticket, nbytes):
            self._grant(ticket, commands)

    def _grant(self, ticket: Ticket, commands: list[Command]) -> None:
        assert ticket.slot is not None
        self.under_way += 1
        commands.append(Grant(ticket.slot.index, ticket.slot.generation, ticket.seq))

    def serve(self, commands: list[Command]) -> None:
        """Let waiting tickets have their memory, lowest first, until one may not."""
        memory = self.memory
        while memory.waiting:
            ticket = self.tickets.get(memory.waiting[0])
            if ticket is None or ticket.wants is None:
                heappop(memory.waiting)
                continue
            wants = memory.wanted(ticket)
            if not memory.fits(ticket, wants) and not self.goes_ahead(ticket):
                return
            heappop(memory.waiting)
            ticket.wants = None
            memory.reserve(ticket, wants)
            self._give(ticket, commands)

    def _give(self, ticket: Ticket, commands: list[Command]) -> None:
        """Its memory is reserved: tell its worker, or find it one."""
        if ticket.slot is not None:
            self._grant(ticket, commands)
            return
        slot = ticket.lane.taker()
        assert slot is not None
        assert self._suits(slot, ticket)
        self._assign(ticket, slot, commands)
        self.refill(slot, commands)

    def goes_ahead(self, ticket: Ticket) -> bool:
        """Whether the lowest waiting ticket may exceed the budget, since memory would not free itself."""
        if self._delivery.unconsumed:
            return False
        if self._delivery.in_order:
            return ticket.seq == self._delivery.next
        return not self.under_way or not any(map(_works, self.slots))

    def awaited(self) -> Awaited | None:
        """The ticket that the user waits for and the slot that has it; without order, the lowest that is held."""
        delivery, held = self._delivery, (seq for seq, ticket in self.tickets.items() if ticket.slot is not None)
        seq = delivery.next if delivery.in_order else min(held, default=-1)
        ticket = self.tickets.get(seq)
        if ticket is None:
            return None
        slot = ticket.slot or ticket.lane.slot
        return Awaited(seq, ticket.indices, slot.index) if slot is not None else None

    # -- tickets and slots go --------------------------------------------------------------------------------------

    def let_go(self, index: int, generation: int, seq: int) -> Ticket | None:
        """Take a ticket out of the hands of its slot; None if that slot and generation does not hold it.

        Its reservation stays with it, and its slot can be fed again.
        """
        slot = self.current(index, generation)
        ticket = slot.held.pop(seq, None) if slot is not None else None
        if slot is None or ticket is None:
            return None
        if ticket.wants is None:
            self.under_way -= 1
        del self.tickets[seq]
        slot.exclusive = False
        slot.lane.update(slot)
        return ticket

    def take_back(self, slot: Slot, failed: int | None) -> None:
        """Queue again what a lost worker held, without its memory; but forget what has `failed`.

        Of an iterable dataset it is this slot's share, and what must be alone needs a fresh worker, as this slot has
        next: both wait in the slot's own queue. Everything else, whoever is free may have.
        """
        self._front_waits_no_more(slot)
        held, slot.held = slot.held, {}
        slot.ready = slot.exclusive = False
        for seq, ticket in held.items():
            if ticket.wants is None:
                self.under_way -= 1
            ticket.wants = None
            ticket.slot = None
            self.memory.reserve(ticket, 0)
            if seq == failed:
                del self.tickets[seq]
                continue
            ticket.lane = slot.own if self._shares or ticket.alone else slot.lane
            heappush(ticket.lane.queue, seq)
        slot.lane.update(slot)

    def run_dry(self, slot: Slot, seq: int) -> list[int]:
        """Its worker makes nothing from `seq` on: the seqs that nobody will work on. What it had begun before stays."""
        dropped = self._drop(slot, seq)
        if slot.dry:
            return dropped
        slot.dry = True
        slot.lane.update(slot)
        return dropped + self._leave_lane(slot)

    def abandon(self, slot: Slot) -> list[int]:
        """Give up a slot with all that its worker had: the seqs that nobody will work on."""
        dropped = self._drop(slot, 0)
        slot.ready = False
        slot.lane.update(slot)
        return dropped + self.end(slot)

    def _drop(self, slot: Slot, first: int) -> list[int]:
        """Forget what a slot holds from `first` on."""
        self._front_waits_no_more(slot)
        dropped = [seq for seq in slot.held if seq >= first]
        for seq in dropped:
            ticket = self.let_go(slot.index, slot.generation, seq)
            assert ticket is not None
            self.memory.reserve(ticket, 0)
        return dropped

    def _front_waits_no_more(self, slot: Slot) -> None:
        """The front of a queue of which this slot may have been the only taker; or it may not be the front for long."""
        for lane in (slot.lane, slot.dealt):
            if lane is not None and lane.queue:
                self.tickets[lane.queue[0]].wants = None

    def end(self, slot: Slot) -> list[int]:
        """Give up a slot that holds nothing: the seqs that nobody will work on, since it was the last of its lane."""
        slot.ended = True
        return self._strand(slot.own) if slot.dry else self._leave_lane(slot)

    def _leave_lane(self, slot: Slot) -> list[int]:
        lane = slot.lane
        if slot.dealt is not None:
            slot.dealt.live = 0
            for seq in slot.dealt.queue:  # others may have it
                self.tickets[seq].lane = lane
                heappush(lane.queue, seq)
            slot.dealt.queue.clear()
        lane.live -= 1
        if lane.live:
            return []
        self.cycle.remove(lane)
        return self._strand(lane)

    def _strand(self, lane: Lane) -> list[int]:
        """Nobody will take what is queued there."""
        stranded = sorted(lane.queue)
        lane.queue.clear()
        for seq in stranded:
            del self.tickets[seq]
        return stranded

    def clear(self) -> None:
        """Nothing is worked on any more."""
        for slot in self.slots:
            slot.held.clear()
            slot.exclusive = False
            slot.lane.queue.clear()
            if slot.dealt is not None:
                slot.dealt.queue.clear()
        for ticket in self.tickets.values():
            self.memory.reserve(ticket, 0)
        self.tickets.clear()
        self.memory.waiting.clear()
        self.under_way = 0


def _works(slot: Slot) -> bool:
    """Whether a slot's worker has something to do: one that waits for memory may do nothing else meanwhile."""
    return bool(slot.held) and all(ticket.wants is None for ticket in slot.held.values())
