"""Deadlines of many requests with one timer: a timer for each would cost as much as signing it."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol


class Bounded(Protocol):
    """Something that must not go on for ever."""

    @property
    def due(self) -> float:
        """When it has to end, by the loop's clock; infinite while its time stands still."""

    def end(self) -> None:
        """It is due."""


class Deadlines:
    """To be made and used on one running loop. Whoever is watched is ended when it is due; whoever is due earlier than
    it was when it began to be watched has to be watched again."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: set[Bounded] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = inf

    def watch(self, one: Bounded) -> None:
        self._watched.add(one)
        due = one.due
        if due < self._next:
            self._look_at(due)

    def forget(self, one: Bounded) -> None:
        self._watched.discard(one)

    def close(self) -> None:
        self._watched.clear()
        self._look_at(inf)

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        self._timer = None if when == inf else self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        for one in [one for one in self._watched if one.due <= now]:
            self._watched.discard(one)
            one.end()
        self._look_at(min((one.due for one in self._watched), default=inf))
