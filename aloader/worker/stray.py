"""Async samples that have strayed into a loader that cannot await them.

Frameworks make a loader of torch's own from ours, with its dataset and its `collate_fn`. An async dataset gives
coroutines there, and what torch says of them names neither the cause nor the remedy. The collate function is what sees
them first, so that of an async dataset looks at its samples; it goes wherever the framework takes it, into worker
processes too. (An entry for coroutines in torch's collate table would be seen by the whole process, and neither by
collate functions that do not use the table nor by workers that are spawned.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aloader.worker.awaitables import close_all, has_awaitables
from aloader.worker.kinds import is_async, parts


class Guarded:
    """A collate function that is the one it holds, unless it is given what has yet to be awaited: TypeError."""

    def __init__(self, collate_fn: Callable[[Any], Any], dataset_name: str) -> None:
        self.__wrapped__ = collate_fn
        self._dataset_name = dataset_name

    def __call__(self, samples: Any) -> Any:
        if has_awaitables(samples):
            close_all(samples)  # nobody will ever await them, and Python would say so of each
            raise TypeError(
                f"{self._dataset_name} is async; torch's own loader cannot await it: iterate aloader.DataLoader. If a "
                "framework has made this loader out of that one, see aloader.integrations: with accelerate, use "
                "aloader.integrations.accelerate.prepare(accelerator, loader) instead of accelerator.prepare(loader)"
            )
        return self.__wrapped__(samples)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == unguarded(other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def guarded(collate_fn: Callable[[Any], Any], dataset: Any) -> Guarded:
    """The collate function of a loader of an async dataset."""
    innermost = [part for part in parts(dataset) if is_async(part)][-1]
    return Guarded(unguarded(collate_fn), type(innermost).__name__)


def unguarded(collate_fn: Any) -> Any:
    """The function that was given: for loaders that await."""
    return collate_fn.__wrapped__ if type(collate_fn) is Guarded else collate_fn
