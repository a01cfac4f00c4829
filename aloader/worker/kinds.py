"""What kind of dataset it is: async or ordinary, read by index or from its front, one by one or together; seen through
torch's wrappers, and by what its classes show. Nothing is fetched here."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch.utils.data import ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset

from aloader.worker.generators import AWAITED, SAMPLE


def parts(dataset: Any) -> Iterator[Any]:
    """A dataset and those inside it, through torch's wrappers (`Subset`, `ConcatDataset`, `StackDataset`)."""
    seen: set[int] = set()
    todo = [dataset]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, str | bytes | int | float | None):
            continue
        seen.add(id(one))
        yield one
        attributes = getattr(one, "__dict__", {})
        inner = attributes.get("datasets", ())
        if isinstance(inner, dict):
            inner = inner.values()
        todo.extend(x for x in (*_few(inner), attributes.get("dataset")) if _is_dataset(x))


def _is_dataset(x: Any) -> bool:
    return hasattr(type(x), "__getitem__") or hasattr(type(x), "__aiter__")


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset is read from its front: torch's `IterableDataset`, or what only `async for` can read."""
    if isinstance(dataset, IterableDataset):
        return True
    return hasattr(type(dataset), "__aiter__") and not hasattr(type(dataset), "__getitem__")


def reads_async(dataset: Any) -> bool:
    """Whether it is read with `async for`; torch's `ChainDataset` is, if any of its parts is."""
    if type(dataset) is ChainDataset:
        return any(map(reads_async, dataset.datasets))
    return hasattr(type(dataset), "__aiter__") and is_iterable(dataset)


def _few(inner: Any) -> list[Any]:
    return list(inner) if isinstance(inner, list | tuple) or type(inner).__name__ == "dict_values" else []


def is_async(dataset: Any) -> bool:
    """Whether a dataset shows that it is async: by a coroutine function, by `async with` or by `async for`."""
    return reads_async(dataset) or any(
        inspect.iscoroutinefunction(getattr(type(part), "__getitem__", None))
        or inspect.iscoroutinefunction(getattr(type(part), "__getitems__", None))
        or hasattr(type(part), "__aenter__")
        for part in parts(dataset)
    )


def is_coroutine_function(dataset: Any) -> bool:
    """Whether its samples are coroutines, of which nothing has run when they are returned."""
    method = getattr(type(dataset), "__getitem__", None)
    if method in (Subset.__getitem__, ConcatDataset.__getitem__, StackDataset.__getitem__):
        return all(map(is_coroutine_function, _inside(dataset)))
    return inspect.iscoroutinefunction(method)


def draws_random_numbers(dataset: Any) -> bool:
    """Whether its samples may draw from the global generators.

    A dataset that says `draws_random_numbers = False`, as do all that are inside it, is spared having them set for each
    step of each sample: most of what an async sample costs here."""
    return not all(getattr(part, "draws_random_numbers", True) is False or _is_torchs(part) for part in parts(dataset))


def _is_torchs(dataset: Any) -> bool:
    return type(dataset) in (Subset, ConcatDataset, StackDataset)


def fetches_together(dataset: Any, seeded: bool = False) -> bool:
    """Whether a batch is fetched by one call. Torch's wrappers only pass it on: where that comes to single samples, and
    each is to be `seeded`, they are fetched so."""
    if not getattr(dataset, "__getitems__", None):
        return False
    by_torch = getattr(type(dataset), "__getitems__", None) in (Subset.__getitems__, StackDataset.__getitems__)
    return not (seeded and by_torch) or any(fetches_together(inner, seeded) for inner in _inside(dataset))


def fetches_one(dataset: Any) -> bool:
    """Whether a sample can be asked for by itself; not where there is only `__getitems__`, and the `__getitem__` that
    torch's class has to be overridden."""
    if type(dataset) is Subset:
        return fetches_one(dataset.dataset)
    own = getattr(type(dataset), "__getitem__", Dataset.__getitem__) is not Dataset.__getitem__
    return own or not hasattr(type(dataset), "__getitems__")


def purpose_of_awaited(dataset: Any, batched: bool) -> str:
    """What the generators are for of an awaitable that was returned: a sample's, or beside those of the call's."""
    return SAMPLE if is_coroutine_function(dataset) and not (batched and fetches_together(dataset, True)) else AWAITED


def _inside(dataset: Any) -> list[Any]:
    """What a wrapper of torch's is around."""
    inner: Any = [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets
    return list(inner.values() if isinstance(inner, dict) else inner)
