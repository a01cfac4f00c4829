"""The server for async datasets (and for ordinary ones in threads, if asked): many tickets at once, on a loop.

One task per ticket, all in one group; samples of all of them share the worker's concurrency, the earliest first.
Collating is one synchronous step. The dataset's `async with` is entered once, before the first ticket, and left at the
end, on this loop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from aloader.channel.messages import Ticket
from aloader.channel.status import Doing
from aloader.errors import BatchTooLarge
from aloader.storage.permits import PERMITS, Permits
from aloader.worker.bench import Bench, Clock
from aloader.worker.faulty import Failed, Losses
from aloader.worker.fetch import Fetcher, Note
from aloader.worker.generators import Seeding
from aloader.worker.inline import TurnsAsync
from aloader.worker.kinds import parts
from aloader.worker.reading import StreamFetcher
from aloader.worker.stepwise import Stepwise
from aloader.worker.tasks import place_of

#: Threads that may be stuck in a sample for ever while others take their places. (One more is begun only where none is
#: idle, and no more samples are under way than ever.)
_LOST_THREADS: Final = 1000


async def enter(dataset: Any, stack: AsyncExitStack) -> None:
    """Enter the `async with` of a dataset and of those inside it, innermost first."""
    for part in reversed(list(parts(dataset))):
        if hasattr(type(part), "__aenter__"):
            await stack.enter_async_context(part)


async def serve(bench: Bench, begun: TurnsAsync | None = None) -> None:
    """Work until told to stop; `begun` is a ticket that the inline server could not finish."""
    PERMITS.set(Permits(bench.start.permits))  # for stores that the dataset opens here
    async with AsyncExitStack() as stack:
        threads: Executor | None = None
        if bench.start.threads:
            most = bench.start.concurrency + (_LOST_THREADS if bench.start.sample_timeout else 0)
            threads = stack.enter_context(ThreadPoolExecutor(most, "aloader-fetch"))
        if bench.broken is None:
            try:
                await enter(bench.job.dataset, stack)
            except asyncio.CancelledError as error:
                # A ticket that raised this one would be taken for a cancelled one, and never answered.
                bench.broken = RuntimeError("the dataset raised CancelledError while it was entered")
                bench.broken.__cause__ = error
            except BaseException as error:
                bench.broken = error
        await _Server(bench, threads).run(begun)


class _Server:
    def __init__(self, bench: Bench, threads: Executor | None) -> None:
        self._bench = bench
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._grants: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._writing = False
        dataset = bench.job.dataset if bench.broken is None else None
        start = bench.start
        bench.page.times_samples()
        # Whoever replaces a lost worker notes at which sample it is at each moment.
        self._exact = start.generation > 0 and threads is None
        self._timed: Any = {"sample_timeout": start.sample_timeout, "where": place_of}
        wrap = partial(Stepwise, page=bench.page) if self._exact else None
        how = {"threads": threads, "may_block": True, "wrap": wrap, **self._timed}
        self._each = Fetcher(dataset, start.auto_collation, start.concurrency, **how)
        self._fetcher: Fetcher | StreamFetcher = self._each
        # What workers have died at is fetched one by one, in threads too: so that the next death tells which it was.
        self._alone = Fetcher(dataset, start.auto_collation, 1, threads, may_block=True) if threads else None
        self._reading = -1  # the epoch whose share of an iterable dataset is being read

    async def run(self, begun: TurnsAsync | None) -> None:
        link = self._bench.link
        self._loop.add_reader(link.fileno(), self._on_readable)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                if begun is not None:
                    self._reads(begun.ticket)
                    start = self._bench.start
                    rest = _Rest(begun.fetched, start.auto_collation, start.concurrency, self._each, self._timed)
                    self._begin(begun.ticket, rest, begun)
                self._on_readable()
                self._flush()
                await self._stopped.wait()
                for task in self._tasks.values():
                    if not task.cancelling():  # one that is leaving already, with its epoch, is not to be disturbed
                        task.cancel()
                self._end_reading()
        finally:
            self._loop.remove_reader(link.fileno())
            self._loop.remove_writer(link.fileno())

    # -- the link --------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        bench = self._bench
        over = bench.epoch_over
        bench.receive()
        while bench.tickets:
            ticket = bench.tickets.popleft()
            self._reads(ticket)
            self._begin(ticket, self._fetcher)
        for key in bench.grants & self._grants.keys():
            bench.grants.discard(key)
            self._wake(key)
        for key in bench.denials.keys() & self._grants.keys():
            self._wake(key, bench.denials.pop(key))
        if bench.epoch_over != over:
            if self._reading <= bench.epoch_over:
                self._end_reading()
            for (epoch, _), task in list(self._tasks.items()):
                if epoch <= bench.epoch_over:
                    task.cancel()
        if bench.stopped:
            self._stopped.set()
        self._flush()

    def _flush(self) -> None:
        """Write what fits now, and the rest when there is room."""
        link = self._bench.link
        pending = not link.flush() and not link.ended
        if pending and not self._writing:
            self._loop.add_writer(link.fileno(), self._flush)
        elif not pending and self._writing:
            self._loop.remove_writer(link.fileno())
        self._writing = pending

    def _wake(self, key: tuple[int, int], denied: BatchTooLarge | None = None) -> None:
        future = self._grants.pop(key)
        if future.done():
            return
        if denied is None:
            future.set_result(None)
        else:
            future.set_exception(denied)

    # -- tickets ---------------------------------------------------------------------------------------------------

    def _reads(self, ticket: Ticket) -> None:
        """An iterable dataset is read anew in each epoch."""
        bench = self._bench
        if bench.start.iterable and ticket.epoch != self._reading and bench.broken is None:
            self._end_reading()
            self._reading = ticket.epoch
            self._fetcher = StreamFetcher(bench.stream(ticket.epoch), bench.start.concurrency, **self._timed)

    def _end_reading(self) -> None:
        """Nobody wants the rest: an async generator leaves what it is in, once its tickets have been cancelled."""
        if isinstance(self._fetcher, StreamFetcher):
            self._group.create_task(self._fetcher.aclose())

    def _begin(self, ticket: Ticket, fetcher: Any, begun: TurnsAsync | None = None) -> None:
        key = (ticket.epoch, ticket.seq)
        task = self._group.create_task(self._work(ticket, fetcher, begun))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _work(self, ticket: Ticket, fetcher: Any, begun: TurnsAsync | None) -> None:
        """Answer one ticket. Never raises but when it is cancelled: then nobody waits for the answer."""
        try:
            await self._answer(ticket, fetcher, begun)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the server's doing; one that the user's code raised is an answer like any other
            self._bench.fail(ticket, error)
        self._flush()
        if not self._tasks:
            self._bench.page.write(Doing.IDLE)

    async def _answer(self, ticket: Ticket, fetcher: Any, begun: TurnsAsync | None) -> None:
        bench = self._bench
        if bench.broken is not None:
            raise bench.broken
        bench.obey()
        clock = Clock(time.perf_counter())
        alone = self._alone if ticket.alone and begun is None else None
        doing = Doing.FETCHING if self._exact or alone else Doing.FETCHING_SEVERAL

        def note(position: int) -> None:
            bench.page.write(doing, ticket.epoch, ticket.seq, position)

        seeding = bench.seeding(ticket) if begun is None else begun.seeding
        fetching = seeding.without_generators() if seeding is not None and bench.start.threads else seeding
        losses = bench.losses(ticket, fetching) if begun is None else begun.losses
        samples = await (alone or fetcher).fetch(ticket.indices, note, fetching, clock.marked, losses)
        if losses is not None:
            samples = losses.settled(samples, clock.mark)
        clock.fetched = time.perf_counter()
        need = bench.need_before(samples)
        if need > ticket.allowance:
            await self._memory(ticket, need)
        collated = bench.collate(ticket, samples, need, seeding)
        del samples
        try:
            if collated.missing + need > max(ticket.allowance, need):
                await self._memory(ticket, collated.missing + need)
            bench.send(ticket, collated, clock, losses)
        finally:
            bench.drop(collated)
        if self._exact:
            bench.page.write(Doing.AWAITING, ticket.epoch, ticket.seq)

    async def _memory(self, ticket: Ticket, nbytes: int) -> None:
        key = (ticket.epoch, ticket.seq)
        future = self._grants[key] = self._loop.create_future()
        self._bench.ask(ticket, nbytes)
        self._flush()
        try:
            await future
        finally:
            self._grants.pop(key, None)


class _Rest:
    """What the inline server had fetched, as a dataset: its awaitables are awaited like an async dataset's."""

    def __init__(self, fetched: Any, batched: bool, concurrency: int, each: Fetcher, timed: dict[str, Any]) -> None:
        self._fetched = fetched
        self._batched = batched
        self._fetcher = Fetcher(self, True, concurrency, **timed)
        self._each = each

    def __getitems__(self, indices: Any) -> Any:
        return self._fetched

    async def fetch(
        self,
        indices: Any,
        note: Note,
        seeding: Seeding | None,
        marked: Callable[[bytes | None], None],
        losses: Losses | None = None,
    ) -> Any:
        """As a fetcher. (What the dataset says of itself was noted when the inline server had it.)"""
        together = self._batched and (losses is None or inspect.isawaitable(self._fetched))
        if not together:
            return await self._fetcher.awaited(self._fetched, self._batched, note, seeding, losses)
        try:
            return await self._fetcher.fetch(indices, note, seeding)
        except Failed as failed:
            if losses is None or not isinstance(failed.cause, Exception):
                raise
            return await self._each.each(losses, note, seeding)


__all__ = ["enter", "serve"]
