"""Datasets of which some samples fail, of every kind; importable, so that workers find them by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from .samples import Numbers
from .streams import share

#: One in a batch of four; all of the next but one; and two that are neighbours.
BAD = (5, 12, 13, 14, 15, 18, 19)


class Bad(Numbers):
    """0 … 23, but some fail; or are `none`."""

    def __init__(self, n: int = 24, bad: Any = BAD, none: Any = (), error: type[Exception] = ValueError) -> None:
        super().__init__(n)
        self.bad = frozenset(bad)
        self.none = frozenset(none)
        self.error = error

    def got(self, index: int) -> Any:
        if index in self.bad:
            raise self.error(f"bad {index}")
        return None if index in self.none else index

    def __getitem__(self, index: int) -> Any:
        return self.got(index)


class AsyncBad(Bad):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0)
        return self.got(index)


class TogetherBad(Bad):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.got(index) for index in indices]


class AsyncTogetherBad(AsyncBad):
    async def __getitems__(self, indices: list[int]) -> list[Any]:
        await asyncio.sleep(0)
        return [self.got(index) for index in indices]


class ReturnsAwaitables(Bad):
    """Shows nothing of being async."""

    def __getitem__(self, index: int) -> Any:
        return self.late(index) if index % 2 else self.got(index)

    async def late(self, index: int) -> Any:
        await asyncio.sleep(0)
        return self.got(index)


class Stream(Bad, IterableDataset):  # type: ignore[type-arg]
    """The same, read from the front, by the only worker."""

    def __iter__(self) -> Any:
        self.numbers = iter(share(range(self.n)))
        return self

    def __next__(self) -> Any:
        return self.got(next(self.numbers))


class AwaitableStream(Stream):
    def __next__(self) -> Any:
        return self.late(next(self.numbers))

    async def late(self, index: int) -> Any:
        await asyncio.sleep(0)
        return self.got(index)


class AsyncStream:
    """For `async for` only."""

    def __init__(self, n: int = 24) -> None:
        self.inner = Stream(n)

    def __aiter__(self) -> AsyncIterator[Any]:
        self.numbers = iter(share(range(self.inner.n)))
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        for number in self.numbers:
            return self.inner.got(number)
        raise StopAsyncIteration


class Generating(Stream):
    """From a generator, which is over after an error."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.n):
            yield self.got(number)


class Hopeless(Stream):
    """An iterator that fails for ever."""

    def __next__(self) -> Any:
        raise self.error("never again")


def negative(error: Any) -> Any:
    """What to take instead, once the index is known."""
    return -error.index


def refuse(error: Any) -> Any:
    raise LookupError(f"nothing instead of {error.index}")


def nothing(error: Any) -> Any:
    return None


async def late_negative(error: Any) -> Any:
    await asyncio.sleep(0)
    return -error.index
