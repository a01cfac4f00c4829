"""Coroutines of many groups, of which at most so many run at once: the earliest group's first, in its order.

A group is what one ticket needs. None of its coroutines exists before its turn, so that what waits costs nothing; each
becomes a task of its own when one that runs has ended. A slow one keeps its own group waiting and nobody else's.
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

    async def all(self, begins: Sequence[Begin]) -> list[Any]:
        """Their results, in their order. If one fails, the others are cancelled; none outlives this call.

        Of several that have failed by then, the first in the order is raised; a task that the coroutine's own code has
        cancelled raises `Cancelled`.
        """
        if not begins:
            return []
        group = Group(begins, self._wrap)
        self._waiting.append(group)
        self._fill()
        try:
            await group.ended
            return group.results()
        finally:
            await self._withdraw(group)

    def _fill(self) -> None:
        waiting = self._waiting
        while waiting and self._free > 0:
            group = waiting[0]
            self._free -= 1
            group.begin_next().add_done_callback(self._on_end)
            if group.has_begun and waiting and waiting[0] is group:
                waiting.popleft()

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._free += 1
        if self._waiting:
            self._fill()

    async def _withdraw(self, group: Group) -> None:
        if not group.has_begun:
            self._waiting.remove(group)
        left = [task for task in group.tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


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
        self._running = len(begins)
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
        begin = self._begins[len(self.tasks)]
        coroutine = begin() if self._wrap is None else self._wrap(begin())
        task = self._loop.create_task(coroutine, context=self._context.copy())
        self.tasks.append(task)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._running -= 1
        failed = task.cancelled() or task.exception() is not None  # asked of each: or asyncio says that nobody did
        if (failed or self._running == 0) and not self.ended.done():
            self.ended.set_result(None)

    def results(self) -> list[Any]:
        for position, task in enumerate(self.tasks):
            if task.done() and task.cancelled():
                raise Cancelled(position)
            if task.done() and task.exception() is not None:
                task.result()
        return [task.result() for task in self.tasks]
