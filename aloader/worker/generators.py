"""Random generators of each sample's own, so that its numbers do not depend on what else is made, where and when.

Every sample has a number, a function of the epoch's key and its index (`sampling.keys`). Before its code runs, the
global generators are seeded from that. An async sample is run step by step: they are put in place before each step, as
the sample left them, and what they have become is kept after it. Nobody in between sees them, nor do tasks and threads
that the sample begins: for these there is `sample_rng()`, which goes by a context variable, as they inherit it.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import Any, Final

import numpy as np
import torch

from aloader.channel.messages import Ticket
from aloader.channel.states import Generators, State
from aloader.sampling.keys import sample_key

#: What a number is for: one sample; a call for all of a batch; what is awaited of a call's result; …
SAMPLE: Final = "sample"
TOGETHER: Final = "together"
AWAITED: Final = "awaited"
TOGETHER_AWAITED: Final = "together, awaited"
COLLATE: Final = "collate"
OPEN: Final = "open"

_NO_SAMPLE: Final = (
    "aloader.sample_rng() is for code that a loader runs for a sample or a batch (__getitem__, collate_fn, tasks and "
    "threads that it begins), and this is none. A thread pool of yours does not know whose work it does: call "
    "sample_rng() first and hand the generator over, or use asyncio.to_thread. Elsewhere use a numpy.random.default_rng"
)


class Own:
    """The generators of one sample. Inside its `with`, the global ones are its own, as it left them."""

    __slots__ = ("_generators", "_left", "_name", "_outside", "_rng", "_token")

    def __init__(self, name: tuple[int, Any, str], generators: Generators | None = None) -> None:
        self._name = name  # its number follows from that, and not everybody needs it
        self._generators = generators  # None: they are left alone
        self._left: State | None = None
        self._outside: State | None = None
        self._rng: np.random.Generator | None = None
        self._token: Token[Own | Unseeded | None]

    @property
    def _number(self) -> int:
        return sample_key(*self._name)

    def rng(self) -> np.random.Generator:
        """The generator that `sample_rng` gives."""
        if self._rng is None:
            self._rng = np.random.Generator(np.random.Philox(key=self._number))
        return self._rng

    def begin(self) -> None:
        """Seed the global generators for it, until others do."""
        if self._generators is not None:
            self._generators.seed(self._number)
        _current.set(self)

    def __enter__(self) -> None:
        self._token = _current.set(self)
        generators = self._generators
        if generators is None:
            return
        if generators.shared:
            self._outside = generators.take(anybodys=True)
        if self._left is None:
            generators.seed(self._number)
        else:
            generators.put(self._left)

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._token)
        if self._generators is None:
            return
        self._left = self._generators.take()
        if self._outside is not None:
            self._generators.put(self._outside)
            self._outside = None


class Unseeded:
    """A sample that draws from its worker's generators, as torch's do."""

    def rng(self) -> np.random.Generator:
        """A new one each time, seeded by a draw from torch's."""
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=torch.default_generator))
        return np.random.Generator(np.random.Philox(key=seed))


UNSEEDED: Final = Unseeded()

_current: Final[ContextVar[Own | Unseeded | None]] = ContextVar("aloader_sample", default=None)


def sample_rng() -> np.random.Generator:
    """The random generator of the sample that is being made: its numbers are a function of seed, epoch and index.

    For code of a dataset, also in tasks and threads that it begins (`asyncio.gather`, `asyncio.to_thread`), where the
    global generators are not the sample's. In one sample it is one object, which goes on; in `collate_fn` it is the
    batch's. It is not safe for several threads at once: let each `spawn` one of it, before they begin.

    An ordinary dataset without `seed=` has no such numbers: each call gives a new generator, seeded from torch's global
    one. Raises RuntimeError where no sample is being made.
    """
    current = _current.get()
    if current is None:
        raise RuntimeError(_NO_SAMPLE)
    return current.rng()


def unseeded() -> None:
    """From here on in this context, samples draw from the worker's generators."""
    _current.set(UNSEEDED)


def nobodys() -> None:
    """From here on in this context, no sample is being made."""
    _current.set(None)


class Seeding:
    """How the code of one ticket is seeded. `names` are what its samples are known by; the first stands for the batch.

    Of an iterable dataset they are known as they are read: which share it is, and the place in it.
    """

    def __init__(self, generators: Generators | None, key: int, names: list[Any]) -> None:
        self.generators = generators  # None: they are left alone
        self._key = key
        self.names = names

    @classmethod
    def of(cls, generators: Generators | None, ticket: Ticket, batched: bool, iterable: bool = False) -> Seeding | None:
        """Of a ticket, if it has a key. Where its indices can be read but once, or not at all, the batch is known by
        its place in the epoch."""
        if ticket.key is None:
            return None
        indices: Any = ticket.indices
        if iterable:
            return cls(generators, ticket.key, [])
        if batched:
            readable = hasattr(type(indices), "__iter__") and not hasattr(type(indices), "__next__")
            return cls(generators, ticket.key, list(indices) if readable else [f"batch {ticket.seq}"])
        return cls(generators, ticket.key, [indices])

    def without_generators(self) -> Seeding:
        """The same for threads, which cannot have the global generators each for itself: they have `sample_rng`."""
        return Seeding(None, self._key, self.names)

    def own(self, name: Any, purpose: str = SAMPLE) -> Own:
        """The generators of a sample, or of a `purpose` that is named by one."""
        return Own((self._key, name, purpose), self.generators)

    def begin(self, name: Any, purpose: str = SAMPLE) -> None:
        """Seed the global generators for it, until others do."""
        self.own(name, purpose).begin()

    def each(self, indices: Any) -> Iterator[Any]:
        """These indices; the generators are seeded for each as it is taken."""
        for index in indices:
            self.begin(index)
            yield index

    def all(self, purpose: str) -> Own:
        """The generators for something that is done for the whole batch."""
        return self.own(self.names[0] if self.names else None, purpose)

    def name(self, position: int) -> Any:
        """What the sample at a position is known by."""
        return self.names[position] if position < len(self.names) else (*self.names[:1], position)


@contextmanager
def kept(generators: Generators | None) -> Iterator[None]:
    """Afterwards the process's generators are as they were, and so is whose sample it is."""
    before, token = None if generators is None else generators.get(), _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)
        if generators is not None and before is not None:
            generators.put(before)


@types.coroutine
def driven(place: AbstractContextManager[Any], coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A coroutine each of whose steps is taken inside the place's `with`; what is done in between is not."""
    error: BaseException | None = None
    while True:
        with place:
            try:
                future = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
        error = None
        try:
            yield future
        except BaseException as raised:
            error = raised
