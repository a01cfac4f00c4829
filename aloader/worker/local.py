"""`num_workers=0`: the same work in this process.

For an async dataset, on the user's own loop with full look-ahead: a `LocalCrew` stands in for worker processes and says
the same things to an epoch as they do, so order, window, memory and errors are decided in the same place. Collating
runs in one helper thread: on the loop with `seed=`, if it is the user's own, which may draw random numbers, and the
global generators are the program's meanwhile. The dataset's `async with` is entered by one task, which also leaves it.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any

from torch.utils.data import default_collate, default_convert

from aloader import options
from aloader.channel.blame import blame
from aloader.channel.marks import Resume
from aloader.channel.messages import Denied, Granted, Ticket
from aloader.channel.roles import Listener, Who
from aloader.channel.stacks import Stack, different
from aloader.channel.states import Generators
from aloader.channel.status import Doing
from aloader.errors import BatchTooLarge
from aloader.ranks import Ranks
from aloader.worker.bench import Clock
from aloader.worker.collation import estimate
from aloader.worker.concurrent import enter
from aloader.worker.dataclass_collation import collating
from aloader.worker.faulty import AllLost, Failed, Policy, located
from aloader.worker.fetch import Fetcher
from aloader.worker.generators import COLLATE, Seeding
from aloader.worker.marks import Marker, tell
from aloader.worker.reading import StreamFetcher
from aloader.worker.sharding import loader_ranks
from aloader.worker.standin import LocalWorker, Made
from aloader.worker.stream import Dry, Stream
from aloader.worker.tasks import calls, place_of, suspended


class LocalCrew:
    """See the top of this file. Made for a loader; works on one loop at a time."""

    def __init__(
        self,
        who: Who,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        *,
        seeded: bool = False,
        on_error: Callable[[Any], Any] | None = None,
    ) -> None:
        self.who = who
        self._policy = Policy(who.on_error, on_error)
        self._resume: Resume | None = None  # where the next epoch goes on
        self.workers = {0: LocalWorker(self, guesses=collate_fn is not default_collate)}
        self.when_gone: Callable[[], object] | None = None
        self._dataset = dataset
        self._marker = Marker(dataset)
        self._collate_fn = collating(collate_fn)
        self._collates_here = seeded and collate_fn not in (default_collate, default_convert)
        self._generators = Generators(shared=True)
        self._listeners: dict[int, tuple[Listener, Callable[[], None]]] = {}  # epochs under way, and what wakes each
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fetcher: Fetcher
        self._timed: Any = {"sample_timeout": who.sample_timeout, "where": place_of}
        self._reading: dict[int, StreamFetcher] = {}  # an iterable dataset is read anew in each epoch
        self._closing: set[asyncio.Task[None]] = set()
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._grants: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._holder: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None] | None = None
        self._leave: asyncio.Event | None = None
        self._thread = ThreadPoolExecutor(1, "aloader-collate")

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that the dataset was entered on."""
        return self._loop

    @property
    def _is_entered(self) -> bool:
        return self._entered is not None and self._entered.done()

    # -- as a crew -------------------------------------------------------------------------------------------------

    alive = 0
    ready = True
    unseated = False
    undisturbed = math.inf  # by a debugger: it would stop this very process

    def attach(self, watcher: Any, listener: Listener) -> None:
        """Work on the watcher's loop, and tell `listener` of its epoch; several may be under way."""
        self._listeners[listener.number] = listener, watcher.wake
        if self._loop is not watcher.loop:
            self._loop = watcher.loop
            self._fetcher = Fetcher(self._dataset, self.who.auto_collation, self.who.concurrency, **self._timed)
            self._reading = {}
            self._entered = watcher.loop.create_future()
            self._leave = asyncio.Event()
            self._holder = self._task(self._hold(self._entered, self._leave), "aloader dataset")

    def detach(self, listener: Listener | None = None) -> None:
        """This one listens no more; without a `listener`, nobody does."""
        if listener is None:
            self._listeners.clear()
        else:
            self._listeners.pop(listener.number, None)

    def begin_from(self, resume: Resume | None) -> None:
        """The next epoch goes on where another pass was left, if it says so."""
        self._resume = resume if self.who.iterable else None
        if resume is not None and not self.who.iterable:
            tell(self._dataset, resume.mark)

    def launch(self, slot: int, generation: int) -> None:
        """Never needed: the slot is always filled."""
        raise AssertionError("there is no process to launch")

    def read_all(self) -> None:
        """Nothing lies in a socket."""

    def flush(self) -> None:
        """Nothing waits to be written."""

    def epoch_over(self, epoch: int) -> None:
        """Nobody looks at this epoch any more."""
        if self._loop is None or self._loop.is_closed():
            return  # it has been closed in the middle of everything: nothing runs there, or can be cancelled
        for (number, _), task in list(self._tasks.items()):
            if number == epoch:
                task.cancel()
        self._end_reading(epoch)

    def end(self, grace: float = 0.0) -> None:
        """Cancel everything and let the dataset's `async with` be left, on its loop."""
        loop = self._loop
        self._thread.shutdown(wait=False, cancel_futures=True)
        if loop is None or loop.is_closed():
            return
        for task in self._tasks.values():
            task.cancel()
        if self._leave is not None:
            self._leave.set()

    def abandon(self) -> None:
        """The loader has been dropped, perhaps in the middle of anything: end in a later step of the loop."""
        loop = self._loop
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(self.end)
        else:
            self.end()

    async def aclose(self) -> None:
        """The same, and wait for it: a sample or an `__aexit__` that does not end holds nobody up for ever."""
        tasks, holder = list(self._tasks.values()), self._holder
        self.end()
        if holder is not None and self._loop is asyncio.get_running_loop():
            if tasks:
                await asyncio.wait(tasks, timeout=options.CLOSE_GRACE)
            if not self._is_entered:
                holder.cancel()  # nobody needs what is being opened
            _, late = await asyncio.wait([holder], timeout=2 * options.CLOSE_GRACE)
            if late:
                holder.cancel()  # as a worker would be killed
                await asyncio.wait([holder], timeout=options.CLOSE_GRACE)
            elif not holder.cancelled() and holder.exception() is not None:
                await holder
        self._loop = None

    async def _hold(self, entered: asyncio.Future[None], leave: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            try:
                await enter(self._dataset, stack)
            except BaseException as error:
                entered.set_exception(presentable(error, "while entering the dataset"))
                entered.exception()  # every ticket raises it: it is seen
                if not isinstance(error, Exception):
                    raise
                return
            entered.set_result(None)
            await leave.wait()
            for fetcher in list(self._reading.values()):
                await fetcher.aclose()

    # -- tickets ---------------------------------------------------------------------------------------------------

    def begin(self, ticket: Ticket) -> None:
        """Work on a ticket from now on."""
        if self.who.iterable and ticket.epoch not in self._reading:
            resume, self._resume = self._resume, None
            stream = Stream(self._dataset, self.who.drop_last, self._marker, self.who.rank, resume)
            self._reading[ticket.epoch] = StreamFetcher(stream, self.who.concurrency, **self._timed)
        key = (ticket.epoch, ticket.seq)
        task = self._tasks[key] = self._task(self._work(ticket), f"aloader batch {ticket.seq}")
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _task(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task in which the dataset is told the loader's ranks: it begins with the context of this moment."""
        assert self._loop is not None
        token = loader_ranks.set(Ranks(self.who.rank, self.who.world_size))
        try:
            return self._loop.create_task(coroutine, name=name)
        finally:
            loader_ranks.reset(token)

    def _end_reading(self, epoch: int) -> None:
        """Let an async generator leave what it is in."""
        fetcher = self._reading.pop(epoch, None)
        if fetcher is not None and self._loop is not None:
            task = self._task(fetcher.aclose(), "aloader end of reading")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def grant(self, message: Granted) -> None:
        """The ticket that asked may be collated."""
        future = self._grants.pop((message.epoch, message.seq), None)
        if future is not None and not future.done():
            future.set_result(None)

    def deny(self, message: Denied) -> None:
        """The ticket that asked takes more than there is."""
        future = self._grants.pop((message.epoch, message.seq), None)
        if future is not None and not future.done():
            future.set_exception(BatchTooLarge(message.reason))

    def stacks(self, epoch: int, seq: int) -> list[Stack]:
        """Where the user's code stands with a ticket: its tasks, the dataset's `async with`, the collating thread."""
        tasks = [task for task in (self._tasks.get((epoch, seq)), self._holder) if task is not None]
        frames = sys._current_frames()
        threads = [frames.get(thread.ident or 0) for thread in self._thread._threads]
        found = [stack for task in tasks for stack in suspended(task)]
        return different([*found, *(Stack(calls(frame)) for frame in threads if frame is not None)])

    async def _work(self, ticket: Ticket) -> None:
        worker = self.workers[0]
        try:
            batch, nbytes, seconds = await self._make(ticket)
        except BaseException as error:
            task = _current_task()
            if task is None:
                return  # its loop has been closed, and the collector takes it: nobody listens
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise  # our own; one that the user's code raised is an answer like any other
            listener = self._listener(ticket)
            if isinstance(error, Dry) and listener is not None:
                listener.on_dry(worker, ticket.seq, self._reading[ticket.epoch].mark)
            elif isinstance(error, AllLost) and listener is not None:
                listener.on_nothing(worker, ticket.seq, error.mark, error.losses.left_out())
            elif listener is not None:
                listener.on_failure(worker, ticket.seq, _with_note(ticket, error, self.who))
        else:
            listener = self._listener(ticket)
            if listener is not None:
                listener.on_batch(worker, ticket.seq, nbytes, batch, seconds)
        if listener is not None and listener.number in self._listeners:
            self._listeners[listener.number][1]()

    async def _make(self, ticket: Ticket) -> tuple[Made, int, tuple[float, float]]:
        assert self._entered is not None
        assert self._loop is not None
        if not self._is_entered:
            await asyncio.wait([self._entered])
        self._entered.result()
        page = self.workers[0]
        clock = Clock(time.perf_counter())
        fetcher: Any = self._reading[ticket.epoch] if self.who.iterable else self._fetcher
        kind = self.who.auto_collation, self.who.iterable
        seeding = Seeding.of(self._generators, ticket, *kind)
        losses = self._policy.losses(ticket, *kind, seeding)
        samples = await fetcher.fetch(
            ticket.indices,
            lambda position: page.write(Doing.FETCHING, ticket.epoch, ticket.seq, position),
            seeding,
            clock.marked,
            losses,
        )
        if losses is not None:
            samples = losses.settled(samples, clock.mark)
        nbytes = estimate(samples) if self.who.auto_collation else 0
        if nbytes > ticket.allowance:
            await self._memory(ticket, nbytes)
        clock.fetched = time.perf_counter()
        if seeding is not None and self._collates_here:
            batch, error = self._collated(samples, seeding.all(COLLATE))
        else:
            own = nullcontext() if seeding is None else seeding.without_generators().all(COLLATE)
            collated = partial(copy_context().run, self._collated, samples, own)  # the ranks are known there, too
            batch, error = await self._loop.run_in_executor(self._thread, collated)
        if error is not None:
            raise error
        made = Made(batch, clock.mark, () if losses is None else losses.left_out())
        return made, nbytes, (clock.fetched - clock.began, time.perf_counter() - clock.fetched)

    def _collated(self, samples: Any, own: AbstractContextManager[Any]) -> tuple[Any, BaseException | None]:
        """Not raised there: a future cannot hold `StopIteration`, and whoever waits for it would wait for ever."""
        try:
            with own:
                return self._collate_fn(samples), None
        except BaseException as error:
            return None, error

    async def _memory(self, ticket: Ticket, nbytes: int) -> None:
        assert self._loop is not None
        future = self._grants[ticket.epoch, ticket.seq] = self._loop.create_future()
        listener = self._listener(ticket)
        if listener is not None:
            listener.on_need(self.workers[0], ticket.seq, nbytes)
        await future

    def _listener(self, ticket: Ticket) -> Listener | None:
        """The ticket's epoch, if it is still under way."""
        listener, _ = self._listeners.get(ticket.epoch, (None, None))
        return listener


def _current_task() -> asyncio.Task[Any] | None:
    """None where no loop runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _with_note(ticket: Ticket, error: BaseException, who: Who) -> BaseException:
    """The user's own exception, with a note that names the sample; what would end the epoch is wrapped."""
    note = f"in batch {ticket.seq}"
    if isinstance(error, Failed):
        note, error = blame(ticket, error.position, who.auto_collation, who.iterable), located(error.cause, ticket, -1)
    return presentable(error, note)


def presentable(error: BaseException, note: str) -> BaseException:
    """An error of user code as it may be raised from an iterator: `StopIteration` would end the epoch in silence, and
    `CancelledError` the task that iterates."""
    if isinstance(error, StopIteration | StopAsyncIteration | asyncio.CancelledError):
        wrapped = RuntimeError(f"the dataset raised {type(error).__name__} {note}")
        wrapped.__cause__ = error
        return wrapped
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error
