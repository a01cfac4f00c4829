"""Runs a loader and writes down everything that can be seen of it; compares two such logs entry by entry.

A `Case` says what a loader is made of and how it is consumed. `observe` runs it with torch's loader or with ours, by
`for` or `async for`, from the same seeds. `assert_alike` runs it every way: what differs must be a named row of
`DIFFERENCES` that the case allows, and every row that a case allows must have been seen.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import random
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import aloader

from .differences import DIFFERENCES, Entry, Raised
from .frozen import frozen

SEED = 20_240_601

#: Attributes that frameworks read to make a loader again.
ATTRIBUTES = (
    *("batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "prefetch_factor", "persistent_workers"),
    *("pin_memory_device", "in_order", "_auto_collation", "_dataset_kind"),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """`make` gives fresh arguments for each run; `watch` among them is called at the end of each epoch, for what is to
    be compared beside the batches. `epochs`: how many batches to take of each; None for all of them.
    """

    make: Callable[[], dict[str, Any]]
    epochs: tuple[int | None, ...] = (None,)
    between: Callable[[int, Any], None] | None = None  # called with the epoch's number and the loader, before it
    after_batch: Callable[[Any, Any], Any] | None = None  # called with the loader and each batch; may draw
    allow: frozenset[str] = frozenset()  # rows of `DIFFERENCES`, each of which must be seen
    ask_length: bool = True  # torch notes what it has answered, for streams
    names: tuple[str, ...] = ()  # of the batches, for failures' sake


def observe(kind: Any, case: Case, way: str = "for", **more: Any) -> list[Entry]:
    """Everything that can be seen of one loader, in order."""
    _seed()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log = _Log(caught)
        arguments = case.make()
        try:
            loader = kind(**{key: value for key, value in (arguments | more).items() if key != "watch"})
        except Exception as error:
            log.add("constructor", Raised.of(error))
            return log.entries
        log.add("constructor", [(name, repr(getattr(loader, name))) for name in ATTRIBUTES])
        if case.ask_length:
            log.add("length", _attempt(lambda: len(loader)))
        step = _Steps(log, case, loader, arguments)
        if way == "for":
            step.all()
        else:
            asyncio.run(step.all_async())
        if isinstance(loader, aloader.DataLoader):
            loader.close()
        loader._iterator = None
    return log.entries


def _seed() -> None:
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED % 2**32)


class _Log:
    def __init__(self, caught: list[warnings.WarningMessage]) -> None:
        self.entries: list[Entry] = []
        self._caught = caught

    def add(self, what: str, value: Any) -> None:
        """One entry; and another for the warnings since the last."""
        self.entries.append(Entry(what, value))
        said = [(w.category.__name__, str(w.message)) for w in self._caught]
        said = [warning for warning in said if "Triggered internally" not in warning[1]]  # torch's, once in a process
        self._caught.clear()
        if said:
            self.entries.append(Entry(f"{what}: warnings", said))


class _Steps:
    """The epochs of one loader."""

    def __init__(self, log: _Log, case: Case, loader: Any, arguments: dict[str, Any]) -> None:
        self._log = log
        self._case = case
        self._loader = loader
        self._generators = [v for v in (arguments.get("generator"), _generator_in(arguments)) if v is not None]
        self._watch = arguments.get("watch")
        self._names = iter(case.names)

    def all(self) -> None:
        for number, most in enumerate(self._case.epochs):
            self._begin(number)
            self._epoch(number, most)
            self._end(number)

    def _epoch(self, number: int, most: int | None) -> None:
        """Its iterator is dropped at the end, as after a loop that was left."""
        batches = self._made(number, lambda: iter(self._loader))
        while batches is not None and most != 0 and self._next(number, lambda: next(batches)):
            most = None if most is None else most - 1

    async def all_async(self) -> None:
        for number, most in enumerate(self._case.epochs):
            self._begin(number)
            batches: AsyncIterator[Any] | None = self._made(number, lambda: aiter(self._loader))
            while batches is not None and most != 0:
                outcome = await _outcome(batches)
                if not self._next(number, lambda outcome=outcome: outcome()):
                    break
                most = None if most is None else most - 1
            if batches is not None:
                await batches.aclose()  # type: ignore[attr-defined]
            self._end(number)

    def _begin(self, number: int) -> None:
        if self._case.between is not None:
            self._case.between(number, self._loader)

    def _made(self, number: int, make: Callable[[], Any]) -> Any:
        try:
            made = make()
        except Exception as error:
            self._log.add(f"epoch {number}: iter", Raised.of(error))
            return None
        self._log.add(f"epoch {number}: iter", _states(self._generators))
        return made

    def _next(self, number: int, step: Callable[[], Any]) -> bool:
        """Whether to go on."""
        name = next(self._names, "")
        try:
            batch = step()
        except StopIteration:
            return False
        except Exception as error:
            self._log.add(f"epoch {number}: error {name}".strip(), Raised.of(error))
        else:
            self._log.add(f"epoch {number}: batch {name}".strip(), frozen(batch))
            if self._case.after_batch is not None:
                self._log.add(f"epoch {number}: consumer", frozen(self._case.after_batch(self._loader, batch)))
        self._log.add(f"epoch {number}: generators", _states(self._generators))
        return True

    def _end(self, number: int) -> None:
        self._log.add(f"epoch {number}: end", _states(self._generators))
        if self._watch is not None:
            self._log.add(f"epoch {number}: watched", frozen(self._watch()))


async def _outcome(batches: AsyncIterator[Any]) -> Callable[[], Any]:
    """What `anext` gives, as a call that gives it."""
    try:
        batch = await anext(batches)
    except StopAsyncIteration:
        return _raising(StopIteration())
    except Exception as error:
        return _raising(error)
    return lambda: batch


def _raising(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def _attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return Raised.of(error)


def _generator_in(arguments: dict[str, Any]) -> Any:
    """The generator of a sampler, also of one inside a batch sampler."""
    sampler = arguments.get("sampler") or arguments.get("batch_sampler")
    return getattr(getattr(sampler, "sampler", sampler), "generator", None)


def _states(generators: list[torch.Generator]) -> tuple[str, ...]:
    """The random state of this process: torch's, Python's, numpy's, and that of the generators given."""
    states = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode()]
    states.append(repr(np.random.get_state(legacy=False)["state"]).encode() + np.random.get_state()[1].tobytes())
    states += [generator.get_state().numpy().tobytes() for generator in generators]
    return tuple(hashlib.sha1(state).hexdigest()[:12] for state in states)


