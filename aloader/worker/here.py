"""`num_workers=0` for ordinary datasets: inline for plain `for`, in one thread for `async for`.

There is no look-ahead: the global random state is drawn from in torch's order, and a dataset sees one call at a time.
The thread takes over what torch and Python keep per thread or task: context variables, grad and inference mode, the
default device, autocast.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any, Self

import torch

from aloader.channel.marks import Resume
from aloader.channel.messages import Ticket
from aloader.channel.record import Record
from aloader.device.profiling import INLINE, profiling, record_function
from aloader.errors import IN_A_FORK, LoaderBusy, LoaderClosed
from aloader.ranks import Ranks
from aloader.worker.bench import blame
from aloader.worker.dataclass_collation import collating
from aloader.worker.fetch import Failed, close_all, fetch_inline, has_awaitables
from aloader.worker.generators import COLLATE, Seeding, kept, unseeded
from aloader.worker.local import presentable
from aloader.worker.marks import Marker, tell
from aloader.worker.sharding import loader_ranks
from aloader.worker.states import Generators
from aloader.worker.stream import Dry, Stream

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
    ) -> None:
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
        end of an iterable dataset."""
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
            batch = self._made(Ticket(0, 0, self._seq, indices, 0, self._key))
        return batch if self._finish is None else self._finish(batch)

    def _seeding(self, ticket: Ticket) -> Seeding | None:
        if ticket.key is None:
            unseeded()
        return Seeding.of(self._generators, ticket, self._batched, self._stream is not None)

    def _made(self, ticket: Ticket) -> Any:
        indices: Any = ticket.indices
        seeding = self._seeding(ticket)
        error: BaseException | None = None
        try:
            if self._stream is None:
                samples = fetch_inline(self._dataset, indices, self._batched, [0], seeding)
            else:
                self.record.assigned(self._seq, 0)
                samples = self._stream.take(indices, [0], seeding)
        except Failed as failed:
            note = blame(ticket, failed.position, self._batched, self._stream is not None)
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
        if seeding is not None:
            seeding.all(COLLATE).begin()
        try:
            return self._collate_fn(samples)
        except StopIteration as stop:
            raise presentable(stop, f"while collating batch {self._seq}") from stop

    def gave(self) -> None:
        """The user has the batch that was made last."""
        self.record.gave(self._seq, 0, self._mark)

    def failed(self) -> None:
        """The user has an error in its place."""
        self.record.failed(self._seq)

    def ran_dry(self) -> None:
        """The user knows that there is nothing left."""
        self.record.ended = True
        if self._stream is not None:
            self.record.dry(0, self._stream.mark)

    @property
    def taken(self) -> tuple[int, Any, None, int]:
        """Of the batch that was made last: its place in the epoch, indices, no worker, and the epoch's number."""
        return self.record.number_of(self._seq), self._indices, None, self._epoch


class InlineBatches:
    """The iterator of plain `for`: everything happens in the caller's step."""

    def __init__(self, indices: Iterator[Any], maker: Maker, owner: Any) -> None:
        self._indices = indices
        self._maker = maker
        self._owner = owner
        maker.open(self)

    def __iter__(self) -> Self:
        return self

    @property
    def taken(self) -> Any:
        """Of the batch that was given last: seq, indices, worker and epoch."""
        return self._maker.taken

    def __next__(self) -> Any:
        if self._owner.closed:
            raise LoaderClosed("the loader has been closed; make a new one")
        if not profiling():
            return self._next()
        with record_function(INLINE):
            return self._next()

    def _next(self) -> Any:
        maker = self._maker
        try:
            indices = next(self._indices)
        except StopIteration:
            maker.ran_dry()
            raise
        try:
            batch = maker.make(indices)
        except Dry:
            maker.ran_dry()
            raise StopIteration from None
        except BaseException:
            maker.failed()
            raise
        maker.gave()
        return batch

    def __len__(self) -> int:
        return len(self._owner._index_sampler)

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


class ThreadedBatches:
    """The iterator of `async for`: indices are drawn in the consumer's step, and the batch is made in a thread.

    A batch that is being made when `__anext__` is cancelled is what the next call gives.
    """

    def __init__(self, indices: Iterator[Any], maker: Maker, thread: Executor, owner: Any) -> None:
        self._indices = indices
        self._maker = maker
        self._thread = thread
        self._owner = owner
        self._pending: Future[Any] | None = None  # of no loop: it may be taken on another than it was begun on
        self._waiting = False
        self._pid = os.getpid()
        maker.open_later()

    def __aiter__(self) -> Self:
        return self

    @property
    def taken(self) -> Any:
        """Of the batch that was given last: seq, indices, worker and epoch."""
        return self._maker.taken

    async def __anext__(self) -> Any:
        if self._owner.closed:
            raise LoaderClosed("the loader has been closed; make a new one")
        if os.getpid() != self._pid:  # its thread is not here
            raise LoaderClosed(IN_A_FORK)
        if self._waiting:
            raise LoaderBusy("two tasks wait in one iterator, and a batch goes to one of them only: give each its own")
        if self._pending is None:
            try:
                indices = next(self._indices)
            except StopIteration:
                self._maker.ran_dry()
                raise StopAsyncIteration from None
            make = _with_callers_state(lambda: self._maker.make(indices))
            self._pending = self._thread.submit(copy_context().run, make)
        self._waiting = True
        waiter = asyncio.wrap_future(self._pending)
        waiter.add_done_callback(_seen)
        try:
            await asyncio.wait([waiter])
        finally:
            self._waiting = False
        pending, self._pending = self._pending, None
        try:
            batch = pending.result()
        except Dry:
            self._maker.ran_dry()
            raise StopAsyncIteration from None
        except Exception as error:
            self._maker.failed()
            if "thread" in str(error):
                error.add_note(
                    "with num_workers=0, `async for` fetches in a thread of its own, so that the event loop stays "
                    "responsive: make what is bound to a thread in __getitem__, or use plain `for`"
                )
            raise
        self._maker.gave()
        return batch

    async def aclose(self) -> None:
        """Nothing of this iterator lives on: its thread is the loader's."""


def _seen(waiter: asyncio.Future[Any]) -> None:
    """What it raises is raised by whoever takes the batch, perhaps not by the one who has waited for it."""
    if not waiter.cancelled():
        waiter.exception()


def _with_callers_state(make: Callable[[], Any]) -> Callable[[], Any]:
    """`make` under the modes that torch keeps per thread, as they are here and now."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    device = torch.get_default_device()
    autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]

    def run() -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            if device.type != "cpu":
                stack.enter_context(device)
            for kind, dtype in autocast:
                stack.enter_context(torch.autocast(kind, dtype))
            return make()

    return run
