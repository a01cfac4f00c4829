"""A loader's passes over its data, one after the other: tells samplers which epoch it is, notices what a program has
forgotten. Nothing here draws, or changes what is drawn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from aloader.sampling.samplers import ShuffledSampler


def samplers_in(*roots: Any) -> list[Any]:
    """These samplers and those inside them, as `BatchSampler` has one."""
    found: list[Any] = []
    todo = list(roots)
    while todo:
        one = todo.pop(0)
        if one is None or any(one is other for other in found):
            continue
        found.append(one)
        attributes = getattr(one, "__dict__", {})
        todo += [attributes.get("sampler"), attributes.get("batch_sampler")]
    return found


def tell_epoch(epoch: int, *roots: Any) -> None:
    """Call `set_epoch` of these samplers and those inside them, where they have it."""
    for sampler in samplers_in(*roots):
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)


class Watched:
    """A pass of a sampler that shuffles by epoch. Sources that draw in another way say themselves how far they are."""

    def __init__(self, iterator: Iterator[Any], began: Callable[[], None], ended: Callable[[], None]) -> None:
        self.iterator = iterator
        self.resumed = False  # the program has asked for this epoch
        self._began = began
        self._ended = ended
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.began()
        try:
            return next(self.iterator)
        except StopIteration:
            self.ended()
            raise

    def began(self) -> None:
        """The first index is drawn, or any other."""
        if not self._begun:
            self._begun = True
            if not self.resumed:
                self._began()

    def ended(self) -> None:
        """The last one has been drawn."""
        self._ended()


class Passes:
    """What a loader remembers of its passes: the epoch of the last one that was drawn to its end, and what was said."""

    def __init__(self) -> None:
        self._drawn_with: int | None = None
        self._said: set[str] = set()

    def begin(self, sampler: Any) -> Iterator[Any]:
        """An iterator of the sampler; one that shuffles by epoch is watched."""
        iterator: Iterator[Any] = iter(sampler)
        for inner in samplers_in(sampler):
            if _is_told_by_the_program(inner):
                return Watched(iterator, partial(self._began, inner), partial(self._ended, inner))
        return iterator

    def _began(self, sampler: Any) -> None:
        if self._drawn_with == sampler.epoch:
            kind = type(sampler).__name__
            self._say(
                "epoch",
                f"this epoch is {kind}'s epoch {sampler.epoch} again, and {kind} shuffles the same way in every epoch: "
                "call loader.set_epoch(epoch) before each one.",
            )

    def _ended(self, sampler: Any) -> None:
        self._drawn_with = sampler.epoch

    def ended(self, sampler: Any, dataset: Any, drawn: int | None) -> None:
        """A pass has come to its end after so many samples: is that still what the dataset has?

        None: drawing was given up with the last worker, which says nothing of the length.
        """
        if drawn is None or "length" in self._said or not _is_of_all(sampler, dataset):
            return
        try:
            now = len(dataset)
        except Exception:  # it could say at the beginning
            return
        left = sampler.batch_size - 1 if type(sampler) is BatchSampler and sampler.drop_last else 0
        if not drawn <= now <= drawn + left:
            self._say(
                "length",
                f"len(dataset) changed during the epoch: it is {now} now, and the epoch had {drawn} samples, by the "
                "length when it began. The next epoch goes by the new one; change a dataset between epochs.",
            )

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            warnings.warn(text, UserWarning, stacklevel=4)


def _is_told_by_the_program(sampler: Any) -> bool:
    """Whether this one shuffles by an epoch that only the program can tell it."""
    shuffles = isinstance(sampler, ShuffledSampler) or (isinstance(sampler, DistributedSampler) and sampler.shuffle)
    return shuffles and not getattr(sampler, "automatic", False)


def _is_of_all(sampler: Any, dataset: Any) -> bool:
    """Whether this is one of torch's samplers that go over the whole dataset, once."""
    inner: Any = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) is RandomSampler and (inner.replacement or inner._num_samples is not None):
        return False
    return type(inner) in (SequentialSampler, RandomSampler) and inner.data_source is dataset
