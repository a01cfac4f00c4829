"""The way to a device: copies on a side stream, `device_transform` behind them, and what is kept until they are done.

The consumer's stream waits for the event behind a batch's copies, the CPU for nothing. The host batch, and with it the
leases on the workers' memory, is dropped when that event has passed and not before: torch records no events for memory
that is not its own. The device memory belongs to the side stream: `record_stream` keeps it from being used again there
while the consumer's stream computes on it.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

import torch

from aloader import options
from aloader.channel.states import Generators
from aloader.device.accelerators import Accelerator
from aloader.device.drawing import drawn
from aloader.device.residence import Residence
from aloader.device.structure import moved, tensors_in


class Begun(NamedTuple):
    """A batch on the device, and the event behind its copies."""

    batch: Any
    event: Any


class Moving:
    """See the top of this file. A `stage.Way`.

    `ahead` batches are begun before they are taken. `number_of` gives the seed of `transform`'s draws by the place of
    the batch. `residence` counts those of other epochs, too.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        ahead: int,
        transform: Callable[[Any], Any] | None = None,
        number_of: Callable[[int], int] | None = None,
        residence: Residence | None = None,
    ) -> None:
        self.accelerator = accelerator
        self.opened = plain_cpu = accelerator.device.type == "cpu" and not accelerator.locks  # a simulated one does
        self.copied_bytes = 0
        self._transform = transform
        self._number_of = number_of
        self._generators = None if transform is None else Generators(shared=True)
        self._most = ahead + 1
        self._residence = residence or Residence(accelerator)
        self._under_way: deque[tuple[Any, Any]] = deque()  # events, and what the device reads until then
        self._apart = transform is None  # what runs on the side stream reads nothing that others have computed
        self._closed = False
        self._stays = plain_cpu and transform is None

    def open(self) -> None:
        """As `Way.open`."""
        self.accelerator.open()
        self.opened = True

    def needs_thread(self, batch: Any) -> bool:
        """Whether something large is not pinned, and has to be copied for that."""
        return self.accelerator.locks and any(
            tensor.nbytes > options.PIN_AT_ONCE_BYTES and self._pageable(tensor)
            for tensor in tensors_in(batch)
            if tensor.layout is torch.strided
        )

    def host(self, batch: Any) -> Any:
        """As it is, but for what cannot be copied from while the CPU goes on: that is put into pinned memory."""
        return moved(batch, self._pinned, self._pinned_custom) if self.accelerator.locks else batch

    def full(self, waiting: int) -> bool:
        """As `Way.full`."""
        return self._residence.full(waiting, self._most)

    def make_room(self) -> None:
        """As `Way.make_room`. The CPU waits only where it is `ahead` batches and more before the device."""
        self._residence.make_room()

    def begin(self, batch: Any, place: int) -> Begun:
        """As `Way.begin`."""
        accelerator = self.accelerator
        if self._stays:
            return Begun(moved(batch, self._copy, partial(self._custom, sources=[])), None)
        side, outside = accelerator.side, accelerator.current()
        sources = [batch]
        try:
            with accelerator.on(side), _plain_modes():
                out = moved(batch, self._copy, partial(self._custom, sources=sources))
                if self._transform is not None:
                    if not self._apart:  # from what the program has computed before: constants, and this very batch
                        accelerator.wait(side, accelerator.record(outside))
                        self._apart = True
                    number = self._number_of(place) if self._number_of is not None else place
                    with drawn(accelerator, number, self._generators):
                        out = self._transform(out)
        finally:
            event = accelerator.record(side)
            if event is not None:
                self._under_way.append((event, sources))
                if self._closed:  # meanwhile, by the transform or in another thread
                    _keep(accelerator, deque([(event, sources)]))
        return Begun(out, event)

    def give(self, begun: Begun) -> Any:
        """As `Way.give`."""
        if begun.event is None:  # there are no streams: nothing is waited for, nor on its way out
            return begun.batch
        accelerator = self.accelerator
        stream = accelerator.current()
        accelerator.wait(stream, begun.event)
        tensors = list(tensors_in(begun.batch))
        for tensor in tensors:
            if tensor.device == accelerator.device:
                accelerator.record_stream(tensor, stream)
        self._residence.given(tensors, stream)
        return begun.batch

    def look(self) -> None:
        """As `Way.look`."""
        under_way = self._under_way
        while under_way and self.accelerator.passed(under_way[0][0]):
            under_way.popleft()

    @property
    def restless(self) -> bool:
        """As `Way.restless`."""
        return bool(self._under_way)

    def close(self) -> None:
        """As `Way.close`."""
        self._closed = True
        left = deque(one for one in list(self._under_way) if not _is_past(self.accelerator, one[0]))
        self._under_way = deque()  # who is in `look` in another thread goes on with the other one
        if left:
            _keep(self.accelerator, left)

    def _pageable(self, tensor: torch.Tensor) -> bool:
        plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
        return plain and not self.accelerator.is_pinned(tensor)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.accelerator.pin(tensor) if self._pageable(tensor) else tensor

    def _pinned_custom(self, obj: Any) -> Any:
        return obj.pin_memory() if hasattr(obj, "pin_memory") and any(map(self._pageable, tensors_in(obj))) else obj

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        self.copied_bytes += tensor.nbytes if tensor.layout is torch.strided else 0
        made = self.accelerator.copy(tensor)
        if made is tensor:  # it was there, and may be computed yet
            self._apart = self._transform is None
        return made

    def _custom(self, obj: Any, sources: list[Any]) -> Any:
        tensors = list(tensors_in(obj))
        sources += tensors  # it may put the copies into their places, as transformers' BatchEncoding does
        if any(tensor.device == self.accelerator.device for tensor in tensors):
            self._apart = self._transform is None
        try:
            known = inspect.signature(obj.to).parameters.values()
            plain = all(one.name != "non_blocking" and one.kind is not one.VAR_KEYWORD for one in known)
        except (TypeError, ValueError):  # written in C
            plain = False
        return obj.to(self.accelerator.device) if plain else obj.to(self.accelerator.device, non_blocking=True)


def _plain_modes() -> AbstractContextManager[Any]:
    """Whatever the consumer, or another task of its loop, is in the middle of: batches are ordinary tensors."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not kinds and not torch.is_inference_mode_enabled():
        return torch.no_grad()
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    for kind in kinds:
        stack.enter_context(torch.autocast(kind, enabled=False))
    stack.enter_context(torch.no_grad())
    return stack


def _is_past(accelerator: Accelerator, event: Any) -> bool:
    """Whether the device has passed it, or never will: one that has failed reads nothing any more."""
    try:
        return accelerator.passed(event)
    except Exception:
        return True


def _keep(accelerator: Accelerator, under_way: deque[tuple[Any, Any]]) -> None:
    """Nobody comes to look any more: a thread waits for the device, for milliseconds, and lets go."""

    def run() -> None:
        while under_way:
            with suppress(Exception):  # the device has failed, and reads nothing any more
                accelerator.join(under_way[0][0])
            under_way.popleft()

    try:
        threading.Thread(target=run, name="aloader-copies", daemon=False).start()  # also from a daemon
    except RuntimeError:  # the interpreter is ending
        run()
