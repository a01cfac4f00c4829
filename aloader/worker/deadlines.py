"""How long one sample may take on a loop: `sample_timeout`. Nothing of tickets, links or processes may enter here.

A sample that takes longer is cancelled, in its own task, and fails with `SampleTimeout`: at the place where an error of
its own would come from, so that whatever is done with those is done with it. That it was late stands, whatever its code
makes of the cancellation: a value that it returns instead is none. Code that goes on as if nothing had happened has a
grace; then its task is given up: it is left alone until it ends, and whoever waits for it is told.

There is one timer for all that run, set for the one that is due first. What runs is counted by hundreds at most, so a
look at all of them when it rings costs less than keeping them in order would. Time in which the loop did not look (it
was blocked, or the program was stopped) is nobody's fault, and is not counted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from aloader import options
from aloader.channel.lateness import sample_timeout
from aloader.errors import SampleTimeout

Task = asyncio.Task[Any]

#: The part of the time allowed by which the timer may ring late before that is made up for.
_SLACK: Final = 0.1


#: One that runs: when it is due, its position and index, and how many samples it is for, if for a batch (else 0).
#: A plain tuple, since one is made for every sample.
Running = tuple[float, int, Any, int]


class Deadlines:
    """Made on the loop. `where` says where a task stands, as text; `give_up` is told of a task that does not end: its
    sample's position in the ticket, and the error."""

    def __init__(
        self, seconds: float, where: Callable[[Task], str], give_up: Callable[[Task, int, SampleTimeout], None]
    ) -> None:
        self.seconds = seconds
        self._where = where
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._running: dict[Task, Running] = {}
        self._late: dict[Task, SampleTimeout] = {}  # of them, those that have been cancelled
        self._timer: asyncio.TimerHandle | None = None
        self._rings = math.inf

    async def within(self, position: int, index: Any, call: Callable[[], Any], together: int = 0) -> Any:
        """What `call()` gives when it is awaited, in this task. Raises `SampleTimeout`."""
        task = self.begin(position, index, together)
        try:
            value = await call()
            self.end(task)
            return value
        except BaseException as error:
            raise self.failed(task, error)  # noqa: B904  (the very error, as a rule)

    def begin(self, position: int, index: Any, together: int = 0) -> Task:
        """This task's time begins. Call `end` or `failed` when it is over."""
        task = asyncio.current_task()
        assert task is not None
        due = self._time() + self.seconds * (together or 1)
        self._running[task] = due, position, index, together
        if due < self._rings:
            self._set(due)
        return task

    def end(self, task: Task) -> None:
        """It has something to return. Raises `SampleTimeout` if it is late."""
        self._running.pop(task, None)
        if self._late and task in self._late:
            raise self._late[task]

    def failed(self, task: Task, error: BaseException) -> BaseException:
        """It has raised this. What it shall raise."""
        self._running.pop(task, None)
        late = self._late.pop(task, None)
        if late is None:
            return error
        if task.uncancel() > 0 and isinstance(error, asyncio.CancelledError):
            return error  # whoever else has cancelled it wants no sample any more
        if error is not late and not isinstance(error, asyncio.CancelledError):
            late.__cause__ = error
        return late

    def _set(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = due
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        behind = now - self._rings
        self._timer, self._rings = None, math.inf
        more = behind + _SLACK * self.seconds if behind > _SLACK * self.seconds else 0.0
        for task, (due, *rest) in list(self._running.items()):
            if due + more > now:
                self._running[task] = due + more, *rest
            else:
                self._end(task, now)
        if self._running:
            self._set(min(one[0] for one in self._running.values()))

    def _end(self, task: Task, now: float) -> None:
        _, position, index, together = self._running[task]
        late = self._late.get(task)
        if late is None:
            seconds = self.seconds * (together or 1)
            self._late[task] = sample_timeout(index, seconds, self._where(task), together=together)
            self._running[task] = now + options.CLOSE_GRACE, position, index, together
            task.cancel()
        else:
            del self._running[task]
            self._give_up(task, position, late)