# -- comparing --------------------------------------------------------------------------------------------------------


class Mismatch(NamedTuple):
    """A pair of entries that nothing explains."""

    place: int
    torch: Entry | None
    ours: Entry | None


def compare(torchs: list[Entry], ours: list[Entry], allow: frozenset[str]) -> tuple[set[str], list[Mismatch]]:
    """The rows of `DIFFERENCES` that were needed, and the first thing that none of the allowed ones explains."""
    used: set[str] = set()
    place = 0
    left, right = list(torchs), list(ours)
    while left or right:
        if left and right and left[0] == right[0]:
            del left[0], right[0]
        else:
            for name in sorted(allow):
                taken = DIFFERENCES[name].explains(left, right)
                if taken is not None:
                    used.add(name)
                    del left[: taken[0]], right[: taken[1]]
                    break
            else:
                return used, [Mismatch(place, left[0] if left else None, right[0] if right else None)]
        place += 1
    return used, []


WAYS = ("for", "async for")


def assert_alike(case: Case, *, ways: tuple[str, ...] = WAYS, fork: bool = True) -> None:
    """Torch's loader and ours, run every way, cannot be told apart but by what the case allows.

    `fork`: our workers are forked, as torch's are, which is much cheaper than a template for each loader: where it is
    the default start that is looked at, one way of iterating is enough.
    """
    forked = {"multiprocessing_context": "fork"} if case.make().get("num_workers") else {}
    torchs = observe(TorchDataLoader, case, **forked)
    used: set[str] = set()
    for way in ways:
        ours = observe(aloader.DataLoader, case, way, **(forked if fork else {}))
        explained, mismatches = compare(torchs, ours, case.allow)
        used |= explained
        assert not mismatches, _describe(way, mismatches[0], torchs)
    assert used == case.allow, f"these differences are allowed, and were not seen: {sorted(case.allow - used)}"


def _describe(way: str, mismatch: Mismatch, torchs: list[Entry]) -> str:
    lines = [f"by `{way}`, at entry {mismatch.place} of {len(torchs)}:"]
    for name, entry in (("torch", mismatch.torch), ("ours ", mismatch.ours)):
        lines.append(f"  {name}: " + ("nothing" if entry is None else f"{entry.what} = {_short(entry.value)}"))
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 1500 else f"{text[:1500]}…"
