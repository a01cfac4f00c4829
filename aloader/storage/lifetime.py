"""What something picklable holds only while it is open: one set of clients per event loop, counted.

Stores and datasets are descriptions that travel by pickle; clients, threads and sockets must not travel with them.
`PerLoop` keeps the two apart: it is made by the first to enter on a loop, shared by all who enter there, and closed
by the last to leave. It pickles (and copies) as closed.

*Threads.* Loops in several threads may enter the same object: each touches only its own entry of the table.

*Fork.* A child inherits the table with the parent's loop in it. The child runs a loop of its own and so never finds the
parent's clients; and they must stay in the table, since closing them would take the parent's sockets out of the epoll
set that both processes share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from aloader.errors import NotOpen

T = TypeVar("T")


class _Opened(Generic[T]):
    """What is open on one loop, and for how many."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # opening and closing take time; a second task that enters meanwhile must wait
        self.users = 0
        self.value: T | None = None
        self.stack = AsyncExitStack()


class PerLoop(Generic[T]):
    """What `owner` holds while it is open.

    `make(stack)`, the owner's method, opens it on the running loop and registers on the stack how to close it.
    """

    def __init__(self, owner: object, make: Callable[[AsyncExitStack], Awaitable[T]]) -> None:
        self._owner = owner
        self._make = make
        self._table: dict[asyncio.AbstractEventLoop, _Opened[T]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (PerLoop, (self._owner, self._make))

    async def enter(self) -> T:
        """Open on the running loop, or join who opened it here before."""
        loop = asyncio.get_running_loop()
        for ended in [other for other in list(self._table) if other.is_closed()]:
            self._table.pop(ended, None)
        opened = self._table.setdefault(loop, _Opened())
        async with opened.lock:
            if opened.value is None:
                async with AsyncExitStack() as stack:
                    opened.value = await self._make(stack)
                    opened.stack = stack.pop_all()
            opened.users += 1
            return opened.value

    async def leave(self) -> None:
        """Close if nobody else has it open on this loop."""
        opened = self._table.get(asyncio.get_running_loop())
        if opened is None:
            raise self._not_open()
        async with opened.lock:
            if opened.users == 0:
                raise self._not_open()
            opened.users -= 1
            if opened.users == 0:
                opened.value = None
                await opened.stack.aclose()

    def get(self) -> T:
        """What is open on the running loop; `NotOpen` if nothing is."""
        opened = self._table.get(asyncio.get_running_loop())
        if opened is None or opened.value is None:
            raise self._not_open()
        return opened.value

    @property
    def is_open(self) -> bool:
        """Whether it is open on any loop: for a `repr`."""
        return any(opened.users for opened in list(self._table.values()))

    def _not_open(self) -> NotOpen:
        where = "open on another event loop only" if self.is_open else "closed"
        return NotOpen(f"{self._owner!r} is {where}: enter it here first, with `async with`")
