"""`ALOADER_DEBUG=1`: everything in the caller's own step, so that a debugger works; with the results of workers.

Tickets are drawn as far ahead as with workers, and fall to their places (`emulation`) in turn. There are no deadlines
and no restarts, and nothing is fetched ahead. Async datasets are awaited one sample at a time.

What is done for a ticket is all in `Epoch._answer`, with nothing but the ticket and its place. An iterable dataset is
read by each place from the front, until it has no more: then its turns are the others'.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn, Protocol, Self

from aloader.channel.blame import blame
from aloader.channel.marks import Resume
from aloader.channel.messages import LeftOut, Ticket
from aloader.channel.record import Record
from aloader.channel.states import Generators
from aloader.channel.tolerance import Place as Counted
from aloader.channel.tolerance import Tolerance
from aloader.device.stage import Way, in_host, straight
from aloader.errors import LoaderBusy, LoaderClosed
from aloader.worker.awaitables import has_awaitables
from aloader.worker.each import fetch_each
from aloader.worker.emulation import Inside, Place, Slot, Team, stepped
from aloader.worker.faulty import AllLost, Failed, Losses, Policy
from aloader.worker.fetch import fetch_inline
from aloader.worker.generators import AWAITED, COLLATE, Seeding, driven
from aloader.worker.in_turn import await_in_turn
from aloader.worker.kinds import is_async, purpose_of_awaited, reads_async
from aloader.worker.local import presentable
from aloader.worker.stream import Dry, Stream

IS_ON: Final = (
    "ALOADER_DEBUG is set: batches are made one after the other in the program's own process and thread, without "
    "workers, look-ahead or timeouts. Unset it for speed."
)


def is_on() -> bool:
    """Whether the environment asks for it."""
    return os.environ.get("ALOADER_DEBUG", "0") not in ("", "0")


class Source(Protocol):
    """What tickets are drawn from."""

    def prepare(self) -> None: ...
    def draw(self) -> Any: ...


class Plan(NamedTuple):
    """What an epoch goes through. `ahead` tickets are drawn at its beginning; `kept`: its team goes on after it."""

    source: Source
    ahead: int
    batched: bool
    finish: Callable[[Any], Any] | None
    owner: Owner
    kept: bool
    iterable: bool = False
    drop_last: bool = False
    rank: int = 0
    key: int | None = None
    number: int = 0
    on_error: str = "raise"
    awaits: bool = False  # with workers, somebody would await what the function for failed samples returns
    tolerance: Tolerance | None = None
    way: Way | None = None


class Owner(Protocol):
    """The loader."""

    @property
    def closed(self) -> bool: ...
    @property
    def _index_sampler(self) -> Any: ...


class Epoch:
    """One pass over the data, ticket by ticket: slots in turn, as many tickets drawn ahead as with workers."""

    def __init__(
        self, team: Team, plan: Plan, record: Record, first_slot: int = 0, resumes: Sequence[Resume] = ()
    ) -> None:
        self.team = team
        self.plan = plan
        self.record = record
        self._seq = record.first
        self._tickets: deque[Any] = deque()
        self._turns = deque(team.slots)  # of those that have something left
        self._turns.rotate(-first_slot)
        self._resumes = {id(slot): resume for slot, resume in zip(team.slots, resumes, strict=False)}
        if not plan.iterable:
            for slot in team.slots if resumes else ():
                slot.tell(self._resumes[id(slot)].mark)
        self._streams: dict[int, Stream] = {}  # of an iterable dataset, by place
        self._over: BaseException | None = None  # what the sampler ended with
        self._generators = Generators(shared=True)
        self._left_out: tuple[LeftOut, ...] = ()  # of the batch that was made last
        self._ready: list[Any] = []  # made and not given: a batch, if its user makes warnings errors
        self._omitted: list[tuple[int, int, bytes | None]] = []  # since the user had a batch
        self.taken: tuple[int, Any, int | None, int, tuple[Any, ...]] | None = None  # as `Run.taken`
        plan.source.prepare()
        for _ in range(plan.ahead):
            self._draw()

    def _draw(self) -> None:
        if self._over is None:
            try:
                self._tickets.append(self.plan.source.draw())
            except BaseException as error:
                self._over = error

    async def make(self) -> Any:
        """The next batch. What fails is raised in its place; `StopAsyncIteration` at the end.

        What was cancelled or interrupted is made again next time.
        """
        if not self._ready:
            self._ready.append(await self._next())
        if self.plan.tolerance is not None:
            self.plan.tolerance.warn()
        return self._ready.pop()

    async def _next(self) -> Any:
        while True:
            if self.plan.owner.closed:
                raise LoaderClosed("the loader has been closed; make a new one")
            if not self.plan.ahead and not self._tickets:
                self._draw()
            if not self._tickets or not self._turns:
                await self._end()
            slot, number = self._turns[0], self.team.slots.index(self._turns[0])
            ticket = Ticket(0, 0, self._seq, self._tickets[0], 0, self.plan.key)
            try:
                batch = await self._made(slot, ticket)
                self._count(slot, number, ticket)
                if (way := self.plan.way) is not None:
                    batch = straight(way, in_host(way, batch), self.record.number_of(self._seq))
            except Dry:
                self.record.dry(number, self._streams[id(slot)].mark)
                self._turns.popleft()
                continue
            except AllLost as lost:
                self._omit(slot, number, ticket, lost)
                continue
            except Exception:
                self.record.failed(self._seq)
                self._done()
                raise
            self._pass()
            self.record.gave(self._seq, number, self._mark(slot))
            self._done()
            return batch if self.plan.finish is None else self.plan.finish(batch)

    def _mark(self, slot: Place) -> bytes | None:
        return self._streams[id(slot)].mark if self.plan.iterable else slot.marker.take()

    def _count(self, slot: Place, number: int, ticket: Ticket) -> None:
        """Before a batch is given: count what has failed in it. Raises `SampleError` where it is not given, since these
        are too many."""
        plan, worker = self.plan, number if isinstance(slot, Slot) else None
        indices = None if plan.iterable else ticket.indices
        place = Counted(self.record.number_of(ticket.seq), indices, plan.batched, plan.iterable, worker)
        self.taken = place.seq, indices, worker, plan.number, place.names(self._left_out)
        if plan.tolerance is not None:
            error = plan.tolerance.count(place, self._left_out)
            if error is not None:
                raise error

    def _omit(self, slot: Place, number: int, ticket: Ticket, lost: AllLost) -> None:
        """A ticket has come to nothing."""
        self._left_out = lost.losses.left_out()
        try:
            self._count(slot, number, ticket)
            self._omitted.append((ticket.seq, number, self._mark(slot)))
        except Exception:
            self.record.failed(ticket.seq)
            raise
        finally:
            self._done()

    def _pass(self) -> None:
        """The user has something behind what was omitted, or knows that nothing is left."""
        for seq, number, mark in self._omitted:
            self.record.gave(seq, number, mark)
        self._omitted.clear()

    async def _end(self) -> NoReturn:
        """The sampler's error once, and from then on the end."""
        if not self.plan.kept:
            await self.team.aclose()
        self._pass()
        self.record.ended = True
        if self.plan.tolerance is not None:
            self.plan.tolerance.end()
            self.plan.tolerance.warn()
        error, self._over = self._over, StopIteration()
        raise StopAsyncIteration if error is None or isinstance(error, StopIteration) else error

    def _done(self) -> None:
        self._tickets.popleft()
        self._turns.rotate(-1)
        self._seq += 1
        if self.plan.ahead:
            self._draw()

    async def _made(self, slot: Place, ticket: Ticket) -> Any:
        error: BaseException | None = None
        try:
            return await self._answer(slot, ticket)
        except (Dry, AllLost):
            raise
        except Failed as failed:
            error = failed.cause
            if isinstance(error, Exception | asyncio.CancelledError):
                note = blame(ticket, failed.position, self.plan.batched, self.plan.iterable)
                error = presentable(error, note)
        except Exception as raised:
            error = presentable(raised, f"in batch {ticket.seq}")
        try:
            raise error  # not in the `except`, which would replace what the user's error was raised during
        finally:
            del error  # its traceback holds this frame

    async def _answer(self, slot: Place, ticket: Ticket) -> Any:
        if slot.broken is not None:
            raise slot.broken
        job, batched = slot.job, self.plan.batched
        if is_async(job.dataset):
            await self.team.enter(slot)
        seeding = Seeding.of(self._generators, ticket, batched, self.plan.iterable)
        number = self.team.slots.index(slot) if isinstance(slot, Slot) else -1
        policy = Policy(self.plan.on_error, job.on_error, number, self.plan.awaits)
        losses = policy.losses(ticket, batched, self.plan.iterable, seeding)
        if self.plan.iterable:
            samples = await self._read(slot, ticket, seeding, losses)
        else:
            with self._inside(slot, seeding):
                samples = fetch_inline(job.dataset, ticket.indices, batched, [0], seeding, losses)
        if has_awaitables(samples):
            samples = await self._await(slot, samples, seeding, losses)
        if losses is not None:
            samples = losses.settled(samples)
        self._left_out = () if losses is None else losses.left_out()
        with self._inside(slot, seeding):
            if seeding is not None:
                seeding.all(COLLATE).begin()
            return job.collate_fn(samples)

    async def _await(self, slot: Place, samples: Any, seeding: Seeding | None, losses: Losses | None) -> Any:
        """What the dataset has returned, awaited. If one awaitable is for all samples, and fails: each by itself."""
        dataset, batched = slot.job.dataset, self.plan.batched
        purpose = AWAITED if self.plan.iterable else purpose_of_awaited(dataset, batched)
        together = batched and inspect.isawaitable(samples)
        try:
            waiting = await_in_turn(samples, batched, seeding, purpose, None if together else losses)
            return await self.team.run(driven(self._inside(slot, seeding), waiting))
        except Failed as failed:
            if losses is None or not together or not isinstance(failed.cause, Exception):
                raise
        with self._inside(slot, seeding):
            samples = fetch_each(dataset, losses, [0], seeding)
        waiting = await_in_turn(samples, batched, seeding, AWAITED, losses)
        return await self.team.run(driven(self._inside(slot, seeding), waiting))

    def _inside(self, slot: Place, seeding: Seeding | None) -> Inside:
        return Inside(slot, self._generators if seeding is not None else None)

    async def _read(self, slot: Place, ticket: Ticket, seeding: Seeding | None, losses: Losses | None) -> Any:
        number = self.team.slots.index(slot)
        self.record.assigned(ticket.seq, number)
        count = ticket.indices if self.plan.batched else None
        stream = self._streams.get(id(slot))
        if stream is None:
            shard, resume = self.plan.rank * len(self.team.slots) + number, self._resumes.get(id(slot))
            stream = Stream(slot.job.dataset, self.plan.drop_last, slot.marker, shard, resume)
            self._streams[id(slot)] = stream
        inside = self._inside(slot, seeding)
        if reads_async(slot.job.dataset):
            taking: Any = stream.take_async(count, lambda position: None, seeding, losses)  # type: ignore[arg-type]
            return await self.team.run(driven(inside, taking))
        with inside:
            return stream.take(count, [0], seeding, losses)  # type: ignore[arg-type]


class Batches:
    """The iterator of plain `for`."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    @property
    def taken(self) -> Any:
        """Of the batch that was given last."""
        return self._epoch.taken

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return stepped(self._epoch.make())
        except StopAsyncIteration:
            raise StopIteration from None

    def __len__(self) -> int:
        return len(self._epoch.plan.owner._index_sampler)


class AsyncBatches:
    """The iterator of `async for`, on the running loop."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._waiting = False

    @property
    def taken(self) -> Any:
        """Of the batch that was given last."""
        return self._epoch.taken

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._waiting:
            raise LoaderBusy("two tasks wait in one iterator, and a batch goes to one of them only: give each its own")
        self._waiting = True
        try:
            return await self._epoch.make()
        finally:
            self._waiting = False

    async def aclose(self) -> None:
        """Leave the datasets' `async with`. Idempotent."""
        if not self._epoch.plan.kept:
            await self._epoch.team.aclose()
