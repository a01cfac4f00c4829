"""Who holds memory of a loader's batches: by which variables tensors are reached that lie in it. For a warning, once.

The collector could say what refers to an object, but it looks at all that there are, and holds the program up for as
long. So variables are followed from the functions that run and from `__main__`, containers and attributes first near
and then further away, and no further than `_MOST_STEPS`: some ten milliseconds. What is not found so is not told.
"""

from __future__ import annotations

import inspect
import os
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import torch

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MOST_STEPS: Final = 20_000
#: References to the copy of a frame's variables: the frame's, ours, and that of who counts. With more it is somebody's,
#: by `locals()`, and not ours to clear.
_FRAMES_OWN: Final = 3
_LEAVES: Final = (str, bytes, int, float, complex, type(None), type, ModuleType, FunctionType, np.generic)


class Span(NamedTuple):
    """Memory that a batch lies in."""

    address: int
    nbytes: int


class Holder(NamedTuple):
    """A variable, in words, and what is reached by it: bytes, and what the largest leaf is."""

    name: str
    nbytes: int
    largest: str


class _Place(NamedTuple):
    """Where a search has got to: the variable or attribute, and in what scope that is."""

    path: str
    kind: str
    scope: str

    def __str__(self) -> str:
        return f"{self.kind} `{self.path}` in {self.scope}"


def holders(spans: Iterable[Span], frame: FrameType | None = None) -> list[Holder]:
    """The variables by which leaves in these spans are reached, those of most bytes first; each leaf counts once.

    Of what runs, the calls that `frame` is in are looked at; without one, those of all threads.
    """
    ordered = sorted(spans)
    found: dict[_Place, dict[int, tuple[int, str]]] = {}
    taken: set[int] = set()
    for place, leaf in _reached(_roots(frame)):
        span = _span_of(leaf, ordered)
        if span is not None and span.address not in taken:
            taken.add(span.address)
            found.setdefault(place, {})[span.address] = span.nbytes, _described(leaf)
    told = [
        Holder(str(place), sum(nbytes for nbytes, _ in leaves.values()), max(leaves.values())[1])
        for place, leaves in found.items()
    ]
    return sorted(told, key=lambda holder: -holder.nbytes)


def _span_of(leaf: Any, spans: Sequence[Span]) -> Span | None:
    try:
        address = leaf.data_ptr() if isinstance(leaf, torch.Tensor) else leaf.__array_interface__["data"][0]
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return None
    at = bisect_right(spans, (address, sys.maxsize)) - 1
    if at < 0 or address >= spans[at].address + spans[at].nbytes:
        return None
    return spans[at]


def _described(leaf: Any) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"


def _roots(frame: FrameType | None) -> Iterator[tuple[_Place, Any]]:
    """The variables of functions that run, the innermost first, and of `__main__`."""
    begin = [frame] if frame is not None else list(sys._current_frames().values())
    for innermost in begin:
        one: FrameType | None = innermost
        while one is not None:
            code = one.f_code
            if code.co_flags & inspect.CO_OPTIMIZED and not code.co_filename.startswith(_PACKAGE):
                variables = one.f_locals
                scope = f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{one.f_lineno})"
                yield from [(_Place(name, _kind(value), scope), value) for name, value in variables.items()]
                if sys.version_info < (3, 13) and sys.getrefcount(variables) <= _FRAMES_OWN:
                    variables.clear()  # a copy, which would hold what it has for as long as the function runs
            one = one.f_back
    main = sys.modules.get("__main__")
    yield from [(_Place(name, _kind(value), "__main__"), value) for name, value in list(vars(main).items())]


def _kind(value: Any) -> str:
    return type(value).__name__


def _reached(roots: Iterable[tuple[_Place, Any]]) -> Iterator[tuple[_Place, Any]]:
    """Tensors and arrays, each once, by the shortest way."""
    waiting = deque(roots)
    seen: set[int] = set()
    steps = 0
    while waiting and steps < _MOST_STEPS:
        place, value = waiting.popleft()
        steps += 1
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor | np.ndarray):
            yield place, value
        elif (room := _MOST_STEPS - steps - len(waiting)) > 0:  # what comes behind will not be looked at
            waiting.extend(_inside(place, value, -(-room // 2)))  # and others shall have some of it


def _inside(place: _Place, value: Any, most: int) -> list[tuple[_Place, Any]]:
    """What a container holds, under its name, and what an object's attributes are, under theirs: so many at most."""
    try:
        if isinstance(value, dict):
            return [(place, item) for item in list(islice(value.values(), most))]
        if isinstance(value, list | tuple | set | frozenset | deque):
            return [(place, item) for item in list(islice(value, most))]
        attributes = value.__dict__
        if type(attributes) is not dict:
            return []
        named = list(attributes.items())
    except Exception:  # somebody's class, or a container that another thread changes
        return []
    return [(_Place(f"{place.path}.{name}", _kind(item), place.scope), item) for name, item in named]
