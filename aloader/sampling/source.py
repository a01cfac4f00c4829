"""What the loader draws its tickets from: samplers, advanced one ticket at a time, from any place of a pass.

Without a state, everything is drawn from torch's generators as torch's loader draws it. With one, nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from aloader.sampling.memories import leaf_of
from aloader.sampling.ordered import OrderSource, is_one_permutation, ordered_source
from aloader.sampling.passes import Watched
from aloader.sampling.replayed import SamplerSource, replayed_source
from aloader.sampling.samplers import DistributedSampler, ShuffledSampler

__all__ = ["OrderSource", "SamplerSource", "SharesSource", "TicketSource", "is_pure", "source_of", "tickets_of"]

_PURE: Final = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    TorchDistributedSampler,
    ShuffledSampler,
    DistributedSampler,
)


class TicketSource(Protocol):
    """One pass, ticket by ticket."""

    @property
    def heavy(self) -> bool:
        """Whether `prepare` takes longer than a loop may be held up."""

    @property
    def first(self) -> int:
        """The number within the epoch of the first ticket that it gives: not 0 where a pass is taken up."""

    @property
    def drawn(self) -> int:
        """Samples so far, with those before the place where it began."""

    @property
    def exhausted(self) -> bool:
        """Whether it is known that nothing is left to draw."""

    def prepare(self) -> None:
        """Whatever takes time before the first draw. May run in a thread."""

    def draw(self) -> Any:
        """The next ticket's indices. Raises StopIteration at the end, and whatever the sampler raises."""

    def state(self, batches: int) -> dict[str, Any]:
        """What to note, as JSON can hold it, so that a later source goes on after the epoch's first so many tickets.

        At any moment, and again; `batches` is `first` at least, and what was drawn so far at most.
        """


def is_pure(sampler: Any) -> bool:
    """Whether drawing ahead changes nothing that anybody could see: known by exact type, through `BatchSampler`.

    A `RandomSampler` draws from a generator that it was given once more at its end, when everything has been drawn.
    """
    leaf = leaf_of(sampler)
    return is_one_permutation(leaf) if type(leaf) is RandomSampler else type(leaf) in _PURE


class SharesSource:
    """The tickets of an iterable dataset: all the same, and without end. Workers say when there is nothing left."""

    heavy = False
    first = 0
    drawn = 0  # samples are nobody's to count before they are read
    exhausted = False

    def __init__(self, batch_size: int | None) -> None:
        self._batch_size = batch_size

    def prepare(self) -> None:
        """Nothing takes time before the first draw."""

    def draw(self) -> int | None:
        """How many samples the next ticket is for; None for one that is not batched."""
        return self._batch_size

    def state(self, batches: int) -> dict[str, Any]:
        """What is left is the dataset's to say."""
        return {}


def source_of(sampler: Iterable[Any], iterator: Iterator[Any], state: dict[str, Any] | None = None) -> TicketSource:
    """The source for a sampler of which `iterator` is a fresh one, from its beginning or from a state on.

    Raises ValueError for a state of another kind of sampler, of other data or of another seed.
    """
    watch = iterator if isinstance(iterator, Watched) else None
    batching = _batching_of(sampler)
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    source = ordered_source(inner, batching, watch, state or None)
    return replayed_source(sampler, iterator, state or None) if source is None else source


def tickets_of(sampler: Any) -> int:
    """How many tickets a whole pass has: `len(sampler)`, and with `ends="even"` as many as on every other rank."""
    if type(sampler) is BatchSampler and type(sampler.sampler) is ShuffledSampler:
        return sampler.sampler.share(0, *_batching_of(sampler)).tickets
    return len(sampler)


def _batching_of(sampler: Any) -> tuple[int | None, bool]:
    if type(sampler) is BatchSampler:
        return sampler.batch_size, bool(sampler.drop_last)
    return None, False
