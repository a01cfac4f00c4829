"""An iterable dataset as it is read: one pass per epoch, by torch's rules, from `__iter__` or `__aiter__`.

A ticket of such a dataset says how many samples it is for (None: one, unbatched). Whoever comes to the end raises
`Dry`, and so does every later ticket of the same pass.

A stream that goes on where another program has left off tells the dataset so, if it can be told; what the user has had
of what is read from there on is read and dropped.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any, Final

from torch.utils.data import ChainDataset

from aloader.channel.marks import Resume, is_stateful
from aloader.worker.awaitables import close_all
from aloader.worker.deadlines import Deadlines
from aloader.worker.faulty import Failed, Losses, blamed
from aloader.worker.fetch import Note, Progress
from aloader.worker.generators import OPEN, Seeding, driven
from aloader.worker.kinds import reads_async
from aloader.worker.marks import Marker, load, tell

#: How often in a row reading may fail: an iterator that never gives a sample again would never end.
IN_A_ROW: Final = 100

_GENERATOR: Final = (
    "The dataset is read from a generator, which cannot go on after an error: what was left of it is lost. Catch "
    'errors inside it (and yield None in the sample\'s place, which on_error="skip" and "drop" take for one that '
    "failed), or make it a class with __next__"
)


class Dry(Exception):  # noqa: N818
    """Nothing is left of this worker's share."""


