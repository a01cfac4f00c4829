"""What goes into the dispatcher and what comes out of it. Only immutable values; no behaviour may enter here.

Named tuples rather than frozen dataclasses: they are made several times per batch, and a frozen dataclass costs three
times as much to make.

A *slot* is a worker's place (0 … n-1). A *generation* counts the processes that have filled that place: what a dead
generation still says is dropped by its number. A *seq* is a ticket's place in the order of the epoch.
"""

from __future__ import annotations

from typing import NamedTuple

# -- events: what happened -------------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """The epoch begins: the sampler's iterator exists and may be advanced."""


class Drawn(NamedTuple):
    """The sampler gave the next ticket's indices (one event for each; the answer to `Draw`)."""

    indices: object


class Exhausted(NamedTuple):
    """The sampler has no more tickets. Nothing is drawn after it."""


class WorkerReady(NamedTuple):
    """The process of that generation has opened its dataset and can be given tickets. `served`: how many it has been
    given before this epoch."""

    slot: int
    generation: int
    served: int = 0


class NeedMemory(NamedTuple):
    """A worker has fetched a ticket and needs more bytes to collate it than its `Assign` allowed."""

    slot: int
    generation: int
    seq: int
    nbytes: int


class BatchArrived(NamedTuple):
    """A worker has finished a ticket; `nbytes` is what the batch really takes in shared memory."""

    slot: int
    generation: int
    seq: int
    nbytes: int
    batch: object


class TicketFailed(NamedTuple):
    """The user's code failed in a ticket. The worker goes on."""

    slot: int
    generation: int
    seq: int
    error: object


class CameToNothing(NamedTuple):
    """A ticket's samples have all failed, and are left out: there is no batch. `what` is for whoever counts them."""

    slot: int
    generation: int
    seq: int
    what: object


class RanDry(NamedTuple):
    """A worker found nothing left of its share of an iterable dataset when it came to `seq`, and makes nothing more."""

    slot: int
    generation: int
    seq: int


class WorkerLost(NamedTuple):
    """A process ended that should not have. `running` is the ticket it was working on, if any, and `place` the position
    in it of the sample at work, where that is known. Not `certain`: it worked on all that it held at once.

    `incident`: processes that have ended by one and the same thing have its number (0: this one only). `oom`: the
    kernel ended it for want of memory. `stuck`: the driver did, since it had been at one place for too long. `final`:
    no process can take its place.
    """

    slot: int
    generation: int
    running: int | None
    error: object
    place: int | None = None
    certain: bool = True
    incident: int = 0
    oom: bool = False
    stuck: bool = False
    final: bool = False


class Consumed(NamedTuple):
    """What was delivered (or raised) under `seq` has been handed to the user."""

    seq: int


class Closed(NamedTuple):
    """The epoch is over for its consumer, whatever is still under way."""


Event = (
    Opened
    | Drawn
    | Exhausted
    | WorkerReady
    | NeedMemory
    | BatchArrived
    | TicketFailed
    | CameToNothing
    | RanDry
    | WorkerLost
    | Consumed
    | Closed
)

# -- commands: what the driver must do -------------------------------------------------------------------------------


class Draw(NamedTuple):
    """Advance the sampler up to `tickets` times: answer with as many `Drawn`, or with `Exhausted`."""

    tickets: int


class Assign(NamedTuple):
    """Give a ticket to a worker. It may collate up to `allowance` bytes without asking.

    `alone`: workers have died at it, so its samples are to be fetched one by one. `without`: positions of samples that
    are not fetched any more, each with the error that stands for it.
    """

    slot: int
    generation: int
    seq: int
    indices: object
    allowance: int
    alone: bool = False
    without: tuple[tuple[int, object], ...] = ()


class Grant(NamedTuple):
    """The worker that asked with `NeedMemory` may collate now."""

    slot: int
    generation: int
    seq: int


class Deliver(NamedTuple):
    """The next batch for the user."""

    seq: int
    batch: object


class Raise(NamedTuple):
    """The next thing for the user is this error, in the place of batch `seq`."""

    seq: int
    error: object


class Omit(NamedTuple):
    """Nothing comes in the place of batch `seq`. It has its turn all the same; the driver consumes it by itself."""

    seq: int
    what: object


class Discard(NamedTuple):
    """A batch that nobody will ever see: give its memory back."""

    batch: object


class Restart(NamedTuple):
    """Start a process of this generation in that slot, whose process has gone; its tickets wait for it. `lean`: the
    last one took too much memory."""

    slot: int
    generation: int
    lean: bool = False


class Prepare(NamedTuple):
    """The slot will soon want another process: it may be started now, and kept until `Replace` or `Restart`."""

    slot: int


class Replace(NamedTuple):
    """Let the slot's process go, which holds nothing, and have one of this generation in its place."""

    slot: int
    generation: int


class Finish(NamedTuple):
    """Every ticket has been delivered and consumed."""


Command = Draw | Assign | Grant | Deliver | Raise | Omit | Discard | Restart | Prepare | Replace | Finish
