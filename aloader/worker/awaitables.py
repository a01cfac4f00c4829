"""Awaitables in what a dataset returned: finding and awaiting them, and what becomes of those that nobody awaits."""

from __future__ import annotations

import inspect
from typing import Any

from aloader.worker.faulty import BAD


def has_awaitables(fetched: Any) -> bool:
    """Whether what a dataset returned has yet to be awaited."""
    if type(fetched) is list or type(fetched) is tuple:
        return any(map(_awaitable_type, set(map(type, fetched)))) or _holds_awaitables(_first(fetched))
    return _awaitable_type(type(fetched)) or inspect.isawaitable(fetched) or _holds_awaitables(fetched)


def _first(samples: Any) -> Any:
    """The first of these that is one, if any is."""
    for sample in samples:
        if sample is not BAD and sample is not None:  # None may stand for one that failed
            return sample
    return None


def _holds_awaitables(sample: Any) -> bool:
    """Of one sample: torch's `StackDataset` makes tuples or dicts of what its datasets return."""
    kind = type(sample)
    if kind is tuple or kind is list:
        return any(map(_awaitable_type, set(map(type, sample))))
    return kind is dict and any(map(_awaitable_type, set(map(type, sample.values()))))


def _awaitable_type(kind: type) -> bool:
    return hasattr(kind, "__await__")


def close_all(fetched: Any) -> None:
    """Close the coroutines in what a dataset returned, those that were never begun and those that are over alike."""
    if inspect.iscoroutine(fetched):
        fetched.close()
    elif type(fetched) is list or type(fetched) is tuple:
        for item in fetched:
            close_all(item)
    elif type(fetched) is dict:
        close_all(list(fetched.values()))


async def awaited_within(value: Any) -> Any:
    """What is awaitable in it, awaited, one after the other."""
    if inspect.isawaitable(value):
        return await value
    if not has_awaitables(value):
        return value
    try:
        if type(value) is dict:
            return {key: await awaited_within(item) for key, item in value.items()}
        return type(value)([await awaited_within(item) for item in value])
    except BaseException:
        close_all(value)
        raise
