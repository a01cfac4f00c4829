"""Calls of a dataset's own methods that a program broadcasts: `loader.broadcast("set_epoch", 3)`.

The parent calls the method on its dataset, and has every worker do the same on its replica. Which dataset is meant is
found in the same way on both sides: the outermost one if it has the method, else those inside torch's wrappers that do.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections import deque
from collections.abc import Iterator
from typing import Any

from aloader.channel.carry import carry, restore
from aloader.worker.kinds import parts


def holders(dataset: Any, method: str) -> list[Any]:
    """The dataset if it has this method; else those inside it that have, and are not inside one that has."""
    if _has(dataset, method):
        return [dataset]
    found = [part for part in parts(dataset) if _has(part, method)]
    below = {id(inner) for part in found for inner in _inside(part)}
    return [part for part in found if id(part) not in below]


def _has(dataset: Any, method: str) -> bool:
    return callable(getattr(dataset, method, None))


def _inside(dataset: Any) -> Iterator[Any]:
    return (part for part in parts(dataset) if part is not dataset)


def check(dataset: Any, method: str) -> None:
    """Whether it can be called at all. Raises AttributeError and TypeError."""
    found = holders(dataset, method)
    if not found:
        raise AttributeError(
            f"{type(dataset).__name__!r} object has no method {method!r} to broadcast, nor has a dataset inside it: "
            f"give {type(dataset).__name__} one"
        )
    for part in found:
        if inspect.iscoroutinefunction(getattr(part, method)):
            raise TypeError(
                f"broadcast calls plain methods, and {type(part).__name__}.{method} is a coroutine function: let a "
                "plain one note what is to be done, and do it in __getitem__"
            )


def call(dataset: Any, method: str, args: tuple[Any, ...]) -> None:
    """Call it."""
    for part in holders(dataset, method):
        getattr(part, method)(*args)


def written(method: str, args: tuple[Any, ...]) -> bytes:
    """A call as it travels. Raises TypeError for arguments that cannot, by their place."""
    carried = carry(args, f"arguments of broadcast({method!r})")
    return pickle.dumps((method, carried.body, [bytearray(buffer) for buffer in carried.buffers]), 5)


class Calls:
    """In a worker: calls that wait for the next ticket, so that none is in the midst of a sample."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()

    def add(self, written: bytes) -> None:
        """Before the next ticket that begins."""
        self._waiting.append(written)

    def make(self, dataset: Any) -> None:
        """Make them, in their order. What one raises is the ticket's error, and the rest come before the next one."""
        while self._waiting:
            method, body, buffers = pickle.loads(self._waiting.popleft())
            try:
                call(dataset, method, restore(body, buffers))
            except BaseException as error:
                with contextlib.suppress(Exception):
                    error.add_note(f"raised by broadcast({method!r}, …) in this worker's replica of the dataset")
                raise
