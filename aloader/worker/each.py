"""Samples of an ordinary dataset, here and now, where the error of one is not the end of its batch."""

from __future__ import annotations

from typing import Any

from aloader.worker.faulty import Failed, Losses
from aloader.worker.generators import TOGETHER, Seeding
from aloader.worker.kinds import fetches_one, fetches_together


def fetch_carefully(dataset: Any, losses: Losses, progress: Any, seeding: Seeding | None) -> Any:
    """The samples of a ticket (the one sample, if unbatched), with what stands in the place of those that failed. There
    may be awaitables among them. `progress[0]` is set to the position of each before it is fetched. Raises `Failed`.

    What is fetched by one call, and fails, is fetched again, each sample by itself.
    """
    if losses.batched and not losses.apart and fetches_together(dataset, seeding is not None):
        progress[0] = -1
        try:
            if seeding is not None:
                seeding.all(TOGETHER).begin()
            return dataset.__getitems__(losses.indices)
        except BaseException as error:
            if not isinstance(error, Exception):
                raise Failed(-1, error) from None
    return fetch_each(dataset, losses, progress, seeding)


def fetch_each(dataset: Any, losses: Losses, progress: Any, seeding: Seeding | None) -> Any:
    """The same, never by one call."""
    samples = []
    alone = fetches_one(dataset) or not losses.batched
    for position, index in enumerate(losses.indices):
        progress[0] = position
        if seeding is not None:
            seeding.begin(index)
        try:
            if losses.without:
                losses.check(position)
            samples.append(dataset[index] if alone else _only(dataset, index, seeding))
        except BaseException as error:
            samples.append(losses.fell(position, error.cause if isinstance(error, Failed) else error))
    return samples if losses.batched else samples[0]


def _only(dataset: Any, index: Any, seeding: Seeding | None) -> Any:
    """A sample of a dataset that has nothing but `__getitems__`. It draws what it would if it were alone in a batch."""
    if seeding is not None:
        seeding.begin(index, TOGETHER)
    (sample,) = dataset.__getitems__([index])
    return sample
