"""One sample again, in this process: `loader.replay(index)`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from aloader.channel.messages import Ticket
from aloader.channel.replica import replicator
from aloader.channel.states import Generators
from aloader.worker.awaitables import has_awaitables
from aloader.worker.concurrent import enter
from aloader.worker.faulty import Failed
from aloader.worker.fetch import Fetcher, seeded
from aloader.worker.generators import AWAITED, SAMPLE, TOGETHER, Seeding, kept, unseeded
from aloader.worker.kinds import fetches_one, is_async


def replay(dataset: Any, index: Any, key: int | None = None) -> Any:
    """`dataset[index]`, awaited where it is to be, inside the dataset's `async with`. Raises what it raises.

    With a `key`, it draws from generators of its own. (A dataset with nothing but `__getitems__` draws what it would if
    the sample were alone in its batch.)
    """
    if not hasattr(type(dataset), "__getitem__") and not hasattr(type(dataset), "__getitems__"):
        raise TypeError(f"{type(dataset).__name__} has no __getitem__: only samples that have an index can be replayed")
    generators = None if key is None else Generators(shared=True)
    seeding = Seeding.of(generators, Ticket(0, 0, 0, [index], 0, key), True)
    with kept(generators):
        if is_async(dataset):
            return _run(_entered(_copy(dataset), index, seeding))
        sample = _get(dataset, index, seeding)
        return (
            _run(seeded(sample, None if seeding is None else seeding.all(AWAITED)))
            if has_awaitables(sample)
            else sample
        )


class _Only(NamedTuple):
    dataset: Any


def _copy(dataset: Any) -> Any:
    """As a worker has it: the loader's own may be entered at this moment. Where it cannot be copied, itself."""
    try:
        return replicator(_Only(dataset))().dataset
    except (TypeError, RuntimeError):
        return dataset


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = PrivateLoop()
    try:
        return loop.run(coroutine)
    finally:
        loop.close()


def _get(dataset: Any, index: Any, seeding: Seeding | None) -> Any:
    alone = fetches_one(dataset)
    if seeding is None:
        unseeded()
    else:
        seeding.all(SAMPLE if alone else TOGETHER).begin()
    return dataset[index] if alone else dataset.__getitems__([index])[0]


async def _entered(dataset: Any, index: Any, seeding: Seeding | None) -> Any:
    alone = fetches_one(dataset)
    async with AsyncExitStack() as stack:
        await enter(dataset, stack)
        try:
            fetched = await Fetcher(dataset, not alone, 1).fetch(index if alone else [index], _quiet, seeding)
        except Failed as failed:
            raise failed.cause from None
        return fetched if alone else fetched[0]


def _quiet(position: int) -> None:
    """Nobody looks at how far it is."""


class PrivateLoop:
    """A loop that runs while something is run on it: in the caller's thread, or in one of its own where a loop runs in
    the caller's already (notebooks)."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.used = False

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end."""
        self.used = True
        if asyncio._get_running_loop() is None:
            return self._runner.run(coroutine)
        return _in_a_thread(lambda: self._runner.run(coroutine))

    def close(self) -> None:
        """End it."""
        if self.used and asyncio._get_running_loop() is not None:
            _in_a_thread(self._runner.close)
        else:
            self._runner.close()


def _in_a_thread(act: Callable[[], Any]) -> Any:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((act(), None))
        except BaseException as error:
            outcome.extend((None, error))

    thread = threading.Thread(target=run, name="aloader-here")
    thread.start()
    thread.join()
    value, error = outcome
    if error is not None:
        raise error
    return value
