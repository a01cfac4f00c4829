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
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, NoReturn, Protocol, Self

from aloader.channel.blame import blame
from aloader.channel.marks import Resume
from aloader.channel.messages import Ticket
from aloader.channel.record import Record
from aloader.errors import LoaderBusy, LoaderClosed
from aloader.worker.emulation import Place, Team, stepped
from aloader.worker.fetch import Failed, _awaited, blamed, close_all, fetch_inline, has_awaitables, seeded
from aloader.worker.generators import AWAITED, COLLATE, TOGETHER_AWAITED, Seeding, driven, kept, unseeded
from aloader.worker.kinds import is_async, purpose_of_awaited, reads_async
from aloader.worker.local import presentable
from aloader.worker.states import Generators
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
        if self.plan.owner.closed:
            raise LoaderClosed("the loader has been closed; make a new one")
        if not self.plan.ahead and not self._tickets:
            self._draw()
        if not self._tickets or not self._turns:
            await self._end()
        slot = self._turns[0]
        ticket = Ticket(0, 0, self._seq, self._tickets[0], 0, self.plan.key)
        try:
            batch = await self._made(slot, ticket)
        except Dry:
            self.record.dry(self.team.slots.index(slot), self._streams[id(slot)].mark)
            self._turns.popleft()
            return await self.make()
        except Exception:
            self.record.failed(self._seq)
            self._done()
            raise
        mark = self._streams[id(slot)].mark if self.plan.iterable else slot.marker.take()
        self.record.gave(self._seq, self.team.slots.index(slot), mark)
        self._done()
        return batch if self.plan.finish is None else self.plan.finish(batch)

    async def _end(self) -> NoReturn:
        """The sampler's error once, and from then on the end."""
        if not self.plan.kept:
            await self.team.aclose()
        self.record.ended = True
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
        except Dry:
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
        if self.plan.iterable:
            samples = await self._read(slot, ticket, seeding)
        else:
            with self._inside(slot, seeding):
                samples = fetch_inline(job.dataset, ticket.indices, batched, [0], seeding)
        if has_awaitables(samples):
            purpose = AWAITED if self.plan.iterable else purpose_of_awaited(job.dataset, batched)
            waiting = _await_in_turn(samples, batched, seeding, purpose)
            samples = await self.team.run(driven(self._inside(slot, seeding), waiting))
        with self._inside(slot, seeding):
            if seeding is not None:
                seeding.all(COLLATE).begin()
            return job.collate_fn(samples)

    def _inside(self, slot: Place, seeding: Seeding | None) -> _Inside:
        return _Inside(slot, self._generators if seeding is not None else None)

    async def _read(self, slot: Place, ticket: Ticket, seeding: Seeding | None) -> Any:
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
            taking: Any = stream.take_async(count, lambda position: None, seeding)  # type: ignore[arg-type]
            return await self.team.run(driven(inside, taking))
        with inside:
            return stream.take(count, [0], seeding)  # type: ignore[arg-type]


class _Inside:
    """A worker's place, whose generators may be seeded for samples meanwhile."""

    def __init__(self, slot: Place, generators: Generators | None) -> None:
        self._slot = slot
        self._generators = generators
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._stack.enter_context(self._slot)
        self._stack.enter_context(kept(self._generators))
        if self._generators is None:
            unseeded()

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


async def _await_in_turn(fetched: Any, batched: bool, seeding: Seeding | None, purpose: str) -> Any:
    """What the dataset has returned, awaited: one sample after the other."""
    position = -1 if batched else 0

    async def awaited(value: Any) -> Any:
        if seeding is None:
            return await _awaited(value)
        return await driven(seeding.own(seeding.name(max(0, position)), purpose), _awaited(value))

    try:
        if not batched:
            return await awaited(fetched)
        if inspect.isawaitable(fetched):
            fetched = await seeded(fetched, None if seeding is None else seeding.all(TOGETHER_AWAITED))
        if type(fetched) not in (list, tuple):
            return await awaited(fetched)
        samples: list[Any] = []
        for sample in fetched:
            position = len(samples)
            samples.append(await awaited(sample) if has_awaitables(sample) else sample)
        return type(fetched)(samples)
    except BaseException as error:
        close_all(fetched)
        raise blamed(position, error) from None


class Batches:
    """The iterator of plain `for`."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

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
