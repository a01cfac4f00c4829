"""Where tickets wait and who works on them: tickets, slots, lanes. Bookkeeping only; decisions are the dispatcher's.

A *lane* is a queue of tickets together with the slots that may take from it. With `in_order=True` every slot has a lane
of its own, so that a ticket's worker is fixed when it is drawn; with `in_order=False` all slots share one lane, so that
fast workers get more: after the first tickets of an epoch, as many as there is credit, which are dealt in turn, as by
torch, whoever is ready first.

A queue is a heap of seqs, not a deque: what a lost worker held goes back to where it belongs, and in a shared lane that
need not be the front.
"""

from __future__ import annotations

from collections import OrderedDict


class Ticket:
    """Work for one batch, from its drawing until it arrives or fails."""

    __slots__ = (
        "alone",
        "charged",
        "deaths",
        "indices",
        "lane",
        "reserved",
        "seq",
        "slot",
        "stuck_at",
        "wants",
        "without",
    )

    def __init__(self, seq: int, indices: object, lane: Lane) -> None:
        self.seq = seq
        self.indices = indices
        self.lane = lane
        self.slot: Slot | None = None  # who holds it; None: it is queued in its lane
        self.reserved = 0  # bytes it has of the budget
        self.wants: int | None = None  # bytes it waits for, what it has included; None: it does not wait for memory
        self.deaths: tuple[int | None, ...] = ()  # of workers at this ticket: where, see `losses`
        self.charged = 0  # how many of these deaths count
        self.stuck_at: int | None = None  # the position at which its worker has been stuck, see `losses`
        self.alone = False  # given by itself, to a fresh worker
        self.without: tuple[tuple[int, object], ...] = ()  # positions that are not fetched, and why


class Slot:
    """A worker's place, and the tickets that the process now in it holds. `dealt` is the queue of what it begins with
    where it has no lane of its own (it is full then, and not refilled)."""

    __slots__ = (
        "dealt",
        "dry",
        "ended",
        "exclusive",
        "generation",
        "held",
        "index",
        "lane",
        "lifetime",
        "listed",
        "prepared",
        "ready",
        "served",
    )

    def __init__(self, index: int, lane: Lane, dealt: OwnLane | None, lifetime: int = 0) -> None:
        self.index = index
        self.lane = lane
        self.dealt = dealt
        self.generation = 0
        self.ready = False
        self.ended = False
        self.dry = False  # its worker makes nothing more, but for what it had begun
        self.held: dict[int, Ticket] = {}
        self.listed: int | None = None  # the load under which a shared lane lists it
        self.lifetime = lifetime  # tickets that its process may be given; 0: any number
        self.served = 0  # tickets that it has been given
        self.prepared = False  # the next process has been asked for
        self.exclusive = False  # it holds a ticket that must be alone

    @property
    def own(self) -> Lane:
        """The queue that nobody else takes from."""
        return self.lane if self.dealt is None else self.dealt

    @property
    def worn(self) -> bool:
        """Whether its process has had all that it may be given."""
        return 0 < self.lifetime <= self.served

    def can_take(self, credit: int) -> bool:
        """Whether it may be given something, or has to be replaced before that."""
        if not self.ready or self.exclusive or len(self.held) >= credit:
            return False
        return not (self.held and self.worn)

    def begin_anew(self) -> None:
        """Another process takes its place."""
        self.generation += 1
        self.ready = self.prepared = self.exclusive = False
        self.served = 0
        self.lane.update(self)


class OwnLane:
    """The queue of one slot. One that has run dry may have got back what its last worker had begun before that."""

    __slots__ = ("_credit", "live", "queue", "slot")

    def __init__(self, credit: int) -> None:
        self.queue: list[int] = []
        self.live = 0  # slots that have not ended, nor run dry
        self.slot: Slot | None = None
        self._credit = credit

    def join(self, slot: Slot) -> None:
        assert self.slot is None, "a lane of its own has one slot"
        self.slot = slot
        self.live = 1

    def taker(self) -> Slot | None:
        """The slot that may be given a ticket now."""
        slot = self.slot
        return slot if slot is not None and slot.can_take(self._credit) else None

    def update(self, slot: Slot) -> None:
        """What `slot` holds, or whether it is ready, has changed."""


class SharedLane:
    """One queue for all slots; whoever holds fewest takes next, among equals whoever has waited longest.

    Slots that can take are listed by load, so that no choice looks at all of them. `_least` is a lower bound of the
    lowest load listed: an arrival lowers it by at most one and a search raises it, hence O(1) amortised.
    """

    __slots__ = ("_by_load", "_credit", "_least", "live", "queue")

    slot: Slot | None = None  # nobody's own

    def __init__(self, credit: int) -> None:
        self.queue: list[int] = []
        self.live = 0
        self._credit = credit
        self._by_load: list[OrderedDict[int, Slot]] = [OrderedDict() for _ in range(credit)]
        self._least = credit

    def join(self, slot: Slot) -> None:
        self.live += 1

    def taker(self) -> Slot | None:
        while self._least < self._credit:
            listed = self._by_load[self._least]
            if listed:
                return next(iter(listed.values()))
            self._least += 1
        return None

    def update(self, slot: Slot) -> None:
        if slot.listed is not None:
            del self._by_load[slot.listed][slot.index]
            slot.listed = None
        load = len(slot.held)
        if slot.can_take(self._credit) and not slot.dry and not (slot.dealt and slot.dealt.queue):
            self._by_load[load][slot.index] = slot
            slot.listed = load
            self._least = min(self._least, load)


Lane = OwnLane | SharedLane


def make_slots(count: int, credit: int, *, in_order: bool, lifetime: int = 0) -> list[Slot]:
    """Slots 0 … count-1, each in a lane of its own or all in one."""
    if in_order:
        slots = [Slot(index, OwnLane(credit), None, lifetime) for index in range(count)]
    else:
        shared = SharedLane(credit)
        slots = [Slot(index, shared, OwnLane(credit), lifetime) for index in range(count)]
    for slot in slots:
        slot.lane.join(slot)
        if slot.dealt is not None:
            slot.dealt.join(slot)
    return slots
