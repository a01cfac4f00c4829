"""Where tasks are suspended is found through whatever they await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from aloader.channel import stacks
from aloader.worker.fetch import Fetcher
from aloader.worker.tasks import suspended

pytestmark = pytest.mark.usefixtures("nothing_left")


class Never:
    """Ways to wait for something that never comes."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self) -> None:
        await self.event.wait()

    async def by_a_task(self) -> None:
        await asyncio.create_task(self.wait())

    async def by_gathering(self) -> None:
        await asyncio.gather(asyncio.sleep(0), self.wait())

    async def by_a_group(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.wait())

    async def by_a_generator(self) -> None:
        async for _ in self.numbers():
            pass

    async def numbers(self) -> AsyncIterator[int]:
        await self.wait()
        yield 1

    async def by_an_awaitable(self) -> None:
        await _Awaitable(self.wait)


class _Awaitable:
    def __init__(self, make: Callable[[], Awaitable[None]]) -> None:
        self.make = make

    def __await__(self) -> Any:
        yield from self.make().__await__()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("way", "calls"),
    [
        ("wait", ["wait"]),
        ("by_a_task", ["by_a_task", "wait"]),
        ("by_gathering", ["by_gathering", "wait"]),
        ("by_a_group", ["by_a_group"]),
        ("by_a_generator", ["by_a_generator", "numbers", "wait"]),
        ("by_an_awaitable", ["by_an_awaitable", "__await__", "wait"]),
    ],
)
async def test_what_a_task_waits_for_is_followed(way: str, calls: list[str]) -> None:
    task = asyncio.create_task(getattr(Never(), way)())
    for _ in range(5):
        await asyncio.sleep(0)
    (stack,) = suspended(task)
    task.cancel()
    await asyncio.wait([task])
    assert [frame.name for frame in stacks.users(stack.frames)] == calls
    assert stack.positions == ()


@pytest.mark.asyncio
async def test_a_tickets_samples_are_told_each_for_itself() -> None:
    never = Never()

    class Data:
        async def __getitem__(self, index: int) -> int:
            if index % 2:
                await never.wait()
            return index

    task = asyncio.create_task(Fetcher(Data(), True, 3).fetch([0, 1, 2, 3, 4, 5, 7, 9], lambda position: None))
    for _ in range(20):
        await asyncio.sleep(0)
    found = stacks.different(suspended(task))
    task.cancel()
    await asyncio.wait([task])
    begun, waiting = found
    assert [frame.name for frame in begun.frames] == ["__getitem__", "wait"]
    assert (begun.positions, waiting) == ((1, 3, 5), stacks.Stack((), (6, 7)))


@pytest.mark.asyncio
async def test_a_task_that_is_done_stands_nowhere() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    (stack,) = suspended(task)
    assert stack.frames == ()