class Stream:
    """One pass over a dataset. The iterator is made by `open`, at the latest for the first sample.

    `shard` is which share of the dataset it is, of all ranks and workers, and `position` how many samples of it have
    been read: together, what a sample is known by where it is seeded.
    """

    def __init__(
        self, dataset: Any, drop_last: bool, marker: Marker, shard: int = 0, resume: Resume | None = None
    ) -> None:
        self.shard = shard
        self._dataset = dataset
        self._drop_last = drop_last
        self._marker = marker
        self._resume = resume or Resume(None)
        self._iterator: Any = None
        self._awaits = False
        self._ended = False
        self._number = self._resume.reads_from  # of the next ticket
        self.position = self._resume.mark.position if self._resume.mark is not None else 0  # samples read
        self._fallen = -1, 0  # where reading failed last, and how often in a row by then
        self.marks = True  # whether they are taken
        self.deadlines: Deadlines | None = None  # of samples that are awaited
        self.mark: bytes | None = None  # behind the ticket that was read last

    def open(self, seeding: Seeding | None = None) -> None:
        """Make the iterator. Raises what the dataset raises."""
        if seeding is not None:
            seeding.begin((self.shard, 0), OPEN)
        try:
            self._tell_dataset()
            if not self._ended:
                self._iterator = iter(self._dataset)
                self._tell_iterator()
        except BaseException:
            self._ended = True
            raise

    def _tell_dataset(self) -> None:
        """Where it goes on: the dataset first, so that it makes its iterator accordingly."""
        mark = self._resume.mark
        if mark is not None:
            self._ended = mark.ended
            tell(self._dataset, mark)
            if mark.before and mark.iterator is not None:  # it has gone, and what it drew from has not
                load(iter(self._dataset), mark.iterator)

    def _tell_iterator(self) -> None:
        mark = self._resume.mark
        if mark is not None and mark.iterator is not None and not mark.before:
            load(self._iterator, mark.iterator)

    def mark_now(self) -> bytes | None:
        """What the dataset says of itself at this moment."""
        return self._marker.at_once(self._iterator, self.position, ended=self._ended)

    def let_go(self) -> None:
        """Nobody reads on: drop the iterator, unless it may still be asked for its state."""
        if not is_stateful(self._iterator):
            self._iterator = None

    def _was_given(self) -> bool:
        """Whether the user has had the next ticket, which is read and dropped, then. Counts it."""
        given = self._resume.was_given(self._number)
        self._number += 1
        return given

    def take(
        self, count: int | None, progress: Progress, seeding: Seeding | None = None, losses: Losses | None = None
    ) -> Any:
        """The next samples, as many as there are up to `count`. Raises `Dry` and `Failed`."""
        progress[0] = 0
        if self._ended:
            raise Dry
        if self._iterator is None:
            try:
                self.open(seeding)
            except BaseException as error:
                raise Failed(0, error) from None
        if self._ended:
            raise Dry
        dropped = _Dropped(progress)
        while self._was_given():
            with _error_given():
                close_all(self._ticket(count, dropped, seeding, losses and losses.again()))
            _forget(seeding)
        return self._ticket(count, progress, seeding, losses)

    def _ticket(self, count: int | None, progress: Progress, seeding: Seeding | None, losses: Losses | None) -> Any:
        samples: list[Any] = []
        wanted = 1 if count is None else count
        while len(samples) < wanted and not self._ended:
            try:
                while len(samples) < wanted:
                    progress[0] = len(samples)
                    if seeding is not None:
                        seeding.begin(self._named(seeding))
                    samples.append(next(self._iterator))
                    self.position += 1
            except StopIteration:
                self._ended = True
            except BaseException as error:
                try:
                    samples.append(self._forgiving(len(samples), error, losses).fell(len(samples), error))
                except Failed:
                    close_all(samples)
                    raise
                self.position += 1
        return self._taken(samples, count)

    def _forgiving(self, position: int, error: BaseException, losses: Losses | None) -> Losses:
        """Who says what stands in the place of a sample that could not be read. Raises `Failed` where there is no going
        on: the failed one counts as read."""
        if losses is None or not losses.forgives or not isinstance(error, Exception):
            raise Failed(position, error) from None
        if inspect.isgenerator(self._iterator) or inspect.isasyncgen(self._iterator):
            with contextlib.suppress(Exception):  # a frozen dataclass takes no notes
                error.add_note(_GENERATOR)
            raise Failed(position, error) from None
        where, times = self._fallen
        times = times + 1 if where == self.position else 1
        self._fallen = self.position + 1, times
        if times > IN_A_ROW:
            raise Failed(position, error) from None
        return losses

    async def take_async(
        self, count: int | None, note: Note, seeding: Seeding | None = None, losses: Losses | None = None
    ) -> Any:
        """The same, with an iterator that may have to be awaited."""
        note(0)
        if self._ended:
            raise Dry
        if self._iterator is None:
            try:
                await (self._open_async() if seeding is None else self._open_seeded(seeding))
            except BaseException as error:
                self._ended = True
                raise blamed(0, error) from None
        if self._ended:
            raise Dry
        number = itertools.count(2)  # as `_Dropped`
        while self._was_given():
            with _error_given():
                again = losses and losses.again()
                close_all(await self._ticket_async(count, lambda _: note(-next(number)), seeding, again))
            _forget(seeding)
        return await self._ticket_async(count, note, seeding, losses)

    async def _ticket_async(self, count: int | None, note: Note, seeding: Seeding | None, losses: Losses | None) -> Any:
        samples: list[Any] = []
        wanted = 1 if count is None else count
        while len(samples) < wanted and not self._ended:
            try:
                while len(samples) < wanted:
                    note(len(samples))
                    samples.append(await self._read(len(samples), seeding) if self._awaits else self._next(seeding))
                    self.position += 1
            except (StopIteration, StopAsyncIteration):
                self._ended = True
            except BaseException as error:
                try:
                    samples.append(await self._instead(len(samples), error, losses))
                except BaseException:
                    close_all(samples)
                    raise
                self.position += 1
        return self._taken(samples, count)

    async def _instead(self, position: int, error: BaseException, losses: Losses | None) -> Any:
        failed = blamed(position, error)
        if not isinstance(failed, Failed):
            raise failed from None
        call = partial(self._forgiving(position, error, losses).fell_async, position, error)
        if self.deadlines is None:
            return await call()
        try:  # the user's function has the time of a sample, too
            return await self.deadlines.within(position, None, call)
        except BaseException as raised:
            raise blamed(position, raised) from None

    async def _open_async(self) -> None:
        dataset = self._dataset
        self._tell_dataset()
        if self._ended:
            return
        if not reads_async(dataset):
            self._iterator = iter(dataset)
        elif isinstance(dataset, ChainDataset):
            self._iterator = _chained(dataset.datasets)
        else:
            iterator = type(dataset).__aiter__(dataset)
            self._iterator = await iterator if inspect.isawaitable(iterator) else iterator
        self._awaits = hasattr(type(self._iterator), "__anext__")
        self._tell_iterator()

    async def _open_seeded(self, seeding: Seeding) -> None:
        await driven(seeding.own((self.shard, 0), OPEN), self._open_async())

    def _next(self, seeding: Seeding | None) -> Any:
        """The next sample of an ordinary iterator. (A `StopIteration` cannot pass through a coroutine.)"""
        if seeding is None:
            return next(self._iterator)
        with seeding.own(self._named(seeding)):
            return next(self._iterator)

    async def _read(self, position: int, seeding: Seeding | None) -> Any:
        """The next sample of an iterator that is awaited."""
        if self.deadlines is not None:
            return await self.deadlines.within(position, None, partial(self._read_next, seeding))
        return await self._read_next(seeding)

    async def _read_next(self, seeding: Seeding | None) -> Any:
        if seeding is None:
            return await anext(self._iterator)
        return await driven(seeding.own(self._named(seeding)), _next_of(self._iterator))

    def _named(self, seeding: Seeding) -> tuple[int, int]:
        """What the sample that is read next is known by."""
        seeding.names.append((self.shard, self.position))
        return self.shard, self.position

    def _taken(self, samples: list[Any], count: int | None) -> Any:
        if self.marks:
            self.mark = self._marker.take(self._iterator, self.position, ended=self._ended)
        if not samples:
            raise Dry
        if count is None:
            return samples[0]
        if self._drop_last and len(samples) < count:
            close_all(samples)
            raise Dry
        return samples

    async def aclose(self) -> None:
        """Nobody wants the rest: let an async generator leave what it is in."""
        self._ended = True
        iterator, self._iterator = self._iterator, None
        if hasattr(type(iterator), "aclose"):
            await iterator.aclose()


class _Dropped:
    """The progress of what is read and dropped, under one ticket: another number for each sample, -2, -3, …, so that
    whoever watches sees it move."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._numbers = itertools.count(2)

    def __getitem__(self, at: int) -> int:
        return self._progress[at]

    def __setitem__(self, at: int, position: int) -> None:
        self._progress[at] = -next(self._numbers)


@contextlib.contextmanager
def _error_given() -> Iterator[None]:
    """In the place of a ticket that the user has had: an error of the dataset's is one that they have had as well."""
    try:
        yield
    except Failed as failed:
        if not isinstance(failed.cause, Exception):
            raise


def _forget(seeding: Seeding | None) -> None:
    """What was read was dropped: the batch is not known by it."""
    if seeding is not None:
        seeding.names.clear()


async def _next_of(iterator: Any) -> Any:
    return await anext(iterator)


async def _chained(datasets: Iterable[Any]) -> AsyncIterator[Any]:
    for dataset in datasets:
        if reads_async(dataset):
            async for sample in dataset:
                yield sample
        else:
            for sample in dataset:
                yield sample
