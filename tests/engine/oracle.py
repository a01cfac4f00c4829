"""What the dispatcher must do, said a second time and slowly: sets, sums and minima over all tickets after every event.

It shares no code with `aloader.engine` but the events and commands, and looks at nothing inside. `Oracle.follow` takes
an event and what the dispatcher answered: it applies the event, checks and applies each command where it stands, and
then checks that no command is missing. A ticket's whole story is one `Fate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from aloader.engine import (
    Assign,
    BatchArrived,
    CameToNothing,
    Closed,
    Command,
    Consumed,
    Deliver,
    Discard,
    DispatcherConfig,
    Draw,
    Drawn,
    Event,
    Exhausted,
    Finish,
    Grant,
    NeedMemory,
    Omit,
    Opened,
    Prepare,
    Raise,
    RanDry,
    Replace,
    Restart,
    TicketFailed,
    WorkerLost,
    WorkerReady,
)

Message = TypeVar("Message", bound=Any)


def renumbered(message: Message, by: int) -> Message:
    """An event or a command with its ticket's number changed: the oracle counts from 0, whatever is the first."""
    numbers = {name: getattr(message, name) for name in ("seq", "running") if hasattr(message, name)}
    return message._replace(**{name: number + by for name, number in numbers.items() if number is not None})


@dataclass
class Fate:
    """One ticket: `home` is its slot by the round robin (in order), `slot` who holds it."""

    seq: int
    indices: object
    home: int | None  # None: anybody's
    state: str = "queued"  # held, landed, out, consumed, skipped
    slot: int | None = None
    asked: int | None = None  # bytes its worker waits for
    reserved: int = 0
    excess: int = 0  # bytes by which its batch was larger than reserved
    ahead: bool = False  # it was allowed to exceed the limit
    outcome: Deliver | Raise | Omit | None = None
    deaths: list[int | str | None] = field(default_factory=list)  # where workers died at it, or "somewhere"
    charged: int = 0  # of them, those that count
    stuck_at: int | str | None = None  # or "somewhere"
    apart: bool = False  # a call for all its samples was stuck
    without: tuple[tuple[int, object], ...] = ()

    @property
    def alone(self) -> bool:
        return len(self.deaths) > 1 or self.apart


@dataclass
class Place:
    """One slot."""

    generation: int = 0
    ready: bool = False
    ended: bool = False
    dry: bool = False
    served: int = 0
    given: int = 0  # of these in this epoch
    prepared: bool = False

    def begin_anew(self) -> None:
        self.generation += 1
        self.ready = self.prepared = False
        self.served = self.given = 0


