"""The simulated accelerator as programs and tests see it: all but what a loader needs of one.

A call takes the lock, takes note of what has been dropped since the last one, and costs the host some time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from aloader.testing.simulated_card import Card
from aloader.testing.simulated_kernels import Launch
from aloader.testing.simulated_streams import Schedule, Span, Stream


class SimulatedDevice:
    """See `SimulatedAccelerator`."""

    def __init__(self, card: Card, host_cost: float) -> None:
        self.opened = 0  #: calls of `open`
        self._card = card
        self._host_cost = host_cost
        self._lock = threading.RLock()
        self._local = threading.local()
        self._compute, self._side = Stream("compute"), Stream("side")
        self._streams = [self._compute, self._side]

    # -- what a program does on a device -----------------------------------------------------------------------------

    def to(self, tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """`tensor.to("cuda", non_blocking=…)`, on the current stream.

        Memory from `pin` may be dropped at once: its copies are recorded. Of other page-locked memory torch records
        nothing, so that its owner must keep it. From pageable memory the host waits.
        """
        with self._call("to"):
            return self._copy(tensor, blocking=not non_blocking)

    def launch(
        self, name: str, seconds: float, function: Callable[..., Any] | None = None, reads: Sequence[Any] = ()
    ) -> Launch:
        """A kernel on the current stream. Does not keep `reads` alive, as a kernel would not.

        `function(*reads)` runs when the kernel has been executed, on what the memory of `reads` holds by then: what
        else it uses it keeps alive, and nobody checks that. Its result is the `result` of what is returned, and must
        not be a view of them. Dicts, lists and tuples of tensors may stand in `reads`, too.
        """
        with self._call("launch"):
            return self._card.launch(self._current(), name, seconds, function, reads)

    def apply(
        self, function: Callable[..., torch.Tensor], *reads: Any, seconds: float = 1e-4, name: str = "apply"
    ) -> torch.Tensor:
        """What `function(*reads)` computes, in device memory of the current stream: for a `device_transform`.

        The function is called twice: at once with zeros, for the shape and dtype of its result, and when it runs.
        """
        with self._call("apply"):
            return self._card.compute(self._current(), name, seconds, function, reads)

    def read(self, batch: Any) -> Any:
        """`tensor.cpu()`, for a tensor or dicts, lists and tuples of them: the host waits for the current stream."""
        with self._call("read"):
            return self._card.read(batch, self._current())

    def synchronize(self, stream: Stream | None = None) -> None:
        """The host waits for a stream, or for all."""
        with self._call("synchronize"):
            streams = self._streams if stream is None else [stream]
            for each in streams:
                self._card.schedule.join(self._card.schedule.record(each))

    def advance(self, seconds: float) -> None:
        """The host does something else for so long."""
        with self._call("advance", seconds):
            pass

    def new_stream(self, name: str) -> Stream:
        """One more stream."""
        with self._call("new_stream"):
            self._streams.append(Stream(name))
            return self._streams[-1]

    def __repr__(self) -> str:
        given = f"{len(self.trace)} operations executed, {len(self.violations)} violations"
        return f"<{type(self).__name__} at {self.now * 1e3:.3f} ms: {given}>"

    # -- for tests ---------------------------------------------------------------------------------------------------

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Inside, copies of the calling thread have this name in `trace`."""
        before = getattr(self._local, "name", None)
        self._local.name = name
        try:
            yield
        finally:
            self._local.name = before

    def check(self, *, synchronize: bool = True) -> None:
        """AssertionError if a rule has been broken.

        The end of a test: the host waits for all that was given first. In the middle of one, that would hide what
        comes of not waiting: there, look at what has been executed so far, with `synchronize=False`.
        """
        if self.opened and synchronize:
            self.synchronize()
        with self._lock:
            self._card.host.check_mapped()
        if self.violations:
            raise AssertionError("\n".join(("the simulated accelerator was misused:", *self.violations)))

    @property
    def violations(self) -> list[str]:
        """The rules that have been broken, one sentence each."""
        return self._card.violations

    @property
    def waits(self) -> int:
        """Copies that the host had to wait for: from pageable memory, or blocking ones."""
        return self._card.waits

    @property
    def waited(self) -> float:
        """And for how long, in virtual seconds."""
        return self._card.waited

    @property
    def now(self) -> float:
        """The host's clock: virtual seconds."""
        return self._card.schedule.now

    @property
    def trace(self) -> list[Span]:
        """What has been executed, in the order of its ends."""
        return self._card.schedule.trace

    @property
    def locked(self) -> dict[int, int]:
        """What is page-locked now, beside torch's own: bytes by address."""
        return dict(self._card.host.locked)

    @property
    def locked_calls(self) -> list[tuple[int, int]]:
        """The address and the bytes of each call of `lock`, refused ones too."""
        return self._card.host.calls

    @property
    def resident_bytes(self) -> int:
        """Of living device tensors, and of those that were dropped but whose memory may not be used again yet."""
        with self._lock:
            self._card.collect()
            return self._card.memory.resident_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that `resident_bytes` has been."""
        return self._card.memory.peak_bytes

    @property
    def reserved_bytes(self) -> int:
        """Of all blocks, used or not; a block is a multiple of 512 bytes."""
        return self._card.memory.reserved_bytes

    # -- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self, name: str, seconds: float | None = None) -> Iterator[Schedule]:
        with self._lock:
            if not self.opened:
                raise RuntimeError(f"SimulatedAccelerator.{name} before open()")
            self._card.collect()  # what was dropped since the last call was dropped before this one
            schedule = self._card.schedule
            schedule.advance_to(schedule.now + (self._host_cost if seconds is None else seconds))
            yield schedule

    def _current(self) -> Stream:
        stream: Stream = getattr(self._local, "stream", self._compute)
        return stream

    def _copy(self, tensor: torch.Tensor, *, blocking: bool) -> torch.Tensor:
        name = getattr(self._local, "name", None) or "copy"
        return self._card.copy(tensor, self._current(), name, blocking=blocking)
