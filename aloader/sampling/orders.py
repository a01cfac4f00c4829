"""Whole orders of a dataset's indices, of which any part can be had: what samplers and sources take their shares of."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Protocol

import torch

from aloader.sampling.permutation import Permutation
from aloader.sampling.shares import Share

#: Indices that are made at a time, in half a millisecond; more for a batch that is larger. Each of our own permutation
#: takes 54 ns so; it would take 73 with 4096, and 48 with 16384.
BLOCK: Final = 8192

#: A permutation of more takes longer than a loop may be held up: 25 ns for each index.
LONG: Final = 2**16


class Order(Protocol):
    """A pass's indices, in order; the samples at its positions."""

    @property
    def heavy(self) -> bool:
        """Whether `prepare` takes longer than a loop may be held up."""

    def prepare(self) -> None:
        """Whatever takes time. May run in a thread, and again."""

    def slice(self, start: int, stop: int, step: int) -> list[int]:
        """The indices at positions start, start + step, … below stop."""

    def note(self) -> dict[str, Any]:
        """What it takes to have the same order again."""


class Straight:
    """0, 1, 2, …"""

    heavy: ClassVar[bool] = False

    def __init__(self, **note: Any) -> None:
        self._note = note

    def prepare(self) -> None:
        """Nothing takes time."""

    def slice(self, start: int, stop: int, step: int) -> list[int]:
        return list(range(start, stop, step))

    def note(self) -> dict[str, Any]:
        return self._note


class Permuted:
    """Torch's permutation of n under a seed: as many indices of 8 bytes, made when they are asked for."""

    def __init__(self, n: int, torch_seed: int, **note: Any) -> None:
        self._n = n
        self._torch_seed = torch_seed
        self._note = note
        self._indices: torch.Tensor | None = None

    @property
    def heavy(self) -> bool:
        return self._n > LONG

    def prepare(self) -> None:
        """Make the permutation: 25 ns for each index. In a thread."""
        self._made()

    def slice(self, start: int, stop: int, step: int) -> list[int]:
        indices: list[int] = self._made()[start:stop:step].tolist()
        return indices

    def note(self) -> dict[str, Any]:
        return self._note

    def _made(self) -> torch.Tensor:
        if self._indices is None:
            generator = torch.Generator()
            generator.manual_seed(self._torch_seed)
            self._indices = torch.randperm(self._n, generator=generator)
        return self._indices


class Shuffled:
    """Our own permutation of n: no memory, and any place of it at once."""

    heavy: ClassVar[bool] = False

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self._permutation = Permutation(n, seed, epoch)
        self._note = {"epoch": epoch}

    def prepare(self) -> None:
        """Nothing takes time."""

    def slice(self, start: int, stop: int, step: int) -> list[int]:
        indices: list[int] = self._permutation.slice(start, stop, step).tolist()
        return indices

    def note(self) -> dict[str, Any]:
        return self._note


def indices_of(order: Order, share: Share, first: int, last: int) -> list[int]:
    """A rank's samples from its `first` up to its `last` (exclusive). After the order's end comes its beginning."""
    start, stop = share.position(first), share.position(last)
    indices = order.slice(start, min(stop, share.total), share.world_size) if start < share.total else []
    for position in range(start + len(indices) * share.world_size, stop, share.world_size):
        again = position % share.total
        indices += order.slice(again, again + 1, 1)
    return indices
