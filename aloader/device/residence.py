"""How many batches of one loader are on the device: those that wait to be taken, the latest that the user was given,
and those that the user has dropped while its stream still computes on them, whose memory cannot be used again yet.

What else the user keeps does not count: it is meant, and would otherwise bring the loader to a standstill.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import torch

from aloader.device.accelerators import Accelerator

#: The attribute of a device tensor's storage that shows, by its death, that the user has dropped it.
HOLD: Final = "_aloader_hold"


class Hold:
    """Lives as long as any tensor of a batch."""

    __slots__ = ("__weakref__",)


class Residence:
    """See the top of this file. Those that wait to be taken are counted by who keeps them.

    One for all epochs: where these are short, a program is soon some of them before the device.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._latest: weakref.ref[Hold] | None = None
        self._given: set[weakref.ref[Hold]] = set()
        self._leaving: deque[Any] = deque()  # events behind what was dropped; appended to in any thread

    def full(self, waiting: int, most: int) -> bool:
        """Whether there is no room for one more than these that wait to be taken, if there may be `most` in all."""
        for event in list(self._leaving):
            if self._is_past(event):
                with contextlib.suppress(ValueError):  # another epoch's, in another thread, has seen it too
                    self._leaving.remove(event)
        in_hand = self._latest is not None and self._latest() is not None
        return waiting + in_hand + len(self._leaving) >= most

    def make_room(self) -> None:
        """Wait for the device to pass what was dropped first: only that can leave by itself."""
        if self._leaving:
            with contextlib.suppress(Exception):  # as below, or it has just gone
                self.accelerator.join(self._leaving[0])

    def given(self, tensors: Iterable[torch.Tensor], stream: Any) -> None:
        """The user has one, and computes on it in this stream."""
        hold, me = Hold(), weakref.ref(self)
        for tensor in tensors:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse ones have no storage of their own
                setattr(tensor.untyped_storage(), HOLD, hold)

        def gone(ref: weakref.ref[Hold]) -> None:
            if (residence := me()) is not None:  # it keeps these references: no cycle, for nobody may close it
                residence._left(ref, stream)

        self._latest = weakref.ref(hold, gone)
        self._given.add(self._latest)

    def _left(self, ref: weakref.ref[Hold], stream: Any) -> None:
        """The user has dropped one. In any thread, in the middle of anything."""
        self._given.discard(ref)
        # A stream that is being captured, a device that has failed: then it is not counted.
        with contextlib.suppress(Exception):
            self._leaving.append(self.accelerator.record(stream))

    def _is_past(self, event: Any) -> bool:
        try:
            return self.accelerator.passed(event)
        except Exception:  # it lies in a capture, or the device has failed: the next copy says so, in its batch's place
            return True
