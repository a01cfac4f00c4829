"""The accelerator without streams: the CPU, where nothing is copied, and mps, xpu, …, copied to synchronously."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from aloader.device.accelerators import LockRefusedError


class Plain:
    """All that is begun is done when the call returns, so there is no event to wait for: events are None.

    A tensor that is on the device already is handed out as it is; on the CPU, that is every one.
    """

    locks = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __repr__(self) -> str:
        return f"Plain({str(self.device)!r})"

    def open(self) -> None:
        """Ask for an empty tensor, which knows the device's index, or torch says what is wrong."""
        if self.device.type == "cpu":
            return
        try:
            self.device = torch.empty(0, device=self.device).device
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise RuntimeError(
                f'device="{self.device}" cannot be used: torch says "{reason}". Give a device that this machine and '
                'this build of torch have, or device="cpu"'
            ) from error

    @property
    def side(self) -> None:
        """None: there is no stream."""

    def current(self) -> None:
        """None: there is no stream."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Changes nothing."""
        return nullcontext()

    def record(self, stream: Any) -> None:
        """None: all is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """Nothing to wait for."""

    def passed(self, event: Any) -> bool:
        """True: all is done."""
        return True

    def join(self, event: Any) -> None:
        """Nothing to wait for."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, when this returns; itself where it is there."""
        if self.device.type == "cpu" and tensor.is_cpu:
            return tensor
        with torch.no_grad():
            made = tensor.to(self.device)
        return made if made is tensor else made.requires_grad_(tensor.requires_grad)

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Nobody else's stream."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """True: there is nothing to gain."""
        return True

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def lock(self, address: int, nbytes: int) -> None:
        """Refused."""
        raise LockRefusedError(f'memory is not page-locked for device="{self.device}"')

    def unlock(self, address: int) -> None:
        """Nothing was locked."""

    def random_state(self) -> torch.Tensor | None:
        """None on the CPU, whose generator is torch's own, and where there is none that can be put back."""
        module = self._random()
        return None if module is None else module.get_rng_state(self.device)

    def set_random_state(self, state: torch.Tensor | None) -> None:
        """Nothing, if the state is None."""
        module = self._random()
        if module is not None and state is not None:
            module.set_rng_state(state, self.device)

    def seed(self, number: int) -> None:
        """Nothing on the CPU: who seeds this seeds torch's own generator, too."""
        module = self._random()
        if module is not None:
            with module.device(self.device) if hasattr(module, "device") else nullcontext():
                module.manual_seed(number)

    def _random(self) -> Any:
        """Torch's module for devices of this kind, if they have a generator."""
        module = None if self.device.type == "cpu" else getattr(torch, self.device.type, None)
        return module if hasattr(module, "get_rng_state") else None
