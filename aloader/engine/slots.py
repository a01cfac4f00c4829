"""Where tickets wait and who works on them: tickets, slots, lanes. Bookkeeping only; decisions are the dispatcher's.

A *lane* is a queue of tickets together with the slots that may take from it. With `in_order=True` every slot has a lane
of its own, so that a ticket's worker is fixed when it is drawn; with `in_order=False` all slots share one lane, so that
fast workers get more. Nothing else in the engine knows the difference.

A queue is a heap of seqs, not a deque: what a lost worker held goes back to where it belongs, and in a shared lane that
need not be the front.
"""

from __future__ import annotations

from collections import OrderedDict


class Ticket:
    """Work for one batch, from its drawing until it arrives or fails."""

    __slots__ = ("indices", "lane", "reserved", "seq", "slot", "wants")

    def __init__(self, seq: int, indices: object, lane: Lane) -> None:
        self.seq = seq
        self.indices = indices
        self.lane = lane
        self.slot: Slot | None = None  # who holds it; None: it is queued in its lane
        self.reserved = 0  # bytes it has of the budget
        self.wants: int | None = None  # bytes it waits for, what it has included; None: it does not wait for memory


class Slot:
    """A worker's place, and the tickets that the process now in it holds."""

    __slots__ = ("dry", "ended", "generation", "held", "index", "lane", "listed", "ready")

    def __init__(self, index: int, lane: Lane) -> None:
        self.index = index
        self.lane = lane
        self.generation = 0
        self.ready = False
        self.ended = False
        self.dry = False  # its worker makes nothing more, but for what it had begun
        self.held: dict[int, Ticket] = {}
        self.listed: int | None = None  # the load under which a shared lane lists it


class OwnLane:
    """The queue of one slot."""

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
        if slot is None or not slot.ready or slot.dry:
            return None
        return slot if len(slot.held) < self._credit else None

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
        if slot.ready and not slot.dry and load < self._credit:
            self._by_load[load][slot.index] = slot
            slot.listed = load
            self._least = min(self._least, load)


Lane = OwnLane | SharedLane


def make_slots(count: int, credit: int, *, in_order: bool) -> list[Slot]:
    """Slots 0 … count-1, each in a lane of its own or all in one."""
    shared = SharedLane(credit)
    slots = [Slot(index, OwnLane(credit) if in_order else shared) for index in range(count)]
    for slot in slots:
        slot.lane.join(slot)
    return slots
