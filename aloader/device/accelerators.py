"""What the device stage needs of an accelerator, and who that is. Nothing here initialises one.

Words: a *stream* is a queue of work on the device, an *event* a mark in it. All but `open`, `join`, `pin` and `lock`
only put something into queues, and return at once. Streams and events are the accelerator's own objects.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeGuard

import torch


class LockRefusedError(Exception):
    """Memory cannot be page-locked; the text says why."""


class Accelerator(Protocol):
    """CUDA (`device.cuda`), none or one without streams (`device.plain`), or `aloader.testing.SimulatedAccelerator`."""

    device: torch.device  #: where batches go, with its index
    locks: bool  #: whether memory can be page-locked for it: if not, `is_pinned` is always true and `pin` gives back

    def open(self) -> None:
        """Make the context and the side stream. May take seconds, so it is called in a thread. Idempotent.

        Raises RuntimeError, with the remedy, where there is no such device.
        """

    @property
    def side(self) -> Any:
        """The stream that copies run on."""

    def current(self) -> Any:
        """The stream that the calling thread's work goes to."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside, the calling thread's work goes to this stream."""

    def record(self, stream: Any) -> Any:
        """An event behind all that this stream has been given so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """What this stream is given from now on begins only when the event has passed. The CPU goes on."""

    def passed(self, event: Any) -> bool:
        """Whether the device has come to this event."""

    def join(self, event: Any) -> None:
        """Let the calling thread wait for the event, without the GIL."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin a copy to the device on the thread's current stream, and return its result.

        The source must be kept, and left as it is, until an event that is recorded behind this has passed. It should
        be pinned: else the CPU waits for the stream. The result's memory is the current stream's: who uses it on
        another one has to `record_stream` that.
        """

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Let this tensor's memory not be used again, once it is dropped, before this stream is done with it."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in page-locked memory."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the page-locked memory of torch's own allocator, which knows by itself when copies from it end."""

    def lock(self, address: int, nbytes: int) -> None:
        """Page-lock memory of this process. Takes 0.1 to 0.4 s per GiB. Raises `LockRefusedError`."""

    def unlock(self, address: int) -> None:
        """Undo `lock` before the memory is unmapped."""

    def random_state(self) -> Any:
        """The state of the device's default random generator."""

    def set_random_state(self, state: Any) -> None:
        """Put one back."""

    def seed(self, number: int) -> None:
        """Seed the device's default random generator (64 bits)."""


def is_accelerator(obj: object) -> TypeGuard[Accelerator]:
    """Whether it is one, and no name of a device. (Asking an instance for `side` may not be allowed yet.)"""
    return all(hasattr(type(obj), name) for name in ("record_stream", "is_pinned", "random_state"))


#: An accelerator that stands for torch's current one, in this context: the simulated one, in tests.
assumed: Final[ContextVar[Accelerator | None]] = ContextVar("aloader_accelerator", default=None)
