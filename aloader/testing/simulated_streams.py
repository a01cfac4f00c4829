"""Streams and events in virtual time. What operations do, and on which memory, is not known here.

When an operation is given to a stream, all that it depends on has been given before it: so its begin and its end are
known at once, and an event is a moment. An operation begins when the one before it in its stream has ended, the events
that the stream was told to wait for have passed, the host has come to the call that gave it, and, for a copy, the copy
engine of its direction has a gap that is long enough. Its two functions run when the host's clock comes to the begin
and to the end: all of them in the order of virtual time, ends before begins.

Beside the times goes what the program has *ordered*: an operation knows, of each stream, up to which operation it must
come after, by the order of its own stream, by the events that this waited for, and by those that the host has seen
pass. So what was right only because of these times can be told from what is right.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

#: Nothing takes no time: so the begin of an operation always comes before its end.
SHORTEST: Final = 1e-9
_END, _BEGIN = 0, 1


@dataclass(frozen=True, slots=True)
class Span:
    """An operation that has been executed. Times are virtual seconds."""

    stream: str
    name: str
    begin: float
    end: float
    nbytes: int = 0  # that it copied


class Stream:
    """A queue of operations on the device."""

    __slots__ = ("behind", "free_at", "given", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.free_at = 0.0  # when all that was given so far, and all that it was told to wait for, is done
        self.given = 0  # operations
        self.behind: dict[Stream, int] = {}  # how many of each stream's are ordered before what comes next

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"


@dataclass(frozen=True, slots=True)
class Event:
    """A mark in a stream: it passes at this moment, and these many operations of each stream are before it."""

    at: float
    behind: Mapping[Stream, int] = field(repr=False)


@dataclass(slots=True, eq=False)
class Operation:
    """What a stream has been given. The functions must not hold what the device does not hold: tensors."""

    span: Span
    stream: Stream
    number: int  # in its stream, from 1
    behind: Mapping[Stream, int]
    at_begin: Callable[[], None] | None = None
    at_end: Callable[[], None] | None = None
    ended: bool = False

    def after(self, other: Operation) -> bool:
        """Whether the program has ordered it behind the other."""
        return self.behind.get(other.stream, 0) >= other.number

    def __str__(self) -> str:
        return f"{self.span.name!r} on stream {self.span.stream!r}"


@dataclass(slots=True)
class Engine:
    """A copy engine: one copy at a time."""

    busy: list[tuple[float, float]] = field(default_factory=list)  # sorted, and apart

    def fit(self, ready: float, seconds: float, now: float) -> float:
        """When a copy begins that is ready then, and takes so long. Takes the gap."""
        self.busy = [taken for taken in self.busy if taken[1] > now]
        begin = ready
        for taken_from, taken_to in self.busy:
            if begin + seconds <= taken_from:
                break
            begin = max(begin, taken_to)
        bisect.insort(self.busy, (begin, begin + seconds))
        return begin


class Schedule:
    """The host's clock, and the operations that it has not come to yet."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: dict[Stream, int] = {}  # by the host: operations of each stream that it knows to be done
        self.trace: list[Span] = []
        self._due: list[tuple[float, int, int, Operation]] = []
        self._given = 0
        self._running = False

    def give(
        self, stream: Stream, name: str, seconds: float, engine: Engine | None = None, nbytes: int = 0
    ) -> Operation:
        """Put an operation at the end of a stream. What it does may be set before the clock goes on."""
        seconds = max(seconds, SHORTEST)
        begin = max(stream.free_at, self.now)
        if engine is not None:
            begin = engine.fit(begin, seconds, self.now)
        stream.free_at = begin + seconds
        stream.given += 1
        merge(stream.behind, self.seen)
        stream.behind[stream] = stream.given
        span = Span(stream.name, name, begin, stream.free_at, nbytes)
        operation = Operation(span, stream, stream.given, dict(stream.behind))
        self._given += 1
        heapq.heappush(self._due, (begin, _BEGIN, self._given, operation))
        heapq.heappush(self._due, (stream.free_at, _END, self._given, operation))
        return operation

    def record(self, stream: Stream) -> Event:
        """An event behind all that the stream has been given."""
        return Event(max(stream.free_at, self.now), dict(stream.behind))

    def wait(self, stream: Stream, event: Event) -> None:
        """What the stream is given from now on begins after the event."""
        stream.free_at = max(stream.free_at, event.at)
        merge(stream.behind, event.behind)

    def passed(self, event: Event) -> bool:
        """Whether the host has come to an event; then it knows what is done."""
        if event.at > self.now:
            return False
        merge(self.seen, event.behind)
        return True

    def join(self, event: Event) -> None:
        """Let the host wait for an event."""
        self.advance_to(event.at)
        self.passed(event)

    def advance_to(self, moment: float) -> None:
        """Let the host come to this moment, if it has not yet: all that is due until then is executed."""
        if self._running:
            raise RuntimeError("a function that runs on the simulated device called the accelerator: only the host may")
        self._running = True
        try:
            while self._due and self._due[0][0] <= moment:
                self._step()
        finally:
            self._running = False
        self.now = max(self.now, moment)

    def _step(self) -> None:
        at, phase, _, operation = heapq.heappop(self._due)
        self.now = max(self.now, at)
        if phase == _BEGIN:
            if operation.at_begin is not None:
                operation.at_begin()
            return
        operation.ended = True
        self.trace.append(operation.span)
        if operation.at_end is not None:
            operation.at_end()
        operation.at_begin = operation.at_end = None  # operations are kept for what is said of them


def merge(into: dict[Stream, int], other: Mapping[Stream, int]) -> None:
    """What both know."""
    for stream, number in other.items():
        into[stream] = max(into.get(stream, 0), number)
