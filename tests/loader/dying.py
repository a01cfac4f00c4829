"""Datasets whose samples end their worker, once or always: importable, so that workers find them by name."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

import aloader
from aloader import SampleWarning, WorkerWarning

from .samples import Numbers
from .streams import share

OURS = os.path.dirname(aloader.__file__)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _crash() -> None:
    print("about to read from nowhere", file=sys.stderr)
    ctypes.string_at(0)


def _exit() -> None:
    sys.stderr.write("giving up\n")
    os._exit(7)


def _wait() -> None:
    time.sleep(60)  # sleep: until somebody kills it


ENDS = {"kill": _kill, "crash": _crash, "exit": _exit, "wait": _wait}


class Fate:
    """Which samples end the process that meets them: those of `once` the first time, those of `always` each time. What
    has happened stands in `folder`: a link for each of `once`, to the pid. (Made in one step: another thread may end
    the process between any two.)"""

    def __init__(
        self, folder: Path, once: Iterable[int] = (), always: Iterable[int] = (), how: dict[int, str] | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = str(folder)
        self.once = frozenset(once)
        self.always = frozenset(always)
        self.how = how or {}

    def meet(self, index: int) -> None:
        if index in self.always or (index in self.once and self.first_time(index)):
            ENDS[self.how.get(index, "kill")]()

    def first_time(self, index: int) -> bool:
        try:
            os.symlink(str(os.getpid()), f"{self.folder}/{index}")
        except FileExistsError:
            return False
        return True

    @property
    def deaths(self) -> int:
        """How many processes have ended in `once`."""
        return len({os.readlink(link) for link in Path(self.folder).iterdir()})

    def await_one(self) -> None:
        """Return when a process has come to one of `once`."""
        while not self.deaths:
            time.sleep(0.01)  # sleep: no end is awaited here that could be

    def again(self, index: int) -> None:
        """It ends a process once more."""
        Path(self.folder, str(index)).unlink()


class Mortal(Numbers):
    """Sample i is i."""

    restartable = True

    def __init__(self, fate: Fate, n: int = 24) -> None:
        super().__init__(n)
        self.fate = fate

    def __getitem__(self, index: int) -> Any:
        self.fate.meet(index)
        return index


class Together(Mortal):
    """All of a batch in one call."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Async(Mortal):
    """Waits before and after."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        self.fate.meet(index)
        await asyncio.sleep(0)
        return index


class Stream(IterableDataset[Any]):
    """Each worker its share of 0 … n-1. Says where it is."""

    at = 0

    def __init__(self, fate: Fate, n: int = 24) -> None:
        self.fate = fate
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        numbers = list(share(range(self.n)))
        while self.at < len(numbers):
            number = numbers[self.at]
            self.fate.meet(number)
            self.at += 1
            yield self.given(number)
        self.at = 0

    def given(self, number: int) -> Any:
        return number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class AsyncStream:
    """The same, to be awaited."""

    at = 0
    state_dict, load_state_dict = Stream.state_dict, Stream.load_state_dict

    def __init__(self, fate: Fate, n: int = 24) -> None:
        self.fate = fate
        self.n = n

    async def __aiter__(self) -> AsyncIterator[Any]:
        numbers = list(share(range(self.n)))
        while self.at < len(numbers):
            await asyncio.sleep(0)
            number = numbers[self.at]
            self.fate.meet(number)
            self.at += 1
            yield number
        self.at = 0


@contextmanager
def restarts() -> Iterator[list[str]]:
    """What the user is told of workers that were replaced; of nothing else is he warned, but of samples left out."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield texts
    kinds = {warning.category for warning in seen}
    assert kinds <= {WorkerWarning, SampleWarning}, [str(warning.message) for warning in seen]
    seen = [warning for warning in seen if warning.category is WorkerWarning]
    assert not [one.filename for one in seen if one.filename.startswith(OURS)], "it is said of the user's line"
    texts += [str(warning.message) for warning in seen]


def run(loader: Iterable[Any]) -> list[Any]:
    """What iterating gives: batches as lists, and errors in their places."""
    got: list[Any] = []
    batches = iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return got
        except Exception as error:
            got.append(error)
        else:
            got.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)


async def run_async(loader: Any) -> list[Any]:
    """The same with `async for`."""
    got: list[Any] = []
    batches = aiter(loader)
    while True:
        try:
            batch = await anext(batches)
        except StopAsyncIteration:
            return got
        except Exception as error:
            got.append(error)
        else:
            got.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
