"""Checks of a loader's arguments beyond torch's own, which run first: an error names the argument and the remedy."""

from __future__ import annotations

import operator
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe, SequentialSampler

from aloader.pool.pool import NO_WORKERS, WorkerPool


class Unasked(int):
    """The `prefetch_factor` that a loader shows where none was given: torch's number. Whoever makes the loader again
    from its attributes, as frameworks do, does not ask for it thereby."""


def asked(prefetch_factor: int | None) -> int | None:
    """The `prefetch_factor` that somebody wants, if anybody does."""
    return None if isinstance(prefetch_factor, Unasked) else prefetch_factor


def check_num_workers(num_workers: Any) -> None:
    """Before torch compares it."""
    try:
        count = operator.index(num_workers)
    except TypeError:
        raise TypeError(f"num_workers option should be an integer, but got num_workers={num_workers!r}") from None
    if count > 0 and not WorkerPool.available():
        raise RuntimeError(NO_WORKERS)


def check_dataset(loader: TorchDataLoader[Any]) -> None:
    """Whether the dataset is of a kind that can be loaded."""
    dataset = loader.dataset
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        raise NotImplementedError("DataPipes are not supported: give the loader a Dataset, or use torch's loader")
    iterable = isinstance(dataset, IterableDataset) or (
        hasattr(type(dataset), "__aiter__") and not hasattr(type(dataset), "__getitem__")
    )
    if iterable:
        raise NotImplementedError(
            f"iterable-style datasets are not supported yet, and {type(dataset).__name__} is one: "
            "give it __getitem__ and __len__, or use torch's own loader for it"
        )
    own_order = type(loader.sampler) is not SequentialSampler or loader.batch_size is None
    if not hasattr(type(dataset), "__len__") and not own_order:
        raise TypeError(
            f"object of type {type(dataset).__name__!r} has no len(): give the dataset __len__, "
            "or the loader a sampler or batch_sampler that says which samples there are"
        )


def check_more(loader: TorchDataLoader[Any], light: bool, prefetch_factor: int | None, concurrency: Any) -> None:
    """`light`: an async dataset on the user's own loop."""
    if concurrency is not None and not isinstance(concurrency, int):
        raise TypeError(f"concurrency option should be an integer, but got concurrency={concurrency!r}")
    if concurrency is not None and concurrency < 1:
        raise ValueError(f"concurrency option should be positive, but got concurrency={concurrency!r}")
    if concurrency is not None and loader.num_workers == 0 and not light:
        raise ValueError(
            "concurrency option needs num_workers > 0 or an async dataset: without workers, "
            "samples of an ordinary dataset are fetched one after the other, as by torch"
        )
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(
            "prefetch_factor option should be non-negative"
            if prefetch_factor < 0
            else "prefetch_factor option should be positive: with 0 no worker would ever get a batch to make"
        )
    if loader.timeout > 0 and loader.num_workers == 0 and not light:
        raise ValueError("timeout option needs num_workers > 0: in this process, nothing can be timed out")
