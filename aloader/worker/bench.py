"""A worker's workbench: its link, its memory and its job; from fetched samples to a message. No loop, no waiting.

Both servers (`inline`, for ordinary datasets, and `concurrent`, for async ones) work at it: they differ only in how
samples are fetched and how the answer to a request for memory is waited for.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data._utils import collate

from aloader import options
from aloader.channel.arena import Arena, Place
from aloader.channel.blame import blame, shortly
from aloader.channel.faults import pack_fault
from aloader.channel.job import Job
from aloader.channel.link import Link
from aloader.channel.marks import Resume
from aloader.channel.messages import (
    Batch,
    Call,
    Denied,
    EpochOver,
    Failure,
    Granted,
    Message,
    Need,
    NewSegment,
    Nothing,
    Notice,
    RanDry,
    Released,
    Retire,
    Start,
    Stop,
    Ticket,
    Unmapped,
)
from aloader.channel.payload import Packed, address_of, pack
from aloader.channel.states import Generators, State, Watch
from aloader.channel.status import Doing, StatusPage
from aloader.errors import BatchTooLarge
from aloader.worker.calls import Calls
from aloader.worker.collation import collate_into, estimate
from aloader.worker.dataclass_collation import collating
from aloader.worker.faulty import AllLost, Failed, Losses, Policy, located
from aloader.worker.fetch import Progress, fetch_inline
from aloader.worker.generators import COLLATE, Seeding, nobodys, unseeded
from aloader.worker.marks import Marker, tell
from aloader.worker.stream import Dry, Stream


class Collated(NamedTuple):
    """A batch in ordinary memory (or already in the arena), pickled, and what it still needs of the arena."""

    packed: Packed
    places: list[Place | None]  # of each out-of-band buffer; None where it must be copied
    missing: int


@dataclass(slots=True)
class Clock:
    """When a ticket's fetching began and ended, and what the dataset said of itself then."""

    began: float
    fetched: float = 0.0
    mark: bytes | None = None

    def marked(self, mark: bytes | None) -> None:
        """What the dataset says of itself."""
        self.mark = mark


class Telling:
    """A ticket's progress, where the page shall say each time which ticket it is, and since when."""

    def __init__(self, page: StatusPage, ticket: Ticket) -> None:
        self._page = page
        self._ticket = ticket

    def __getitem__(self, at: int) -> int:
        return self._page.progress[at]

    def __setitem__(self, at: int, position: int) -> None:
        self._page.write(Doing.FETCHING, self._ticket.epoch, self._ticket.seq, position)


