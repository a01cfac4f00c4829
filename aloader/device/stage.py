"""Between shared memory and the user: the first batches of an epoch's queue on their way, begun ahead and in order.

A batch lies in the epoch's queue until the step that returns it to the user; nothing of it lies in a coroutine, and
cancelling loses nothing. Here is what has been begun of the first `width` of them. Everything runs in the consumer's
thread (from its own steps, or callbacks of its loop), except copies into pinned memory, which a helper thread makes:
streams and random generators are the thread's, and threads that launch work for one device wait for each other anyway.

What a batch goes through is a `Way`: `moving` to a device, or `pinning` in host memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, Protocol

import torch

from aloader.errors import LoaderBusy


class Way(Protocol):
    """What is done with a batch before the user gets it. All but `host` and `open` are called in one thread."""

    def open(self) -> None:
        """Whatever takes time. May run in a thread. Idempotent."""

    copied_bytes: int  #: to the device

    @property
    def opened(self) -> bool: ...

    def needs_thread(self, batch: Any) -> bool:
        """Whether `host` takes longer than a loop may be held up."""

    def host(self, batch: Any) -> Any:
        """What is done in host memory. In any thread."""

    def full(self, waiting: int) -> bool:
        """Whether there is no room on the device for one more batch than these that have been begun and not given."""

    def make_room(self) -> None:
        """Wait until the device has come so far that there is."""

    def begin(self, batch: Any, place: int) -> Any:
        """Let the device begin; returns at once. `place` is the batch's in its epoch."""

    def give(self, begun: Any) -> Any:
        """The batch, for whoever computes on this thread's current stream."""

    def look(self) -> None:
        """Let go of what the device is done with."""

    @property
    def restless(self) -> bool:
        """Whether `look` will find something by and by."""

    def close(self) -> None:
        """Nothing more is begun. What the device still reads is kept until it is done."""


class Passage:
    """One batch on its way."""

    __slots__ = ("batch", "begun", "done", "error", "future", "hosted", "place")

    def __init__(self, place: int) -> None:
        self.place = place
        self.batch: Any = None  # in host memory, until it is begun
        self.hosted = False  # `Way.host` is done with it, or at it
        self.future: Future[Any] | None = None  # of the helper thread's
        self.begun: Any = None
        self.error: BaseException | None = None
        self.done = False  # it can be given


