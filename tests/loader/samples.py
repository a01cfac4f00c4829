"""Datasets that the loader's tests share: importable, so that workers find them by name."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time

import numpy as np
import torch


class Numbers:
    """Sample i is the number i."""

    def __init__(self, n: int = 100) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Stamped(Numbers):
    """Sample i is a large tensor full of i, and i."""

    def __init__(self, n: int = 100, floats: int = 30_000) -> None:
        super().__init__(n)
        self.floats = floats

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:  # type: ignore[override]
        return torch.full((self.floats,), float(index)), index


def check(batch: list[torch.Tensor]) -> list[int]:
    """Every byte of a batch of `Stamped` is what it should be; its indices."""
    data, indices = batch
    assert (data == indices[:, None]).all()
    return [int(i) for i in indices]


class AsyncNumbers(Numbers):
    """The same, and async."""

    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return index


class Opened(AsyncNumbers):
    """Async, with something to open; says where it was opened, and how many are in flight at most."""

    opened: int | None = None

    def __init__(self, n: int = 100) -> None:
        super().__init__(n)
        self.flying = 0
        self.most = 0

    async def __aenter__(self) -> Opened:
        self.opened = os.getpid()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.opened = None

    async def __getitem__(self, index: int) -> tuple[int, int, int]:  # type: ignore[override]
        assert self.opened == os.getpid()
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(0.002)
        self.flying -= 1
        return index, self.opened, self.most


class TwoArguments(Exception):
    """Cannot be pickled the usual way."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code
        self.why = why


class Failing(Numbers):
    """Sample 5 fails, in the way that `how` says."""

    def __init__(self, how: str, n: int = 12) -> None:
        super().__init__(n)
        self.how = how

    def __getitem__(self, index: int) -> object:  # type: ignore[override]
        if index == 5:
            return FAILURES[self.how]()
        return index


def _raise(error: BaseException) -> object:
    raise error


class Unpicklable(Exception):
    def __reduce__(self) -> object:  # type: ignore[override]
        raise RuntimeError("never")


def _kill(number: int) -> object:
    os.kill(os.getpid(), number)
    time.sleep(60)  # sleep: the signal ends it
    return None


FAILURES = {
    "value": lambda: _raise(ValueError("bad sample")),
    "two arguments": lambda: _raise(TwoArguments(7, "because")),
    "os error": lambda: _raise(FileNotFoundError(2, "No such file", "x.jpg")),
    "key": lambda: _raise(KeyError("name")),
    "unpicklable": lambda: _raise(Unpicklable("odd")),
    "stop": lambda: _raise(StopIteration()),
    "exit": lambda: _raise(SystemExit(3)),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "batch": lambda: (_ for _ in ()),  # a generator cannot be pickled
    "os._exit": lambda: os._exit(7),
    "kill": lambda: _kill(signal.SIGKILL),
    "segv": lambda: _kill(signal.SIGSEGV),
}


def as_list(samples: list[object]) -> list[object]:
    """A collate function that does nothing."""
    return samples


class Stuck(Numbers):
    """Sample 5 never comes, with or without the GIL."""

    def __init__(self, gil: bool, n: int = 50) -> None:
        super().__init__(n)
        self.gil = gil

    def __getitem__(self, index: int) -> int:
        if index == 5:
            if self.gil:
                ctypes.pythonapi.sleep(60)  # a C call that keeps the GIL
            time.sleep(60)
        return index


class Whole(Numbers):
    """Sample i is the value of an array at i, and of an attribute."""

    def __init__(self, n: int = 8) -> None:
        super().__init__(n)
        self.array = np.zeros(n)
        self.epoch = 0

    def __getitem__(self, index: int) -> tuple[float, int]:  # type: ignore[override]
        return float(self.array[index]), self.epoch
