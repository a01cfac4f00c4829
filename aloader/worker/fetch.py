"""Samples out of a dataset: inline for an ordinary one, many at once for an async one.

Whether a dataset is async is in the end decided by what comes back: an awaitable, also inside a list or tuple (torch's
`Subset` without `__getitems__` below it returns a list of coroutines). `is_async` only says what can be seen before.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from threading import get_ident
from typing import Any, NoReturn, Protocol
from weakref import WeakKeyDictionary

from aloader.worker import at_hand
from aloader.worker.awaitables import awaited_within, close_all, has_awaitables
from aloader.worker.deadlines import Deadlines
from aloader.worker.each import fetch_carefully
from aloader.worker.faulty import Failed, Losses, blamed
from aloader.worker.flight import Begin, Cancelled, Flight, Wrap
from aloader.worker.generators import AWAITED, TOGETHER, TOGETHER_AWAITED, Own, Seeding, driven
from aloader.worker.kinds import draws_random_numbers, fetches_one, fetches_together, is_coroutine_function


class Note(Protocol):
    """Told of each sample before it is fetched: its position in the ticket."""

    def __call__(self, position: int, /) -> None: ...


class Progress(Protocol):
    """One number that can be read by whoever shares its memory."""

    def __getitem__(self, at: int, /) -> int: ...
    def __setitem__(self, at: int, position: int, /) -> None: ...


def fetch_inline(
    dataset: Any,
    indices: Any,
    batched: bool,
    progress: Progress,
    seeding: Seeding | None = None,
    losses: Losses | None = None,
) -> Any:
    """What torch's fetcher does: the samples of a batch, or the one sample of an unbatched ticket.

    The position of the sample at work is kept in `progress[0]`, -1 where one call fetches them all. Raises `Failed`.
    The result may hold awaitables. With a `seeding`, the global generators are seeded for each; with `losses`, what
    stands in the place of those that failed is among them.
    """
    if losses is not None:
        return fetch_carefully(dataset, losses, progress, seeding)
    progress[0] = -1
    try:
        if not batched:
            progress[0] = 0
            if seeding is not None:
                seeding.begin(indices)
            return dataset[indices]
        if fetches_together(dataset, seeding is not None):
            if seeding is not None:
                seeding.all(TOGETHER).begin()
            return dataset.__getitems__(indices)
        samples = []
        for position, index in enumerate(indices if seeding is None else seeding.each(indices)):
            progress[0] = position
            samples.append(dataset[index])
        return samples
    except BaseException as error:
        raise Failed(progress[0], error) from None


class Fetcher:
    """Fetches tickets of an async dataset, or of an ordinary one in threads, on the running loop.

    At most `concurrency` samples are in flight at once over all tickets, the earliest asked for first.
    """

    def __init__(
        self,
        dataset: Any,
        batched: bool,
        concurrency: int,
        threads: Executor | None = None,
        *,
        may_block: bool = False,
        wrap: Wrap | None = None,
        sample_timeout: float = 0.0,
        where: Callable[[asyncio.Task[Any]], str] = lambda task: "",
    ) -> None:
        """`may_block`: the loop is a worker's own, and may stand still while a sample that is at hand is copied. `wrap`
        is put around each sample's coroutine, if it is given. `where` says where a sample stands that takes longer than
        `sample_timeout` seconds (0: it may)."""
        self._dataset = dataset
        self._batched = batched
        self._take = at_hand.taker(dataset) if may_block else None
        self._flight = Flight(concurrency, wrap)
        self.deadlines = Deadlines(sample_timeout, where, self._give_up) if sample_timeout else None
        self._sample: Callable[..., Any] = self._untimed if self.deadlines is None else self._timed
        self._careful_of: WeakKeyDictionary[asyncio.Task[Any], Losses] = WeakKeyDictionary()  # with deadlines
        self._threads = threads
        self._coroutines = is_coroutine_function(dataset)
        self._draws = draws_random_numbers(dataset)

    async def fetch(
        self,
        indices: Any,
        note: Note,
        seeding: Seeding | None = None,
        marked: Callable[[bytes | None], None] | None = None,
        losses: Losses | None = None,
    ) -> Any:
        """The samples of a ticket (the one sample, if unbatched), all awaited. Raises `Failed`."""
        if seeding is not None and not self._draws:
            seeding = seeding.without_generators()
        if losses is not None:
            return await self._carefully(losses, note, seeding)
        if not self._batched:
            (sample,) = await self._all([partial(self._sample, 0, indices, note, seeding)])
            return sample
        if fetches_together(self._dataset, seeding is not None):
            return await self._many(indices, note, seeding)
        if self._take is not None:
            begin = partial(self._sample, note=note, seeding=seeding)
            return await self._with_what_is_at_hand(at_hand.Taken(list(indices)), note, begin)
        return await self._all([partial(self._sample, i, index, note, seeding) for i, index in enumerate(indices)])

    async def _carefully(self, losses: Losses, note: Note, seeding: Seeding | None) -> Any:
        """The same, with what stands in the place of those that failed."""
        together = losses.batched and fetches_together(self._dataset, seeding is not None)
        if not together or losses.apart:
            return await self.each(losses, note, seeding)
        try:
            (fetched,) = await self._all([partial(self._together, losses.indices, note, seeding)])
        except Failed as failed:
            if not isinstance(failed.cause, Exception):
                raise
            return await self.each(losses, note, seeding)
        return await self.awaited(fetched, True, note, seeding, losses)

    async def each(self, losses: Losses, note: Note, seeding: Seeding | None) -> Any:
        """The same, each sample by itself; if it must be, alone."""
        alone = fetches_one(self._dataset) or not losses.batched
        begin = partial(self._sample if alone else self._only, note=note, seeding=seeding)
        careful = partial(self._careful, begin=begin, losses=losses)
        if self._take is not None and losses.batched and not losses.apart:
            taken = at_hand.Taken(list(losses.indices), errors=False)
            return await self._with_what_is_at_hand(taken, note, careful)
        begins: list[Begin] = [partial(careful, at, index) for at, index in enumerate(losses.indices)]
        if losses.alone:
            samples = [sample for one in begins for sample in await self._all([one])]
        else:
            samples = await self._all(begins)
        return samples if losses.batched else samples[0]

    async def _careful(self, position: int, index: Any, begin: Begin, losses: Losses) -> Any:
        task = self._take_care(losses)
        try:
            losses.check(position)
            return await begin(position, index)
        except Failed as failed:
            return await self._instead(task, failed, losses)

    def _take_care(self, losses: Losses | None) -> asyncio.Task[Any] | None:
        """Remember whose sample this task is for, in case that it has to be given up."""
        if losses is None or self.deadlines is None:
            return None
        task = asyncio.current_task()
        assert task is not None
        self._careful_of[task] = losses
        return task

    async def _instead(self, task: asyncio.Task[Any] | None, failed: Failed, losses: Losses) -> Any:
        """What stands in the place of a sample that failed: the user's function has the time of one, too."""
        if task is not None and self._careful_of.pop(task, None) is None:
            raise failed  # it was given up long ago
        call = partial(losses.fell_async, failed.position, failed.cause, self._call)
        if self.deadlines is None:
            return await call()
        index = None if losses.iterable else losses.index(failed.position)
        try:
            return await self.deadlines.within(failed.position, index, call)
        except BaseException as error:
            raise blamed(failed.position, error) from None

    async def _with_what_is_at_hand(self, taken: at_hand.Taken, note: Note, begin: Begin) -> Any:
        assert self._take is not None
        try:
            await taken.take(self._take, note)
        except BaseException as error:
            raise blamed(taken.position, error) from None
        if missing := taken.missing:
            rest: list[Begin] = [partial(begin, at, taken.indices[at]) for at in missing]
            for place, sample in zip(missing, await self._all(rest), strict=True):
                taken.samples[place] = sample
        return taken.samples

    def _give_up(self, task: asyncio.Task[Any], position: int, error: Exception) -> None:
        failed, losses = Failed(position, error), self._careful_of.pop(task, None)
        instead: Begin = partial(_raise, failed) if losses is None else partial(self._instead, None, failed, losses)
        self._flight.give_up(task, instead)

    async def _all(self, begins: list[Begin]) -> list[Any]:
        try:
            return await self._flight.all(begins)
        except Cancelled as error:  # by the user's code, since it was not us: otherwise nobody would answer the ticket
            cause = asyncio.CancelledError("the sample's own task was cancelled")
            raise Failed(error.position, cause) from None

    async def _untimed(self, position: int, index: Any, note: Note, seeding: Seeding | None) -> Any:
        note(position)
        quick = self._coroutines and (seeding is None or not seeding.generators)
        try:
            if quick and seeding is not None:
                seeding.begin(index)  # in the context of this task, which is the sample's alone
            return await (self._dataset[index] if quick else self._get(index, seeding))
        except BaseException as error:
            raise blamed(position, error) from None

    async def _timed(self, position: int, index: Any, note: Note, seeding: Seeding | None) -> Any:
        """The same in time. (Not by `within`, which costs an eighth of a sample that is at hand.)"""
        note(position)
        quick = self._coroutines and (seeding is None or not seeding.generators)
        deadlines = self.deadlines
        assert deadlines is not None
        task = deadlines.begin(position, index)
        try:
            if quick and seeding is not None:
                seeding.begin(index)
            sample = await (self._dataset[index] if quick else self._get(index, seeding))
            deadlines.end(task)
            return sample
        except BaseException as error:
            raise blamed(position, deadlines.failed(task, error)) from None

    async def _get(self, index: Any, seeding: Seeding | None) -> Any:
        """A sample. Of one that is a coroutine all generators are one; else its awaitables have others."""
        if seeding is None:
            return await awaited_within(await self._call(lambda: self._dataset[index]))
        if self._coroutines:
            return await driven(seeding.own(index), awaited_within(self._dataset[index]))
        sample = await self._call(lambda: self._dataset[index], seeding.own(index))
        return await seeded(sample, seeding.own(index, AWAITED)) if has_awaitables(sample) else sample

    async def _only(self, position: int, index: Any, note: Note, seeding: Seeding | None) -> Any:
        """A sample of a dataset that has nothing but `__getitems__`, as if it were alone in a batch."""
        note(position)
        try:
            own = None if seeding is None else seeding.own(index, TOGETHER)
            fetched = await self._call(lambda: self._dataset.__getitems__([index]), own)
            if inspect.isawaitable(fetched):
                fetched = await seeded(fetched, None if seeding is None else seeding.own(index, TOGETHER_AWAITED))
            (sample,) = fetched
            return await seeded(sample, None if seeding is None else seeding.own(index, AWAITED))
        except BaseException as error:
            raise blamed(position, error) from None

    async def _many(self, indices: Any, note: Note, seeding: Seeding | None) -> Any:
        """One call for all samples: the call itself is one in flight, and then each awaitable in its result is."""
        (fetched,) = await self._all([partial(self._together, indices, note, seeding)])
        return await self.awaited(fetched, True, note, seeding)

    async def _together(self, indices: Any, note: Note, seeding: Seeding | None) -> Any:
        note(-1)
        try:
            if self.deadlines is None:
                return await self._get_many(indices, seeding)
            together = len(indices) if hasattr(type(indices), "__len__") else 1
            return await self.deadlines.within(-1, None, partial(self._get_many, indices, seeding), together)
        except BaseException as error:
            raise blamed(-1, error) from None

    async def _get_many(self, indices: Any, seeding: Seeding | None) -> Any:
        own = None if seeding is None else seeding.all(TOGETHER)
        fetched = await self._call(lambda: self._dataset.__getitems__(indices), own)
        if inspect.isawaitable(fetched):
            own = None if seeding is None else seeding.all(TOGETHER_AWAITED)
            fetched = await seeded(fetched, own)
        return fetched

    async def awaited(
        self, fetched: Any, batched: bool, note: Note, seeding: Seeding | None = None, losses: Losses | None = None
    ) -> Any:
        """What a dataset returned for a batch (or for one sample), with the awaitables in it awaited, all at once."""
        if not has_awaitables(fetched):
            return fetched

        async def rest(position: int, sample: Any) -> Any:
            note(position)
            task = self._take_care(losses)
            own = None if seeding is None else seeding.own(seeding.name(max(0, position)), AWAITED)
            try:
                if self.deadlines is None:
                    return await seeded(sample, own)
                return await self.deadlines.within(position, None, partial(seeded, sample, own))
            except BaseException as error:
                failed = blamed(position, error)
                if losses is None or not isinstance(failed, Failed):
                    raise failed from None
                return await self._instead(task, failed, losses)

        try:
            if not batched or type(fetched) is dict:
                (sample,) = await self._all([partial(rest, -1 if batched else 0, fetched)])
                return sample
            return type(fetched)(await self._all([partial(rest, i, x) for i, x in enumerate(fetched)]))
        except BaseException:
            close_all(fetched)  # of those that never had their turn
            raise

    async def _call(self, get: Callable[[], Any], own: Own | None = None) -> Any:
        if own is not None:
            with own:
                return await self._call(get)
        if self._threads is None:
            return get()

        thread: list[int] = []  # which one it is, for `tasks.place_of`

        def outcome() -> tuple[Any, BaseException | None]:
            """Not raised there: a future cannot hold `StopIteration`, and whoever waits for it would wait for ever."""
            thread.append(get_ident())
            try:
                return get(), None
            except BaseException as error:
                return None, error

        value, error = await asyncio.get_running_loop().run_in_executor(self._threads, copy_context().run, outcome)
        if error is not None:
            raise error
        return value


async def seeded(value: Any, own: Own | None) -> Any:
    """What is awaitable in it, awaited; with generators of its own, if it has any."""
    return await (awaited_within(value) if own is None else driven(own, awaited_within(value)))


async def _raise(failed: Failed) -> NoReturn:
    raise failed
