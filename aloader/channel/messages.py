"""What crosses the process border, in both directions. Only immutable values.

A message travels as a pickled tuple of its tag and fields: the classes themselves are not named on the wire (1 µs less
each way, and a worker of another generation of the code would be noticed by its tag).

The slot and generation of a message are those of the link it comes by: every worker process has a link of its own.
The dataset's number and the epoch are said each time, since one process may serve several of either.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from aloader.channel.arena import Place

# -- from the parent to a worker -------------------------------------------------------------------------------------


class Start(NamedTuple):
    """The first message: who the worker is. `context` is what it takes over from the parent (pickled); `flags` are
    those that have changed there since the job was written (pickled); `permits` is its share of the requests that a
    store may be asked at once (`storage.permits`). `on_error` says what becomes of a sample that fails ("call": the
    job's function does), or that takes longer than `sample_timeout` seconds (0: any time). `memory` is its share of
    the bytes that batches may take (0: any amount). `resume` is where it goes on
    (a pickled `marks.Resume`); `states` are those of the random generators of the worker that it replaces, after the
    last ticket that was answered."""

    dataset: int
    slot: int
    generation: int
    num_workers: int
    base_seed: int
    concurrency: int
    threads: bool
    auto_collation: bool
    context: bytes
    iterable: bool = False
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    permits: float = 1.0
    on_error: str = "raise"
    sample_timeout: float = 0.0
    memory: int = 0
    flags: bytes = b""
    resume: bytes = b""
    states: bytes = b""


class Ticket(NamedTuple):
    """Work for one batch. Up to `allowance` bytes may be collated without asking.

    Of an iterable dataset `indices` is the number of samples, None for a single one that is not batched. `key` is what
    the samples' own generators are made from; None: they draw from the worker's, as torch's do. `alone`: it has ended
    workers before, and each of its samples is fetched by itself. `without`: samples that are not fetched, since they
    end workers, by their positions; with the errors that stand for them (`faults.pack_fault`).
    """

    dataset: int
    epoch: int
    seq: int
    indices: object
    allowance: int
    key: int | None = None
    alone: bool = False
    without: tuple[tuple[int, bytes], ...] = ()


class Granted(NamedTuple):
    """The answer to `Need`."""

    dataset: int
    epoch: int
    seq: int


class Denied(NamedTuple):
    """The other answer to `Need`: so much cannot be had, and why. The ticket has failed with that."""

    dataset: int
    epoch: int
    seq: int
    reason: str


class Released(NamedTuple):
    """Leases that have ended: flat, segment and offset in turn."""

    places: tuple[int, ...]


class Unmapped(NamedTuple):
    """The parent no longer maps this segment."""

    segment: int


class EpochOver(NamedTuple):
    """Whatever is left of this dataset's epochs up to this one will never be looked at."""

    dataset: int
    epoch: int


class Call(NamedTuple):
    """Call a method of the dataset before the next ticket: its name and arguments, pickled."""

    dataset: int
    call: bytes


class Stop(NamedTuple):
    """Close the dataset and exit."""


# -- from a worker to the parent -------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """The worker has its dataset (or an error to answer tickets with)."""

    pid: int


class NewSegment(NamedTuple):
    """A segment of the worker's arena; its descriptor comes along, and the receiving link fills in `fd`."""

    number: int
    nbytes: int
    fd: int = -1


class Retire(NamedTuple):
    """The worker no longer uses this segment: unmap it and say so."""

    segment: int


class Need(NamedTuple):
    """A ticket has been fetched and takes more bytes than it was allowed."""

    dataset: int
    epoch: int
    seq: int
    nbytes: int


class LeftOut(NamedTuple):
    """A sample that failed, and its batch did not: its position in the ticket, and its error (`faults.pack_fault`;
    within one process, as it is)."""

    position: int
    fault: bytes | BaseException


class Batch(NamedTuple):
    """A finished ticket: the pickle's body (or its place in the arena), the places of its large leaves, the seconds
    that it took to fetch and to collate, what the dataset says of itself behind it (`channel.marks`), and which of its
    samples have failed."""

    dataset: int
    epoch: int
    seq: int
    body: bytes | Place
    leaves: tuple[Place, ...]
    fetch_seconds: float
    collate_seconds: float
    mark: bytes | None = None
    left_out: tuple[LeftOut, ...] = ()


class Nothing(NamedTuple):
    """A ticket whose samples have all failed, and are left out: no batch comes in its place."""

    dataset: int
    epoch: int
    seq: int
    mark: bytes | None = None
    left_out: tuple[LeftOut, ...] = ()


class Failure(NamedTuple):
    """A ticket that failed in the user's code: the exception as `faults.pack_fault` wrote it."""

    dataset: int
    epoch: int
    seq: int
    fault: bytes


class RanDry(NamedTuple):
    """A ticket of an iterable dataset for which nothing was left: nor will there be for later ones of the epoch. `mark`
    is what the dataset says of itself at its end."""

    dataset: int
    epoch: int
    seq: int
    mark: bytes | None = None


class Notice(NamedTuple):
    """Something that the user should know, in words."""

    text: str


Message = (
    Start
    | Ticket
    | Granted
    | Released
    | Unmapped
    | EpochOver
    | Stop
    | Ready
    | NewSegment
    | Retire
    | Need
    | Batch
    | Failure
    | RanDry
    | Notice
    | Call
    | Nothing
    | Denied
)

KINDS: Final[tuple[type[Message], ...]] = (
    Start,
    Ticket,
    Granted,
    Released,
    Unmapped,
    EpochOver,
    Stop,
    Ready,
    NewSegment,
    Retire,
    Need,
    Batch,
    Failure,
    RanDry,
    Notice,
    Call,
    Nothing,
    Denied,
)
TAGS: Final[dict[type[Message], int]] = {kind: tag for tag, kind in enumerate(KINDS)}
