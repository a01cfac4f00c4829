"""`num_workers=0` for ordinary datasets: inline for plain `for`, in one thread for `async for`.

There is no look-ahead: the global random state is drawn from in torch's order, and a dataset sees one call at a time.
The thread takes over what torch and Python keep per thread or task: context variables, grad and inference mode, the
default device, autocast.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any, Self

import torch

from aloader import options
from aloader.device.profiling import INLINE, profiling, record_function
from aloader.device.stage import Way
from aloader.errors import IN_A_FORK, LoaderBusy, LoaderClosed
from aloader.worker.faulty import AllLost
from aloader.worker.maker import Maker
from aloader.worker.stream import Dry


class InlineBatches:
    """The iterator of plain `for`: everything happens in the caller's step."""

    def __init__(self, indices: Iterator[Any], maker: Maker, owner: Any) -> None:
        self._indices = indices
        self._maker = maker
        self._owner = owner
        self._made: list[Any] = []  # and not given: a batch, if its user makes warnings errors
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
        made, maker = self._made, self._maker
        if not made:
            made.append(self._make())
        if maker.tolerance is not None:
            maker.tolerance.warn()
        return maker.give(made)

    def _make(self) -> Any:
        maker = self._maker
        while True:
            try:
                indices = next(self._indices)
            except StopIteration:
                maker.ran_dry()
                raise
            try:
                batch = maker.make(indices)
                maker.count()
            except Dry:
                maker.ran_dry()
                raise StopIteration from None
            except AllLost:
                maker.omit()
                continue
            except BaseException:
                maker.failed()
                raise
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
        self._ready: list[Any] = []  # made and not given: a batch, if its user makes warnings errors
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
        ready, maker = self._ready, self._maker
        while not ready:
            pending = await self._made()
            try:
                ready.append(self._taken(pending))
            except AllLost:
                maker.omit()
        if maker.tolerance is not None:
            maker.tolerance.warn()
        if maker.way is not None:
            await self._room(maker.way)
        return maker.give(ready)

    async def _made(self) -> Future[Any]:
        """Have the next batch made. If this is cancelled, it is what the next call waits for."""
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
        return pending

    async def _room(self, way: Way) -> None:
        """Wait until the device has room for a batch. If this is cancelled, the next call gives that."""
        self._waiting = True
        try:
            while way.full(0):  # noqa: ASYNC110  (only the device knows, and it does not tell)
                await asyncio.sleep(options.DEVICE_POLL)
        finally:
            self._waiting = False

    def _taken(self, pending: Future[Any]) -> Any:
        try:
            batch = pending.result()
            self._maker.count()
        except Dry:
            self._maker.ran_dry()
            raise StopAsyncIteration from None
        except AllLost:
            raise
        except Exception as error:
            self._maker.failed()
            if "thread" in str(error):
                error.add_note(
                    "with num_workers=0, `async for` fetches in a thread of its own, so that the event loop stays "
                    "responsive: make what is bound to a thread in __getitem__, or use plain `for`"
                )
            raise
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
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    stream = torch.cuda.current_stream() if in_use else None

    def run() -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            if device.type != "cpu":
                stack.enter_context(device)
            for kind, dtype in autocast:
                stack.enter_context(torch.autocast(kind, dtype))
            if stream is not None:
                stack.enter_context(torch.cuda.device(stream.device))  # first: leaving a stream goes back to a device
                stack.enter_context(torch.cuda.stream(stream))
            return make()

    return run
