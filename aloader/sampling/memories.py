"""What is noted of a pass that can only be replayed: what has to be as it was, and where the replay begins.

That is a generator's state, or what the sampler's own `state_dict` said. A sampler is asked only at the beginning of a
pass, after its first ticket, and when somebody asks for a state, so that nothing is paid for each batch; what has to be
replayed is what lies between two times that somebody asked, and what was drawn ahead.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from aloader.sampling import generators, jsonable
from aloader.sampling.passes import samplers_in, tell_epoch


class Place(NamedTuple):
    """Where a pass is taken up: tickets and samples that are gone where the iterator begins, and tickets to drop."""

    tickets: int = 0
    samples: int = 0
    skip: int = 0


class Memory(Protocol):
    """See the top of this file."""

    @property
    def kind(self) -> str:
        """Which kind of note it is, in a state."""

    def resume(self, state: dict[str, Any], iterator: Iterator[Any]) -> Iterator[Any]:
        """Take up what was noted; the iterator to begin with. Raises ValueError for notes of another kind."""

    def begin(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Just before the first draw: note what the pass depends on. The iterator to draw from."""

    def mark(self, tickets: int, samples: int, *, ended: bool) -> None:
        """So many tickets have been drawn, and it is a good moment to note something. `ended`: those were all."""

    def state(self, batches: int) -> tuple[Place, dict[str, Any]]:
        """Where to begin to go on after so many tickets, and what must be as it was there."""


def memory_of(sampler: Any, iterator: Iterator[Any]) -> Memory:
    """What can be noted of a sampler of which this is an iterator."""
    leaf = leaf_of(sampler)
    if type(leaf) is RandomSampler and leaf.generator is None:
        return Seed(sampler)
    if type(leaf) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        return Drawing(sampler)
    for where, holder in {"iterator": iterator, "sampler": sampler, "inner": leaf}.items():
        if all(callable(getattr(holder, name, None)) for name in ("state_dict", "load_state_dict")):
            return Marks(sampler, where, holder)
    return Plain(sampler)


class Plain:
    """Of a sampler that says nothing of itself: its epoch, if it has one, and how far the pass was.

    One that draws from a global generator gives the same again only if the program has seeded that as before.
    """

    kind: ClassVar[str] = "replayed"

    def __init__(self, sampler: Any = None) -> None:
        self._sampler = sampler
        self._epoch: int | None = None

    def resume(self, state: dict[str, Any], iterator: Iterator[Any]) -> Iterator[Any]:
        _check_kind(self.kind, state)
        return _again(self._sampler, state, iterator)

    def begin(self, iterator: Iterator[Any]) -> Iterator[Any]:
        self._epoch = _epoch_of(self._sampler)
        return iterator

    def mark(self, tickets: int, samples: int, *, ended: bool) -> None:
        """There is nobody to ask."""

    def state(self, batches: int) -> tuple[Place, dict[str, Any]]:
        return Place(skip=batches), {} if self._epoch is None else {"epoch": self._epoch}


class Marks:
    """Of a sampler with `state_dict` and `load_state_dict`: what it said at the beginning, and whenever asked later.

    It is asked again after the first ticket because one whose `__iter__` is a generator may begin its pass, and forget
    the last one, only when that is drawn: what it says before is then of the end of the last pass. In the same way,
    what it says behind the last ticket may be of the beginning of the next pass: then this one draws nothing from it.
    """

    kind: ClassVar[str] = "stateful"

    def __init__(self, sampler: Any, where: str, holder: Any) -> None:
        self._sampler = sampler
        self._where = where
        self._holder = holder
        self._marks: list[tuple[Place, dict[str, Any]]] = []
        self._over = False  # it goes on with its next pass

    def resume(self, state: dict[str, Any], iterator: Iterator[Any]) -> Iterator[Any]:
        if state["kind"] == Plain.kind:  # noted when it had no such methods
            return _again(self._sampler, state, iterator)
        _check_kind(self.kind, state)
        if state["holder"] != self._where:
            raise ValueError(
                f"this state holds what the state_dict() of the {state['holder']} said, and it is the {self._where} "
                "that has one now: load the state where the sampler is of the same kind"
            )
        self._over = state["ended"]
        said = {"state": state["state"], "ended": self._over}
        self._marks = [(Place(state["tickets"], state["samples"]), said)]
        if self._over and self._where == "iterator":
            return iter(())  # with which its state was gone, too
        self._holder.load_state_dict(jsonable.decode(state["state"]))
        return iter(self._sampler) if self._where == "sampler" and not self._over else iterator

    def begin(self, iterator: Iterator[Any]) -> Iterator[Any]:
        if self._over:
            return iter(())
        if self._where == "inner":  # so that it has begun its pass when it is asked; torch begins it at the first draw
            iterator = iter(with_leaf(self._sampler, iter(self._holder)))
        if not self._marks:
            self._note(Place(), ended=False)
        return iterator

    def mark(self, tickets: int, samples: int, *, ended: bool) -> None:
        if tickets > self._marks[-1][0].tickets:
            self._note(Place(tickets, samples), ended=ended)

    def state(self, batches: int) -> tuple[Place, dict[str, Any]]:
        while len(self._marks) > 1 and self._marks[1][0].tickets <= batches:
            del self._marks[0]
        place, said = self._marks[0]
        return place._replace(skip=batches - place.tickets), {"holder": self._where, **said}

    def _note(self, place: Place, *, ended: bool) -> None:
        said = jsonable.encode(self._holder.state_dict(), "the sampler's state_dict()")
        self._marks.append((place, {"state": said, "ended": ended}))


