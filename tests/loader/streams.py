"""Iterable datasets that the loader's tests share: importable, so that workers find them by name."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info


def share(samples: Any) -> Any:
    """This worker's share of samples."""
    info = get_worker_info()
    return samples if info is None else itertools.islice(samples, info.id, None, info.num_workers)


class Counting(IterableDataset[int]):
    """0 … n-1, each worker its share."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        return iter(share(range(self.n)))


class Uneven(Counting):
    """Worker i gives i + 1 numbers, of hundred times i; the first gives none if `n` is 0."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter([100 * worker + i for i in range(worker + (self.n > 0))])


class Whole(Counting):
    """Each worker gives everything."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.n))


class Awaitables(Counting):
    """Gives what is to be awaited; knows how many of these are in flight at most."""

    def __iter__(self) -> Iterator[Any]:
        self.now = self.most = 0
        return map(self.fetch, super().__iter__())

    async def fetch(self, i: int) -> tuple[int, int]:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)  # sleep: what takes a while to fetch
        self.now -= 1
        return i, self.most


class AsyncCounting:
    """The same as `Counting`, for `async for` only; nothing of torch's."""

    def __init__(self, n: int, file: str = "") -> None:
        self.n = n
        self.file = file

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            for i in share(range(self.n)):
                await asyncio.sleep(0)
                yield i
        finally:
            await asyncio.sleep(0)
            if self.file:
                with open(self.file, "a") as file:
                    file.write("left\n")


class Failing(Counting):
    """Raises in the place of one number, and goes on."""

    def __init__(self, n: int, bad: int, error: BaseException) -> None:
        super().__init__(n)
        self.bad = bad
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        self.numbers = super().__iter__()
        return self

    def __next__(self) -> Any:
        number = next(self.numbers)
        if number == self.bad:
            raise self.error
        return number


class Unopenable(Counting):
    """Cannot be begun."""

    def __iter__(self) -> Iterator[Any]:
        raise StopIteration("no more")


class Dying(Counting):
    """Worker 0 dies in the place of its third number."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for at, number in enumerate(super().__iter__()):
            if at == 2 and info is not None and info.id == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            yield number
