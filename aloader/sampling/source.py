"""What the loader draws its tickets from: torch's samplers, advanced one ticket at a time.

`RandomSampler` is drawn in another way with the same result, since its own would hold up an event loop: it makes a list
of all its indices (0.4 s for ten million, and 36 bytes each). Here the seed is drawn where torch draws it, the
permutation is made from it in a thread, and each ticket is a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

_PURE: Final = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def is_pure(sampler: Any) -> bool:
    """Whether drawing ahead changes nothing that anybody could see: known by exact type, through `BatchSampler`.

    A `RandomSampler` draws from a generator that it was given once more at its end, when everything has been drawn.
    """
    if type(sampler) is BatchSampler:
        return is_pure(sampler.sampler)
    if type(sampler) is RandomSampler:
        whole = sampler._num_samples is None  # then the length need not be asked for: it may cost
        once = not sampler.replacement and (whole or sampler.num_samples <= len(sampler.data_source))
        return once and sampler.generator is None
    return type(sampler) in _PURE


class SamplerSource:
    """The tickets that a sampler's iterator gives."""

    heavy = False

    def __init__(self, iterator: Iterator[Any], batched: bool = False) -> None:
        self._iterator = iterator
        self._batched = batched
        self.drawn = 0  # samples
        self.exhausted = False

    def prepare(self) -> None:
        """Nothing takes time before the first draw."""

    def draw(self) -> Any:
        """The next ticket's indices. Raises StopIteration at the end, and whatever the sampler raises."""
        try:
            indices = next(self._iterator)
        except StopIteration:
            self.exhausted = True
            raise
        self.drawn += len(indices) if self._batched else 1
        return indices


class PermutedSource:
    """The tickets of `RandomSampler` without replacement (and of `BatchSampler` over it), from its seed."""

    heavy = True

    def __init__(self, n: int, count: int, batch_size: int | None, drop_last: bool) -> None:
        # From the global generator, as the sampler's first `next` does, which torch calls while it makes an iterator.
        self._seed = int(torch.empty((), dtype=torch.int64).random_().item())
        self._n = n
        self._count = count - count % batch_size if drop_last and batch_size else count
        self._step = batch_size or 1
        self._batched = batch_size is not None
        self._at = 0
        self._order: torch.Tensor | None = None

    def prepare(self) -> None:
        """Make the permutation: 25 ns for each index. In a thread."""
        generator = torch.Generator()
        generator.manual_seed(self._seed)
        self._order = torch.randperm(self._n, generator=generator)

    def draw(self) -> Any:
        """The next ticket's indices. Raises StopIteration at the end."""
        assert self._order is not None, "prepare() comes first"
        if self._at >= self._count:
            raise StopIteration
        indices = self._order[self._at : min(self._at + self._step, self._count)].tolist()
        self._at += self._step
        return indices if self._batched else indices[0]

    @property
    def drawn(self) -> int:
        """Samples so far."""
        return min(self._at, self._count)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to draw."""
        return self._at >= self._count


class SharesSource:
    """The tickets of an iterable dataset: all the same, and without end. Workers say when there is nothing left."""

    heavy = False
    drawn = 0  # samples are nobody's to count before they are read
    exhausted = False

    def __init__(self, batch_size: int | None) -> None:
        self._batch_size = batch_size

    def prepare(self) -> None:
        """Nothing takes time before the first draw."""

    def draw(self) -> int | None:
        """How many samples the next ticket is for; None for one that is not batched."""
        return self._batch_size


def source_of(sampler: Iterable[Any], iterator: Iterator[Any]) -> SamplerSource | PermutedSource:
    """The source for a sampler of which `iterator` is a fresh one."""
    batch_size, drop_last, inner = None, False, sampler
    if type(sampler) is BatchSampler:
        batch_size, drop_last, inner = sampler.batch_size, bool(sampler.drop_last), sampler.sampler
    if type(inner) is RandomSampler and is_pure(inner):
        n = len(inner.data_source)
        return PermutedSource(n, n if inner._num_samples is None else inner.num_samples, batch_size, drop_last)
    return SamplerSource(iterator, type(sampler) is BatchSampler)
