"""Coroutines of many groups, of which at most so many run at once: the earliest group's first, in its order.

A group is what one ticket needs. None of its coroutines exists before its turn, so that what waits costs nothing; each
becomes a task of its own when one that runs has ended. A slow one keeps its own group waiting and nobody else's.

A task that goes on after it was cancelled can be given up: another one takes its place, and it is kept until it ends,
if it ever does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from typing import Any

Begin = Callable[..., Coroutine[Any, Any, Any]]
Wrap = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class Flight:
    """Everything is called on one loop. `wrap` is put around each coroutine, if it is given."""

    def __init__(self, limit: int, wrap: Wrap | None = None) -> None:
        self._free = limit
        self._wrap = wrap
        self._waiting: deque[Group] = deque()
        self._groups: set[Group] = set()  # that somebody waits for
        self._given_up: set[asyncio.Task[Any]] = set()

    async def all(self, begins: Sequence[Begin]) -> list[Any]:
        """Their results, in their order. If one fails, the others are cancelled; none outlives this call, but
        those that are given up.

        Of several that have failed by then, the first in the order is raised; a task that the coroutine's own code has
        cancelled raises `Cancelled`.
        """
        if not begins:
            return []
        group = Group(begins, self._wrap)
        self._groups.add(group)
        self._waiting.append(group)
        self._fill()
        try:
            await group.ended
            return group.results()
        finally:
            await self._withdraw(group)

    def give_up(self, task: asyncio.Task[Any], instead: Begin) -> None:
        """A task was cancelled and goes on: what `instead` begins stands in its place, if somebody still waits."""
        for group in self._groups:
            if task in group.tasks and task not in self._given_up and not task.done():
                self._given_up.add(task)
                group.replace(task, instead).add_done_callback(self._on_end)
                return

    def _fill(self) -> None:
        waiting = self._waiting
        while waiting and self._free > 0:
            group = waiting[0]
            self._free -= 1
            group.begin_next().add_done_callback(self._on_end)
            if group.has_begun and waiting and waiting[0] is group:
                waiting.popleft()

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        if self._given_up and task in self._given_up:
            self._given_up.discard(task)  # another one has its place
            return
        self._free += 1
        if self._waiting:
            self._fill()

    async def _withdraw(self, group: Group) -> None:
        if not group.has_begun:
            self._waiting.remove(group)
        try:
            await group.end()
        finally:
            self._groups.discard(group)


class Cancelled(Exception):  # noqa: N818
    """The coroutine at this position was cancelled, and not by us."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class Group:
    """What was asked for together, and what has begun of it, in order."""

    def __init__(self, begins: Sequence[Begin], wrap: Wrap | None = None) -> None:
        self._wrap = wrap
        self._loop = asyncio.get_running_loop()
        self._begins = begins
        self._context: Context = copy_context()  # of whoever asks: a task is begun when somebody else's has ended
        self._missing = len(begins)
        self._under_way = 0
        self._lost: set[asyncio.Task[Any]] = set()  # those that were given up
        self._quiet: asyncio.Future[None] | None = None  # when nothing is under way, for who waits for that
        self.tasks: list[asyncio.Task[Any]] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def has_begun(self) -> bool:
        """Whether all of it runs, or has run."""
        return len(self.tasks) == len(self._begins)

    @property
    def waiting(self) -> range:
        """The positions whose turn has not come."""
        return range(len(self.tasks), len(self._begins))

    def begin_next(self) -> asyncio.Task[Any]:
        task = self._begun(self._begins[len(self.tasks)])
        self.tasks.append(task)
        self._under_way += 1
        return task

    def replace(self, task: asyncio.Task[Any], begin: Begin) -> asyncio.Task[Any]:
        """Another one in the place of one that is given up."""
        self._lost.add(task)
        other = self.tasks[self.tasks.index(task)] = self._begun(begin)
        if self._quiet is not None:
            other.cancel()  # nobody wants its result: all are to end
        return other

    def _begun(self, begin: Begin) -> asyncio.Task[Any]:
        coroutine = begin() if self._wrap is None else self._wrap(begin())
        task = self._loop.create_task(coroutine, context=self._context.copy())
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        failed = task.cancelled() or task.exception() is not None  # asked of each: or asyncio says that nobody did
        if self._lost and task in self._lost:
            self._lost.discard(task)
            return
        self._missing -= 1
        self._under_way -= 1
        if (failed or self._missing == 0) and not self.ended.done():
            self.ended.set_result(None)
        if self._quiet is not None and self._under_way == 0 and not self._quiet.done():
            self._quiet.set_result(None)

    async def end(self) -> None:
        """Cancel what is left, and wait until nothing is under way."""
        if not self._under_way:
            return
        self._quiet = self._loop.create_future()
        for task in self.tasks:
            task.cancel()
        await self._quiet

    def results(self) -> list[Any]:
        for position, task in enumerate(self.tasks):
            if task.done() and task.cancelled():
                raise Cancelled(position)
            if task.done() and task.exception() is not None:
                task.result()
        return [task.result() for task in self.tasks]