@dataclass
class Oracle:
    config: DispatcherConfig
    fates: list[Fate] = field(default_factory=list)
    pending: int = 0  # draws not answered
    drawing: bool = False
    last_home: int = -1
    latest: int | None = None  # bytes of the latest batch
    loss: object = None
    untold: bool = False  # a share was lost, and nothing has said so
    restarts: int = 0  # workers replaced
    charged: int = 0  # those that count
    incident: tuple[int, bool] = (0, False)
    oom_seen: bool = False  # a worker took too much memory
    wide: bool = False  # the latest batch allows the wide window
    far: bool = False  # and the far one
    starved: bool = False  # a worker took too much memory, and was replaced: half the windows
    finished: bool = False
    closed: bool = False
    owed: list[Command] = field(default_factory=list)  # commands that the event itself calls for

    def __post_init__(self) -> None:
        self.places = [Place() for _ in range(self.config.slots)]
        self.last_home = self.config.first_slot - 1

    # -- views ------------------------------------------------------------------------------------------------------

    def those(self, state: str) -> list[Fate]:
        return [fate for fate in self.fates if fate.state == state]

    def held_by(self, slot: int) -> list[Fate]:
        return [fate for fate in self.those("held") if fate.slot == slot]

    def takers(self) -> list[int]:
        return [slot for slot, place in enumerate(self.places) if place.ready and self.has_room(slot)]

    def has_room(self, slot: int) -> bool:
        held = self.held_by(slot)
        if any(fate.alone for fate in held) or (held and self.worn(slot)):
            return False
        return len(held) < self.config.credit

    def worn(self, slot: int) -> bool:
        return bool(self.config.lifetime) and self.places[slot].served >= self.config.lifetime

    def front(self, slot: int) -> Fate | None:
        """What a slot that can take something would be given, or another process for it: its own first."""
        queued = self.those("queued")
        mine = [fate for fate in queued if fate.home == slot]
        if not mine and slot in self.first_free_takers():
            mine = [fate for fate in queued if fate.home is None]
        return min(mine, key=lambda fate: fate.seq, default=None)

    def first_free_takers(self) -> list[int]:
        """Those that hold least."""
        free = self.free_takers()
        fewest = min((len(self.held_by(slot)) for slot in free), default=0)
        return [slot for slot in free if len(self.held_by(slot)) == fewest]

    def live(self) -> list[int]:
        return [slot for slot, place in enumerate(self.places) if not place.ended and not place.dry]

    def alive(self) -> list[int]:
        return [slot for slot, place in enumerate(self.places) if not place.ended]

    def next_out(self) -> int:
        return min((fate.seq for fate in self.fates if fate.state in ("queued", "held", "landed")), default=-1)

    def window(self) -> int:
        half = 2 if self.starved else 1
        wide, narrow = (max(1, bound // half) for bound in (self.config.window, self.config.narrow_window))
        size = wide if self.wide else narrow
        return max(size, min(self.config.far_window // half if self.far else 0, size + len(self.blocked())))

    def blocked(self) -> list[Fate]:
        """What has its outcome, and may not leave before another."""
        late = min((fate.seq for fate in self.fates if fate.state in ("queued", "held")), default=len(self.fates))
        return [fate for fate in self.those("landed") if self.config.in_order and late < fate.seq]

    def outstanding(self) -> int:
        return self.pending + sum(fate.state not in ("consumed", "skipped") for fate in self.fates)

    def allowance(self) -> int:
        return self.config.first_allowance if self.latest is None else self.latest

    def reserved(self) -> int:
        return sum(fate.reserved for fate in self.fates)

    def requests(self) -> dict[int, int]:
        """Who could go on if there were memory, and how many bytes each would have then."""
        wanted = {fate.seq: fate.asked for fate in self.those("held") if fate.asked is not None}
        fronts = [(slot, front) for slot in self.takers() if (front := self.front(slot)) is not None]
        able = [fate.seq for slot, fate in fronts if not (fate.alone and self.held_by(slot))]
        return wanted | {seq: self.allowance() for seq in able}

    def free_takers(self) -> list[int]:
        """Those that may take what is anybody's: none that has something of its own to begin with."""
        homes = {fate.home for fate in self.those("queued")}
        return [slot for slot in self.takers() if slot not in homes and not self.places[slot].dry]

    def fits(self, seq: int, nbytes: int) -> bool:
        return self.reserved() - self.fates[seq].reserved + nbytes <= self.config.memory_limit

    def may_exceed(self, seq: int) -> bool:
        if self.those("out"):
            return False
        if self.config.in_order:
            return seq == self.next_out()
        waiting = {fate.slot for fate in self.those("held") if fate.asked is not None}
        return all(fate.slot in waiting for fate in self.those("held"))

    # -- one event --------------------------------------------------------------------------------------------------

    def follow(self, event: Event, commands: list[Command]) -> None:
        self.owed = []
        self._apply(event)
        if self.drawing and (missing := self.window() - self.outstanding()) > 0:
            self.owed.append(Draw(missing))
        for command in commands:
            self._check(command)
        assert not self.owed, f"still owed: {self.owed}"
        self._check_nothing_forgotten()
        self._check_bounds()

    def _apply(self, event: Event) -> None:
        match event:
            case Opened():
                self.drawing = True
            case Drawn(indices):
                self._drawn(indices)
            case Exhausted():
                self.pending, self.drawing = 0, False
            case WorkerReady(slot, generation, served):
                if self._is_current(slot, generation) and not self.places[slot].ready:
                    self.places[slot].ready, self.places[slot].served = True, served
            case NeedMemory(slot, generation, seq, nbytes):
                if fate := self._held(slot, generation, seq):
                    fate.asked = nbytes
            case BatchArrived():
                self._arrived(event)
            case TicketFailed(slot, generation, seq, error):
                if fate := self._held(slot, generation, seq):
                    self._fail(fate, error)
            case CameToNothing(slot, generation, seq, what):
                if fate := self._held(slot, generation, seq):
                    self._land(fate, Omit(seq, what))
            case RanDry(slot, generation, seq):
                if self._is_current(slot, generation):
                    self._ran_dry(slot, seq)
            case WorkerLost(slot, generation):
                if self._is_current(slot, generation):
                    (self._share_lost if self.config.interchangeable else self._lost)(event)
            case Consumed(seq):
                assert self.fates[seq].state == "out"
                self.fates[seq].state = "consumed"
                self.fates[seq].reserved = self.fates[seq].excess = 0
            case Closed():
                self._close()

    def _is_current(self, slot: int, generation: int) -> bool:
        place = self.places[slot]
        return not self.closed and not place.ended and place.generation == generation

    def _held(self, slot: int, generation: int, seq: int) -> Fate | None:
        here = self.held_by(slot) if self._is_current(slot, generation) else []
        return next((fate for fate in here if fate.seq == seq), None)

    def _drawn(self, indices: object) -> None:
        if self.closed:
            return
        self.pending -= 1
        home = None
        if self.config.in_order and self.live() and not self.untold:
            after = [slot for slot in self.live() if slot > self.last_home]
            home = self.last_home = min(after or self.live())
        seq, slots = len(self.fates), self.config.slots
        first = not self.config.in_order and seq < slots * self.config.credit
        turn = (seq + self.config.first_slot) % slots
        if first and not self.untold and turn in self.live():
            home = turn  # the first are dealt in turn
        self.fates.append(Fate(len(self.fates), indices, home))
        if self.untold:
            self.untold = False
            self._fail(self.fates[-1], self.loss)
            self.drawing = bool(self.live())
        elif not self.live():
            if self.config.interchangeable:
                self._skip(self.fates[-1])
            else:
                self._fail(self.fates[-1], self.loss)
            self.drawing = False

    def _skip(self, fate: Fate) -> None:
        fate.state, fate.slot, fate.asked, fate.reserved, fate.ahead = "skipped", None, None, 0, False

    def _of_nobody(self, slot: int) -> list[Fate]:
        """Queued tickets that only this slot, which is out of the game, could have taken."""
        return [f for f in self.those("queued") if not self.live() or (self.config.in_order and f.home == slot)]

    def _free_homed(self, slot: int) -> None:
        """What was dealt to a slot that is out of the game is anybody's."""
        for fate in self.those("queued"):
            if fate.home == slot and not self.config.in_order:
                fate.home = None

    def _ran_dry(self, slot: int, seq: int) -> None:
        again, self.places[slot].dry = self.places[slot].dry, True
        if not again:
            self._free_homed(slot)
        for fate in [*(f for f in self.held_by(slot) if f.seq >= seq), *([] if again else self._of_nobody(slot))]:
            self._skip(fate)
        self.drawing = self.drawing and (bool(self.live()) or self.untold)

    def _share_lost(self, event: WorkerLost) -> None:
        self.loss, slot = event.error, event.slot
        place, held = self.places[slot], self.held_by(slot)
        mine = [fate for fate in self.those("queued") if fate.home == slot]
        whole = place.dry and not held and not mine
        if not whole and self._may_restart(event):
            for fate in held:
                self._queue_again(fate, slot)
            self._restart(event)
            return
        place.ended, place.ready = True, False
        if place.dry:
            left = {fate.seq: fate for fate in [*held, *mine]}
        else:
            self._free_homed(slot)
            left = {fate.seq: fate for fate in [*held, *self._of_nobody(slot)]}
        told = event.running if event.running in left else min(left, default=None)
        for fate in left.values():
            if fate.seq == told:
                self._fail(fate, event.error)
            else:
                self._skip(fate)
        self.untold = self.untold or (told is None and not whole)
        self.drawing = self.drawing and (bool(self.live()) or self.untold)

    def _arrived(self, event: BatchArrived) -> None:
        fate = self._held(event.slot, event.generation, event.seq)
        if fate is None:
            self.owed.append(Discard(event.batch))
            return
        fate.state, fate.slot, fate.asked = "landed", None, None
        fate.excess = max(0, event.nbytes - fate.reserved)
        fate.reserved = self.latest = event.nbytes
        half = 2 if self.starved else 1
        few = min(self.config.wide_window_bytes, self.config.memory_limit // 4)
        self.wide = event.nbytes * max(1, self.config.window // half) <= few
        self.far = event.nbytes * (self.config.far_window // half) <= self.config.memory_limit // 4
        fate.outcome = Deliver(event.seq, event.batch)

    def _fail(self, fate: Fate, error: object) -> None:
        self._land(fate, Raise(fate.seq, error))

    def _land(self, fate: Fate, outcome: Raise | Omit) -> None:
        fate.state, fate.slot, fate.asked, fate.reserved, fate.ahead = "landed", None, None, 0, False
        fate.outcome = outcome

    def _lost(self, event: WorkerLost) -> None:
        self.loss, slot = event.error, event.slot
        held = self.held_by(slot)
        blamed = next((fate for fate in held if fate.seq == event.running), None)
        before = [] if blamed is None or event.stuck else [place for place in blamed.deaths if place is not None]
        guilty = event.certain and blamed is not None and self._is_guilty(blamed, event)
        free = event.certain and (guilty or event.place in before)
        if not event.certain:
            for fate in held:
                fate.deaths.append("somewhere")
                fate.charged += 1
        elif blamed is not None:
            blamed.charged += not free
        if guilty and blamed is not None:
            self.charged, blamed.charged = max(0, self.charged - blamed.charged), 0
            if self.config.tolerant and event.place not in (None, *dict(blamed.without)):
                blamed.without += ((event.place, event.error),)
                blamed.deaths, blamed.stuck_at, blamed.apart, guilty = [], None, False, False
        again = self._may_restart(event, free)
        for fate in held:
            self._queue_again(fate, slot if fate.alone else None)
            if fate is blamed and (guilty or not again):
                self._fail(fate, event.error)
        if again:
            self._restart(event)
            return
        place = self.places[slot]
        place.ended, place.ready = True, False
        self._free_homed(slot)
        for fate in self.those("queued"):
            if not self.live() or (self.config.in_order and fate.home == slot):
                self._fail(fate, event.error)
                self.drawing = self.drawing and bool(self.live())

    def _is_guilty(self, fate: Fate, event: WorkerLost) -> bool:
        if event.stuck:
            if event.place is None:
                fate.stuck_at, fate.apart = "somewhere", True
                return False
            before, fate.stuck_at = fate.stuck_at, event.place
            return before in ("somewhere", event.place)
        known = [place for place in fate.deaths if place is None or place == event.place]
        guilty = fate.alone and len(known) > 0 and len(known) + fate.deaths.count("somewhere") > 1
        fate.deaths.append(event.place)
        return guilty

    def _queue_again(self, fate: Fate, home: int | None) -> None:
        fate.state, fate.slot, fate.asked, fate.reserved, fate.ahead = "queued", None, None, 0, False
        fate.home = fate.home if self.config.in_order else home

    def _may_restart(self, event: WorkerLost, free: bool = False) -> bool:
        number, answer = self.incident
        if event.incident == 0 or event.incident != number:
            answer = (free or self.charged < self.config.max_restarts) and not (event.oom and self.oom_seen)
            self.charged += answer and not free
            if event.incident:
                self.incident = event.incident, answer
        self.oom_seen = self.oom_seen or (event.oom and answer)
        return answer

    def _restart(self, event: WorkerLost) -> None:
        place = self.places[event.slot]
        place.begin_anew()
        self.restarts += 1
        self.starved = self.starved or event.oom
        self.owed.append(Restart(event.slot, place.generation, event.oom))

    def _close(self) -> None:
        if self.closed:
            return
        self.closed, self.drawing, self.pending = True, False, 0
        for fate in self.fates:
            if fate.state == "landed" and isinstance(fate.outcome, Deliver):
                self.owed.append(Discard(fate.outcome.batch))
            if fate.state not in ("out", "skipped"):
                fate.state, fate.asked, fate.reserved, fate.excess, fate.ahead = "consumed", None, 0, 0, False

    # -- its answer -------------------------------------------------------------------------------------------------

    def _check(self, command: Command) -> None:
        match command:
            case Draw() | Discard() | Restart():
                assert command in self.owed, f"{command} was not called for: {self.owed}"
                self.owed.remove(command)
                self.pending += command.tickets if isinstance(command, Draw) else 0
            case Assign():
                self._check_assign(command)
            case Prepare(slot):
                assert self._wants_another_soon(slot)
                self.places[slot].prepared = True
            case Replace():
                self._check_replace(command)
            case Grant():
                self._check_grant(command)
            case Deliver(seq) | Raise(seq) | Omit(seq):
                fate = self.fates[seq]
                assert fate.state == "landed"
                assert command == fate.outcome
                assert not self.config.in_order or seq == self.next_out(), "out of order"
                fate.state = "out"
            case Finish():
                assert self._is_complete()
                assert not self.finished
                self.finished = True

    def _wants_another_soon(self, slot: int) -> bool:
        place, lifetime = self.places[slot], self.config.lifetime
        soon = lifetime > 0 and place.served > lifetime - 2 * self.config.credit
        return soon and place.given > 0 and not place.prepared

    def _check_replace(self, command: Replace) -> None:
        place, front = self.places[command.slot], self.front(command.slot)
        assert command.slot in self.takers()
        assert not self.held_by(command.slot)
        assert front is not None, "nothing waits for another process"
        assert self.worn(command.slot) or (front.alone and place.served), "its process will do"
        place.begin_anew()
        assert place.generation == command.generation

    def _check_assign(self, command: Assign) -> None:
        fate, wanted = self.fates[command.seq], self.requests()
        assert fate.state == "queued"
        assert self._is_current(command.slot, command.generation)
        assert command.slot in self.takers(), "the slot is not ready or has no credit"
        assert (command.indices, command.allowance) == (fate.indices, self.allowance())
        if fate.home is not None:
            assert command.slot == fate.home, "not its slot by the round robin"
        else:
            assert command.slot in self.free_takers(), "it has its own to begin with"
            assert command.slot in self.first_free_takers(), "another slot holds fewer"
        place = self.places[command.slot]
        assert not self.worn(command.slot)
        assert (command.alone, command.without) == (fate.alone, fate.without)
        assert not fate.alone or place.served == 0, "a suspect needs a fresh worker"
        self._check_turn(command.seq, wanted)
        fate.state, fate.slot, fate.reserved = "held", command.slot, command.allowance
        place.served, place.given = place.served + 1, place.given + 1

    def _check_grant(self, command: Grant) -> None:
        fate = self.fates[command.seq]
        assert fate is self._held(command.slot, command.generation, command.seq)
        assert fate.asked is not None, "nobody asked"
        if fate.asked > fate.reserved:
            self._check_turn(command.seq, self.requests())
            fate.reserved = fate.asked
        fate.asked = None

    def _check_turn(self, seq: int, wanted: dict[int, int]) -> None:
        assert seq == min(wanted), f"{seq} gets memory before {min(wanted)}"
        if not self.fits(seq, wanted[seq]):
            assert self.may_exceed(seq), "beyond the limit"
            self.fates[seq].ahead = True

    # -- between two events -----------------------------------------------------------------------------------------

    def _is_complete(self) -> bool:
        begun = bool(self.fates) or self.pending == 0
        return begun and not self.closed and not self.drawing and self.outstanding() == 0

    def _check_nothing_forgotten(self) -> None:
        landed = self.those("landed")
        if self.config.in_order:
            assert self.next_out() not in [fate.seq for fate in landed], "its turn has come"
        else:
            assert not landed, "it should have left on arrival"
        if wanted := self.requests():
            lowest = min(wanted)
            assert not self.fits(lowest, wanted[lowest]), f"{lowest} waits, and there is memory"
            assert not self.may_exceed(lowest), f"{lowest} waits, and all wait for it"
        for slot, place in enumerate(self.places):
            assert self.closed or not self._wants_another_soon(slot), "nobody was told to prepare"
            own = min((fate for fate in self.those("queued") if fate.home == slot), key=lambda f: f.seq, default=None)
            if own is not None and slot in self.takers() and not self.held_by(slot):
                assert not self.worn(slot), "it waits for another process"
                assert not own.alone or not place.served, "it waits for a fresh process"
        for fate in self.those("held"):
            assert fate.asked is None or fate.asked > fate.reserved, "what it asks for it has"

    def _check_bounds(self) -> None:
        for slot in range(self.config.slots):
            assert len(self.held_by(slot)) <= self.config.credit
        assert self.outstanding() <= max(self.config.window, self.config.far_window)
        within = sum(fate.reserved - fate.excess for fate in self.fates if not fate.ahead)
        assert within <= self.config.memory_limit
        ahead = [fate for fate in self.fates if fate.ahead and fate.state != "consumed"]
        assert not self.config.in_order or len(ahead) <= 1, "only one may exceed the limit"
