"""What the tests of the stage run on: the simulated accelerator, and a real card with the same verbs.

On a card kernels are clones that begin after a pause, and are looked at when all is done. Unverified until one has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aloader.device.accelerators import assumed
from aloader.device.cuda import Cuda
from tests.device.kit import simulated


class Card(Cuda):
    """A CUDA device, for programs that are written for `SimulatedAccelerator`."""

    waits = 0

    def __init__(self) -> None:
        super().__init__(torch.device("cuda", 0))
        self.open()

    @property
    def locked(self) -> dict[int, int]:
        return dict(self._locked._ends)

    @property
    def locked_calls(self) -> int:
        return len(self.locked)

    @contextmanager
    def assumed(self) -> Iterator[None]:
        token = assumed.set(self)
        try:
            yield
        finally:
            assumed.reset(token)

    def new_stream(self, name: str) -> Any:
        return torch.cuda.Stream(self.device)

    def to(self, tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=non_blocking)

    def launch(
        self, name: str, seconds: float, function: Callable[..., Any], reads: Sequence[torch.Tensor] = ()
    ) -> Any:
        torch.cuda._sleep(int(seconds * 1e9))
        copies = [tensor.clone() for tensor in reads]

        class Launch(SimpleNamespace):
            @property
            def result(self) -> Any:
                return function(*(copy.cpu() for copy in copies))

        return Launch()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def check(self) -> None:
        """Mistakes show in the bytes."""


def card_of(name: str, **more: Any) -> Any:
    """The simulated accelerator, or a real one; skips where there is none."""
    if name == "simulated":
        return simulated(**more)
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return Card()


CARDS = ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)]