class Seed:
    """Of a `RandomSampler` that draws a seed from the global generator, and all else from a generator of its own."""

    kind: ClassVar[str] = "seeded"

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._seed: int | None = None

    def resume(self, state: dict[str, Any], iterator: Iterator[Any]) -> Iterator[Any]:
        _check_kind(self.kind, state)
        self._seed = int(state["seed"])
        return iterator

    def begin(self, iterator: Iterator[Any]) -> Iterator[Any]:
        if self._seed is None:
            self._seed = int(torch.empty((), dtype=torch.int64).random_().item())  # as its first `next` does
        return _drawing_from(torch.Generator().manual_seed(self._seed), self._sampler)

    def mark(self, tickets: int, samples: int, *, ended: bool) -> None:
        """The seed says it all."""

    def state(self, batches: int) -> tuple[Place, dict[str, Any]]:
        return Place(skip=batches), {"seed": self._seed}


class Drawing:
    """Of a sampler that draws from a generator, its own or the global one: the state of that at the first draw."""

    kind: ClassVar[str] = "drawing"

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._generator: torch.Generator | None = leaf_of(sampler).generator
        self._note: dict[str, Any] = {}

    def resume(self, state: dict[str, Any], iterator: Iterator[Any]) -> Iterator[Any]:
        _check_kind(self.kind, state)
        self._note = state["generator"]
        return iterator

    def begin(self, iterator: Iterator[Any]) -> Iterator[Any]:
        if not self._note:
            self._note = generators.noted(self._generator)
        elif self._generator is None:  # nobody else's random numbers change because a pass is taken up
            return _drawn(_drawing_from(generators.restored(self._note), self._sampler))
        else:
            generators.restored(self._note, self._generator)
        return _drawn(iterator)

    def mark(self, tickets: int, samples: int, *, ended: bool) -> None:
        """The generator's state says it all."""

    def state(self, batches: int) -> tuple[Place, dict[str, Any]]:
        return Place(skip=batches), {"generator": self._note}


def leaf_of(sampler: Any) -> Any:
    """What lies inside of torch's batch samplers, each of which draws just what it gives."""
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return sampler


def with_leaf(sampler: Any, leaf: Any) -> Any:
    """The same batch samplers around another leaf."""
    if type(sampler) is BatchSampler:
        return BatchSampler(with_leaf(sampler.sampler, leaf), sampler.batch_size, sampler.drop_last)
    return leaf


def _drawn(iterator: Iterator[Any]) -> Iterator[Any]:
    """The same, with what it draws at random drawn: whoever draws from its generator after a state was taken, and
    before the pass begins, does not change what the state says."""
    for first in iterator:
        return itertools.chain([first], iterator)
    return iter(())


def _drawing_from(generator: torch.Generator, sampler: Any) -> Iterator[Any]:
    """An iterator of the same sampler that draws from this generator."""
    leaf = copy.copy(leaf_of(sampler))
    leaf.generator = generator
    return iter(with_leaf(sampler, leaf))


def _epoch_of(sampler: Any) -> int | None:
    """The epoch that a sampler has been told, where one can ask it."""
    for one in samplers_in(sampler):
        epoch = getattr(one, "epoch", None)
        if type(epoch) is int and callable(getattr(one, "set_epoch", None)):
            return epoch
    return None


def _again(sampler: Any, state: dict[str, Any], iterator: Iterator[Any]) -> Iterator[Any]:
    """An iterator of the epoch that was noted."""
    if state.get("epoch") in (None, _epoch_of(sampler)):
        return iterator
    tell_epoch(int(state["epoch"]), sampler)
    return iter(sampler)


def _check_kind(kind: str, state: dict[str, Any]) -> None:
    if state["kind"] != kind:
        raise ValueError(
            f"this state was taken of a sampler of the kind {state['kind']!r}, and this one is of the kind {kind!r}: "
            "load it where the sampler is the same, or begin anew without it"
        )