class Bench:
    """See the top of this file. `broken` is why the job cannot be worked on; every ticket is answered with it."""

    def __init__(self, link: Link, page: StatusPage, start: Start) -> None:
        self.link = link
        self.page = page
        self.start = start
        self.broken: BaseException | None = None
        self.tickets: deque[Ticket] = deque()
        self.grants: set[tuple[int, int]] = set()
        self.denials: dict[tuple[int, int], BatchTooLarge] = {}
        self.stopped = False
        self.epoch_over = -1
        self.arena = Arena(self._announce, lambda number: link.send(Retire(number)), start.memory)
        collate_into(self.arena)
        self.asked: Callable[[], bool] = lambda: True  # whether the dataset has asked which worker it is in
        self._stream: tuple[int, Stream] | None = None  # the epoch's
        self._go_on(pickle.loads(start.resume) if start.resume else None)
        self._job: Job | None = None
        self._by_default = False
        self._policy = Policy(start.on_error, None, start.slot)
        self._calls = Calls()
        self._generators = Generators()
        self._watch = Watch(self._generators)
        self._collate: Callable[[Any], Any]

    @property
    def job(self) -> Job:
        """The job, once it is there."""
        assert self._job is not None
        return self._job

    @property
    def _name(self) -> str:
        return f"DataLoader worker process {self.start.slot}"

    def take(self, job: Job) -> None:
        """Work on this job from now on, where another program may have left off. Raises what the dataset raises."""
        self._job = job
        self.marker = Marker(job.dataset, self._name)
        self._policy = self._policy._replace(function=job.on_error)
        self._by_default = job.collate_fn is collate.default_collate
        self._collate = collating(job.collate_fn)
        if self._resume is not None and not self.start.iterable:
            tell(job.dataset, self._resume.mark)

    def _go_on(self, resume: Resume | None) -> None:
        """Where the next pass begins, if not at the front; and what an iterable dataset carries into it, apart."""
        self._resume, self._carried = resume, None
        mark = None if resume is None else resume.mark
        if resume is not None and mark is not None and mark.before and self.start.iterable:
            self._resume, self._carried = resume._replace(mark=mark._replace(dataset=None)), mark

    def begin_from(self, states: bytes) -> None:
        """Go on where the worker was that this one replaces, if it has drawn anything."""
        if states:
            self._generators.put(State.unpacked(states))

    def drawn(self, ticket: Ticket) -> State | None:
        """The generators' states, to be noted before the ticket is answered, for whoever replaces this worker. None:
        nobody has drawn since the last time, or samples have generators of their own."""
        return self._watch.changed() if ticket.key is None else None

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self, *, everything: bool = False) -> None:
        """Take in what has arrived."""
        self.hear(self.link.receive(everything=everything))
        if self.link.ended:
            self.stopped = True

    def hear(self, messages: Iterable[Message]) -> None:
        """Take in messages of the parent's."""
        for message in messages:
            self._on_message(message)

    def obey(self) -> None:
        """Make the calls that the parent has broadcast. Before a ticket is begun; raises what they raise."""
        carried, self._carried = self._carried, None
        tell(self.job.dataset, carried)  # first: calls have been made since then, such as `set_epoch`
        self._calls.make(self.job.dataset)

    def _on_message(self, message: Message) -> None:
        match message:
            case Ticket():
                self.tickets.append(message)
            case Released(places):
                for i in range(0, len(places), 2):
                    self.arena.release(places[i], places[i + 1])
            case Granted(_, epoch, seq):
                self.grants.add((epoch, seq))
            case Denied(_, epoch, seq, reason):
                self.denials[epoch, seq] = BatchTooLarge(reason)
            case Unmapped(segment):
                self.arena.retired(segment)
            case EpochOver(_, epoch):
                self.epoch_over = epoch
                self.tickets = deque(t for t in self.tickets if t.epoch > epoch)
                if self._stream is not None and self._stream[0] <= epoch:
                    self._stream = None
                if self._resume is not None and self._carried is None:  # it was for this epoch, and nobody has read
                    mark = self._resume.mark
                    self._go_on(None if mark is None else Resume(mark.carried()))
                self.arena.trim()
            case Call(_, call):
                self._calls.add(call)
            case Stop():
                self.stopped = True
            case _:
                raise AssertionError(f"a worker got {message!r}")

    def _announce(self, number: int, nbytes: int, fd: int) -> None:
        self.link.send(NewSegment(number, nbytes), fd)

    # -- samples ---------------------------------------------------------------------------------------------------

    def seeding(self, ticket: Ticket) -> Seeding | None:
        """How the ticket's code is seeded; None: as torch's, it goes on with the worker's generators."""
        if ticket.key is None:
            unseeded()
            return None
        return Seeding.of(self._generators, ticket, self.start.auto_collation, self.start.iterable)

    def losses(self, ticket: Ticket, seeding: Seeding | None) -> Losses | None:
        """What has failed of a ticket; None where an error is the ticket's."""
        return self._policy.losses(ticket, self.start.auto_collation, self.start.iterable, seeding)

    def fetch(self, ticket: Ticket, clock: Clock, seeding: Seeding | None, losses: Losses | None = None) -> Any:
        """The ticket's samples, here and now; there may be awaitables among them. Raises `Failed` and `Dry`."""
        progress: Progress = self.page.progress if not ticket.alone else Telling(self.page, ticket)
        if self.start.iterable:
            stream = self.stream(ticket.epoch)
            samples = stream.take(ticket.indices, progress, seeding, losses)  # type: ignore[arg-type]
            clock.mark = stream.mark
            return samples
        batched = self.start.auto_collation
        samples = fetch_inline(self.job.dataset, ticket.indices, batched, progress, seeding, losses)
        clock.mark = self.marker.take()
        return samples

    def stream(self, epoch: int) -> Stream:
        """This worker's share of an iterable dataset, read from the front in each epoch: but where it was read before,
        in the first one, if it goes on there."""
        if self._stream is None or self._stream[0] != epoch:
            start, resume, self._resume = self.start, self._resume, None
            shard = start.rank * start.num_workers + start.slot
            self._stream = epoch, Stream(self.job.dataset, start.drop_last, self.marker, shard, resume)
        return self._stream[1]

    # -- from samples to a message ---------------------------------------------------------------------------------

    def need_before(self, samples: Any) -> int:
        """The bytes that collating these samples will take, where that can be known."""
        return estimate(samples) if self._by_default else 0

    def collate(self, ticket: Ticket, samples: Any, need: int, seeding: Seeding | None) -> Collated:
        """Collate and pickle. Synchronous: nothing else of this worker runs in between."""
        self.page.write(Doing.COLLATING, ticket.epoch, ticket.seq)
        self.arena.begin(need)
        if seeding is not None:
            seeding.all(COLLATE).begin()
        packed = pack(self._collate(samples))
        nobodys()
        places = [self.arena.lease(address_of(buffer), buffer.nbytes) for buffer in packed.buffers]
        missing = sum(b.nbytes for b, place in zip(packed.buffers, places, strict=True) if place is None)
        if len(packed.body) > options.BODY_BYTES:
            missing += len(packed.body)
        return Collated(packed, places, missing)

    def send(self, ticket: Ticket, collated: Collated, clock: Clock, losses: Losses | None = None) -> None:
        """Copy what is not in the arena yet, and answer the ticket."""
        packed, places, missing = collated
        self.arena.make_room(missing)
        for at, (buffer, place) in enumerate(zip(packed.buffers, places, strict=True)):
            if place is None:
                places[at] = self.arena.store(buffer)
        leaves: Any = tuple(places)
        small = len(packed.body) <= options.BODY_BYTES
        body = packed.body if small else self.arena.store(memoryview(packed.body))
        now = time.perf_counter()
        seconds = clock.fetched - clock.began, now - clock.fetched
        rest = (clock.mark,) if losses is None else (clock.mark, losses.packed(self._name))
        self.link.send(Batch(ticket.dataset, ticket.epoch, ticket.seq, body, leaves, *seconds, *rest))
        places.clear()
        if not self.asked():
            self.asked = lambda: True
            self.link.send(Notice(_unsharded(self.job.dataset, self.start.num_workers)))

    def drop(self, collated: Collated) -> None:
        """If it was not sent, nobody has its places."""
        for place in collated.places:
            if place is not None:
                self.arena.release(place.segment, place.offset)
        collated.places.clear()

    def ask(self, ticket: Ticket, nbytes: int) -> None:
        """Ask for more memory than the ticket allowed."""
        self.page.write(Doing.WAITING, ticket.epoch, ticket.seq)
        self.link.send(Need(ticket.dataset, ticket.epoch, ticket.seq, nbytes))

    def granted(self, ticket: Ticket) -> bool:
        """Whether the answer is there (takes it), or no longer wanted. Raises `BatchTooLarge` where it is no."""
        if ticket.epoch <= self.epoch_over or self.stopped:
            return True
        key = (ticket.epoch, ticket.seq)
        if key in self.grants:
            self.grants.discard(key)
            return True
        if key in self.denials:
            raise self.denials.pop(key)
        return False

    def fail(self, ticket: Ticket, error: BaseException) -> None:
        """Answer the ticket with an error, or with what there is to say instead."""
        if isinstance(error, Dry):
            ended = self.stream(ticket.epoch).mark
            self.link.send(RanDry(ticket.dataset, ticket.epoch, ticket.seq, ended))
            return
        worker = self._name
        if isinstance(error, AllLost):
            left_out = error.losses.packed(worker)
            self.link.send(Nothing(ticket.dataset, ticket.epoch, ticket.seq, error.mark, left_out))
            return
        if isinstance(error, Failed):
            note = blame(ticket, error.position, self.start.auto_collation, self.start.iterable)
            error = located(error.cause, ticket, self.start.slot)
        elif self.start.iterable:
            note = f"in batch {ticket.seq}"
        else:
            note = f"in batch {ticket.seq} (indices {shortly(ticket.indices)})"
        self.link.send(Failure(ticket.dataset, ticket.epoch, ticket.seq, pack_fault(error, worker, note)))


def _unsharded(dataset: Any, num_workers: int) -> str:
    return (
        f"{type(dataset).__name__} has not asked which worker it is in: each of the {num_workers} workers reads all of "
        "it, and every sample comes that many times. Let it take its share where it begins to read, `for sample in "
        "aloader.shard_info().of(samples)`; or use num_workers=1. Where every worker is meant to read everything "
        "(samples made at random), asking for `torch.utils.data.get_worker_info().seed` ends this warning."
    )


def guarded(action: Callable[[], None]) -> BaseException | None:
    """Run user code that must not end the process: what it raised, `SystemExit` included."""
    try:
        action()
    except BaseException as error:
        return error
    return None
