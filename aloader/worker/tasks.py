"""Where the tasks of an event loop are suspended, for whoever waits for one of their tickets.

`faulthandler` shows the loop itself, which waits in `select`. What a task waits for is found by following what each
coroutine awaits, down to the future that nobody but the kernel or another task will settle. A ticket's samples are
tasks of their own: those that `Flight.all` waits for.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final

from aloader.channel.stacks import Frame, Stack, pack, text, users
from aloader.channel.status import MOST_TASKS, StatusPage
from aloader.worker import fetch, flight, generators

_DEPTH: Final = 100
_KNOWN: Final = (asyncio.Future, CoroutineType, GeneratorType, AsyncGeneratorType)
_SAMPLES: Final = flight.Flight.all.__code__
_CALL: Final = fetch.Fetcher._call.__code__
_DRIVEN: Final = generators.driven.__code__


def answer(loop: asyncio.AbstractEventLoop, page: StatusPage) -> None:
    """Write on the page where the tasks of the ticket stand that the parent asks about: a signal handler of the loop.

    Where there is no such ticket, the dataset may still be being entered: then all tasks are told.
    """
    stacks: list[Stack] = []
    epoch, seq = page.asked
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        ticket = _ticket(task)
        if ticket is not None and (ticket.epoch, ticket.seq) == (epoch, seq):
            stacks = suspended(task)
    if not stacks:
        stacks = [stack for task in tasks for stack in suspended(task) if users(stack.frames)]
    page.answer(pack(stacks, MOST_TASKS))


def suspended(task: asyncio.Task[Any]) -> list[Stack]:
    """Where a ticket's task stands: one stack for each of its samples that is under way, or one in all."""
    stacks, frames = [], list(_frames(task))
    for frame in frames:
        if frame.f_code is _SAMPLES and "group" in frame.f_locals:
            group: flight.Group = frame.f_locals["group"]
            under_way = [(at, list(_frames(one))) for at, one in enumerate(group.tasks) if not one.done()]
            stacks += [Stack(_told(calls), (at,)) for at, calls in under_way if not _in_thread(calls)]
            stacks += [Stack((), (at,)) for at in group.waiting]
    return stacks or [Stack(_told(frames))]


def place_of(task: asyncio.Task[Any]) -> str:
    """Where the user's code stands in a sample's task, or in the thread that it is fetched in, as text."""
    frames = list(_frames(task))
    found = _told(frames)
    if _in_thread(frames):
        thread = frames[-1].f_locals.get("thread")
        found = calls(sys._current_frames().get(thread[0])) if thread else found
    return text(users(found))


def calls(frame: FrameType | None) -> tuple[Frame, ...]:
    """The calls that a running thread is in, of which `frame` is the innermost."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return _told(reversed(found))


def _ticket(task: asyncio.Task[Any]) -> Any:
    """The ticket that a task of the concurrent server works on."""
    frame: FrameType | None = getattr(task.get_coro(), "cr_frame", None)
    if frame is None or not str(frame.f_globals.get("__name__")).startswith("aloader.worker."):
        return None
    return frame.f_locals.get("ticket")


def _in_thread(frames: list[FrameType]) -> bool:
    """Whether a sample is fetched in a thread, where it stands among the threads' stacks."""
    return bool(frames) and frames[-1].f_code is _CALL


def _told(frames: Iterable[FrameType]) -> tuple[Frame, ...]:
    return tuple(Frame(f.f_code.co_filename, f.f_lineno or 0, f.f_code.co_name) for f in frames)


def _frames(task: asyncio.Future[Any]) -> Iterator[FrameType]:
    """Where a task is suspended, outermost call first; on into the tasks that it waits for."""
    awaited: Any = task
    for _ in range(_DEPTH):
        if awaited is None:
            return
        frame, awaited = _step(awaited)
        if frame is not None:
            yield frame


def _step(awaited: Any) -> tuple[FrameType | None, Any]:
    """A frame of something that is awaited, if it has one, and what it awaits itself."""
    if isinstance(awaited, asyncio.Task):
        return None, None if awaited.done() else awaited.get_coro()
    if inspect.iscoroutine(awaited):
        return awaited.cr_frame, awaited.cr_await
    if inspect.isgenerator(awaited) and awaited.gi_code is _DRIVEN:
        return None, awaited.gi_frame.f_locals["coroutine"] if awaited.gi_frame is not None else None
    if inspect.isgenerator(awaited):
        return awaited.gi_frame, awaited.gi_yieldfrom
    if inspect.isasyncgen(awaited):
        return awaited.ag_frame, awaited.ag_await
    if isinstance(awaited, asyncio.Future):  # `gather` has the futures that it gathers
        children = (child for child in getattr(awaited, "_children", ()) if not child.done())
        return None, next(children, None)
    # Iterators of futures, steps of async generators and the like are opaque: what they hold is known to the collector.
    return None, next((held for held in gc.get_referents(awaited) if isinstance(held, _KNOWN)), None)
