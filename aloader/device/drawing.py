"""Random numbers of a batch's own, on the device and beside it, as workers have them for each sample.

What `device_transform` draws is a function of seed, epoch and the batch's place: from torch's generators, and from
Python's and numpy's, which choose where to crop as often. Afterwards the program's own numbers go on as if nothing had
been drawn in between.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from aloader.channel.states import Generators, State
from aloader.device.accelerators import Accelerator


class drawn:  # noqa: N801
    """Inside, torch's generators of the CPU and of the accelerator, `random`, and numpy's global one are seeded from a
    number of 64 bits. Afterwards they are put back as they were, also after an error.

    generators: those of the CPU, from who keeps them: making them takes longer than all the rest.
    """

    __slots__ = ("_accelerator", "_generators", "_number", "_outside", "_state")

    def __init__(self, accelerator: Accelerator, number: int, generators: Generators | None = None) -> None:
        self._accelerator = accelerator
        self._number = number
        self._generators = Generators(shared=True) if generators is None else generators
        self._state: Any = None
        self._outside: State

    def __enter__(self) -> None:
        self._state = self._accelerator.random_state()
        self._outside = self._generators.take(anybodys=True)  # from here on, they have to be put back
        try:
            self._generators.seed(self._number)
            self._accelerator.seed(self._number)
        except BaseException:
            self._put_back()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._put_back()

    def _put_back(self) -> None:
        try:
            self._generators.put(self._outside)
        finally:
            self._accelerator.set_random_state(self._state)
