"""Making batches of an ordinary dataset in this process, one after the other: whoever iterates says when, and where.

What an epoch is to remember is noted in the consumer's steps (`gave`, `omit`, `failed`, `ran_dry`), not while a batch
is made, which may be in another thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from aloader.channel.blame import blame
from aloader.channel.marks import Resume
from aloader.channel.messages import LeftOut, Ticket
from aloader.channel.record import Record
from aloader.channel.states import Generators
from aloader.channel.tolerance import Place, Tolerance
from aloader.device.stage import Way, in_host, straight
from aloader.ranks import Ranks
from aloader.worker.awaitables import close_all, has_awaitables
from aloader.worker.dataclass_collation import collating
from aloader.worker.faulty import AllLost, Failed, Policy
from aloader.worker.fetch import fetch_inline
from aloader.worker.generators import COLLATE, Seeding, kept, unseeded
from aloader.worker.local import presentable
from aloader.worker.marks import Marker, tell
from aloader.worker.sharding import loader_ranks
from aloader.worker.stream import Stream

_ASYNC_RESULT = (
    "the dataset returned an awaitable, but does not show that it is async: make it `async def __getitem__`, or give "
    "it `__aenter__`, and many samples of it are fetched at once"
)


class Maker:
    """Makes batches one after the other; counts them, and keeps the epoch's `record`. `ranks` is what the dataset is
    told of the loader's."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        batched: bool,
        finish: Any = None,
        epoch: int = 0,
        record: Record | None = None,
        ranks: Ranks | None = None,
        key: int | None = None,
        policy: Policy = Policy(),  # noqa: B008  (immutable)
        tolerance: Tolerance | None = None,
        way: Way | None = None,
    ) -> None:
        self.way = way
        self.record = record or Record()
        self._dataset = dataset
        self._collate_fn = collating(collate_fn)
        self._batched = batched
        self._finish = finish
        self._marker = Marker(dataset)
        self._stream: Stream | None = None
        self._ranks = ranks
        self._mark: bytes | None = None
        self._seq = self.record.first - 1
        self._epoch = epoch
        self._indices: Any = None
        self._ahead = False
        self._key = key
        self._policy = policy
        self.tolerance = tolerance
        self._left_out: tuple[LeftOut, ...] = ()  # of the batch that was made last
        self._omitted: list[tuple[int, bytes | None]] = []  # since the user had a batch
        self._generators = None if key is None else Generators(shared=True)

    def read(self, drop_last: bool, resume: Resume | None = None) -> None:
        """The dataset is iterable: read it from the front, or where an earlier pass was left."""
        shard = self._ranks.rank if self._ranks is not None else 0
        self._stream = Stream(self._dataset, drop_last, self._marker, shard, resume)

    def tell(self, resume: Resume | None) -> None:
        """The dataset has indices: what it said of itself when an earlier pass was left, it is told."""
        if resume is not None:
            tell(self._dataset, resume.mark)

    def open(self, owner: object) -> None:
        """Begin, as torch does while it makes an iterator: what is read is given at once. `owner` is the iterator,
        with which an iterable dataset's goes, unless a state may still be asked of it."""
        stream, marker = self._stream, self._marker
        self.record.now = marker.at_once if stream is None else stream.mark_now
        if stream is not None:
            stream.marks = False
            self._reading(self._open, stream)
            weakref.finalize(owner, stream.let_go)

    def open_later(self) -> None:
        """Begin with the first batch, in the thread that makes it: opening may take time. Others may ask for a state
        while a batch is being made: what belongs to it is noted with it."""
        self._ahead = True

    def _open(self, stream: Stream) -> None:
        with kept(self._generators):
            stream.open(self._seeding(Ticket(0, 0, 0, None, 0, self._key)))

    def make(self, indices: Any) -> Any:
        """The batch of these indices. Raises what the dataset raises, with a note that names the sample; `Dry` at the
        end of an iterable dataset; `AllLost` where no batch comes of them."""
        return self._reading(self._make, indices)

    def _reading(self, call: Callable[..., Any], *args: Any) -> Any:
        """A call in which the dataset is told the loader's ranks."""
        token = loader_ranks.set(self._ranks)
        try:
            return call(*args)
        finally:
            loader_ranks.reset(token)

    def _make(self, indices: Any) -> Any:
        self._seq += 1
        self._indices = indices if self._stream is None else None
        with kept(self._generators):
            try:
                batch = self._made(Ticket(0, 0, self._seq, indices, 0, self._key))
            except AllLost as lost:
                self._left_out = lost.losses.left_out()
                raise
        return batch if self.way is None else in_host(self.way, batch)

    def _seeding(self, ticket: Ticket) -> Seeding | None:
        if ticket.key is None:
            unseeded()
        return Seeding.of(self._generators, ticket, self._batched, self._stream is not None)

    def _made(self, ticket: Ticket) -> Any:
        indices: Any = ticket.indices
        seeding = self._seeding(ticket)
        iterable = self._stream is not None
        losses = self._policy.losses(ticket, self._batched, iterable, seeding)
        error: BaseException | None = None
        try:
            if self._stream is None:
                samples = fetch_inline(self._dataset, indices, self._batched, [0], seeding, losses)
            else:
                self.record.assigned(self._seq, 0)
                samples = self._stream.take(indices, [0], seeding, losses)
        except Failed as failed:
            note = blame(ticket, failed.position, self._batched, iterable)
            error = presentable(failed.cause, note)
        if error is not None:
            try:
                raise error  # not in the `except`, which would replace what the user's error was raised during
            finally:
                del error  # its traceback holds this frame
        if has_awaitables(samples):
            close_all(samples)
            raise TypeError(_ASYNC_RESULT)
        if self._ahead:
            self._mark = self._marker.take() if self._stream is None else self._stream.mark
        if losses is not None:
            samples = losses.settled(samples)
            self._left_out = losses.left_out()
        if seeding is not None:
            seeding.all(COLLATE).begin()
        try:
            return self._collate_fn(samples)
        except StopIteration as stop:
            raise presentable(stop, f"while collating batch {self._seq}") from stop

    def count(self) -> None:
        """Count what has failed in the batch that was made last, before it is given. Raises `SampleError` where it is
        not, since these are too many. (What there is to tell is told by whoever gives it: that may raise as well, and
        must not lose it.)"""
        if self.tolerance is not None:
            error = self.tolerance.count(self._place, self._left_out)
            if error is not None:
                raise error

    def omit(self) -> None:
        """The same of a batch that has come to nothing."""
        try:
            self.count()
        except BaseException:
            self.failed()
            raise
        self._omitted.append((self._seq, self._mark))

    def give(self, made: list[Any]) -> Any:
        """Give the user the only batch in `made`, which was made last, and take it out of there. What goes wrong on
        its way is raised in its place; what is interrupted is given the next time."""
        try:
            batch = made[0]
            if self.way is not None:
                batch = straight(self.way, batch, self.record.number_of(self._seq))
            if self._finish is not None:
                batch = self._finish(batch)
        except Exception:
            made.clear()
            self.failed()
            raise
        made.clear()
        if self._omitted:
            self._pass()
        self.record.gave(self._seq, 0, self._mark)
        return batch

    def _pass(self) -> None:
        """The user has something behind what was omitted, or knows that nothing is left."""
        for seq, mark in self._omitted:
            self.record.gave(seq, 0, mark)
        self._omitted.clear()

    def failed(self) -> None:
        """The user has an error in its place."""
        self.record.failed(self._seq)

    def ran_dry(self) -> None:
        """The user knows that there is nothing left."""
        self._pass()
        self.record.ended = True
        if self._stream is not None:
            self.record.dry(0, self._stream.mark)
        if self.tolerance is not None:
            self.tolerance.end()
            self.tolerance.warn()

    @property
    def _place(self) -> Place:
        return Place(self.record.number_of(self._seq), self._indices, self._batched, self._stream is not None)

    @property
    def taken(self) -> tuple[int, Any, None, int, tuple[Any, ...]]:
        """Of the batch that was made last: its place in the epoch, indices, no worker, the epoch's number, and which
        of its samples have failed."""
        place = self._place
        return place.seq, self._indices, None, self._epoch, place.names(self._left_out)