class Stage:
    """See the top of this file.

    `unpack` makes the batch of what the queue holds, and `place_of` its place in the epoch of its seq. With `late`
    nothing is begun on the device before the batch is given: its user's thread is not the one that this runs in.
    """

    def __init__(
        self, way: Way, width: int, unpack: Callable[[Any], Any], place_of: Callable[[int], int], *, late: bool = False
    ) -> None:
        self.way = way
        self.late = late
        # Who calls `advance` when the consumer does not, if anybody does:
        self.stir: Callable[[], object] | None = None  # soon: the queue has changed
        self.wake: Callable[[], object] | None = None  # the same, from any thread: the helper has done its part
        self.arm: Callable[[], object] | None = None  # in a moment, to see what the device has done
        self._width = width
        self._unpack = unpack
        self._place_of = place_of
        self._passages: dict[int, Passage] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._closed = False
        self._advancing = False

    def advance(self, queue: Iterable[Any]) -> None:
        """Begin what may be begun of the queue's first batches, in their order."""
        if self._closed or self._advancing:  # `device_transform` may do what leads here
            return
        self._advancing = True
        try:
            if torch.is_inference_mode_enabled():  # in the consumer, or where another task of its loop waits
                with torch.inference_mode(False):
                    self._advance(queue)
            else:
                self._advance(queue)
        finally:
            self._advancing = False

    def _advance(self, queue: Iterable[Any]) -> None:
        if not self.late:
            self.way.look()
        first = list(islice((one for one in queue if hasattr(one, "batch")), self._width))
        passages = [self._passages.get(one.seq) or self._enter(one) for one in first]
        for passage in passages:
            if not passage.hosted and not passage.done:
                self._host(passage)
        full = False
        for passage in passages:
            if self._closed:  # by `device_transform`, or in another thread
                return
            if not passage.done and not self._begin(passage):
                full = passage.future is None
                break
        if not self.late and self.arm is not None and (full or self.way.restless):
            self.arm()

    def ready(self, outcome: Any) -> bool:
        """Whether `take` has this one: an error, which needs nothing, or a batch that has been begun."""
        passage = self._passages.get(outcome.seq)
        return passage.done if passage is not None else not hasattr(outcome, "batch")

    def settle(self, queue: Sequence[Any]) -> None:
        """Wait until the first one is ready."""
        if self._advancing:
            raise LoaderBusy("the next batch is being made: device_transform must not ask for it, nor another thread")
        self.advance(queue)
        while queue and not self.ready(queue[0]):
            passage = self._passages.get(queue[0].seq)
            if passage is None:  # it is being closed in another thread
                return
            if passage.future is not None and not passage.future.done():
                wait([passage.future])
            elif self._full():
                self.way.make_room()
            self.advance(queue)

    def take(self, outcome: Any) -> Any:
        """The batch, or what has gone wrong on its way is raised. In the consumer's step."""
        passage = self._passages.pop(outcome.seq)
        if passage.error is not None:
            error, passage.error = passage.error, None  # whose traceback knows the passage
            try:
                raise error
            finally:
                del error
        if self.late:
            return passage
        begun, passage.begun = passage.begun, None  # an error that the user keeps may know the passage: see `_begin`
        return self.way.give(begun)

    def give_late(self, passage: Passage) -> Any:
        """What `take` would have given, in the thread of whoever uses it."""
        return straight(self.way, passage.begun, passage.place)

    def close(self) -> None:
        """Nobody wants what is under way."""
        self._closed = True
        for passage in self._passages.values():
            passage.error = None  # whose traceback knows the passage
        self._passages.clear()
        self.stir = self.wake = self.arm = None
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self.way.close()

    def _enter(self, outcome: Any) -> Passage:
        passage = Passage(self._place_of(outcome.seq))
        try:
            passage.batch = self._unpack(outcome)
        except Exception as error:
            passage.error, passage.done = error, True
        self._passages[outcome.seq] = passage
        return passage

    def _host(self, passage: Passage) -> None:
        """What is done in host memory, at once or by the helper thread. Interrupted, it is done next time."""
        try:
            if self.way.needs_thread(passage.batch):
                future = self._helper().submit(_sound, self.way.host, passage.batch)
                future.add_done_callback(lambda _: self._woken())  # before anybody may rely on that
                passage.hosted, passage.future, passage.batch = True, future, None
            else:
                passage.batch = _sound(self.way.host, passage.batch)
                passage.hosted = True
        except Exception as error:
            passage.error, passage.batch, passage.done = error, None, True

    def _begin(self, passage: Passage) -> bool:
        """Let the device begin. False if that must wait, and what is behind it too."""
        future = passage.future
        if future is not None:
            if not future.done():
                return False
            passage.error = future.exception()
            passage.batch = None if passage.error is not None else future.result()
            passage.future = None
        if passage.error is None:
            if self.late:
                passage.begun = passage.batch
            elif self._full():
                return False
            else:
                try:
                    passage.begun = _sound(self.way.begin, passage.batch, passage.place)
                except Exception as error:
                    passage.error = error
        passage.batch, passage.done = None, True
        return True

    def _full(self) -> bool:
        return self.way.full(sum(one.begun is not None for one in self._passages.values()))

    def _helper(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "aloader-pin")
        return self._thread

    def _woken(self) -> None:
        wake = self.wake  # which another thread may take away
        if wake is not None:
            wake()


def _sound(function: Callable[..., Any], *args: Any) -> Any:
    """A call whose errors are no ends of iterations and no cancellations: they belong to one batch."""
    try:
        return function(*args)
    except (StopIteration, StopAsyncIteration, asyncio.CancelledError) as error:
        raise RuntimeError(f"{type(error).__name__} was raised while a batch was moved") from error


def in_host(way: Way, batch: Any) -> Any:
    """What is done in host memory with a batch that is not queued, in whichever thread has made it."""
    if not way.opened:
        way.open()
    return _sound(way.host, batch)


def straight(way: Way, batch: Any, place: int) -> Any:
    """The rest of its way, in the step of whoever uses it."""
    way.look()
    if way.full(0):
        way.make_room()
    return way.give(_sound(way.begin, batch, place))
