"""The way of `pin_memory`: batches stay in host memory, and whoever uses them copies them to the device.

That copy runs on a stream that nobody here knows, and torch records no event for memory that it did not allocate: a
lease on a worker's memory would end with the last Python reference, under a copy that may still be running. So
`pin_memory=True` hands out copies in torch's own page-locked memory, which torch does not use again too early. With
"arena" batches lie in the workers' memory itself, page-locked, and it is the user's duty to keep them long enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aloader import options
from aloader.device.accelerators import Accelerator
from aloader.device.structure import tensors_in


class Staying:
    """See the top of this file. A `stage.Way`. `pin` makes a batch of a batch; `arena`: where it is not pinned yet."""

    copied_bytes = 0

    def __init__(self, accelerator: Accelerator | None, pin: Callable[[Any], Any], *, arena: bool = False) -> None:
        self.opened = False
        self._accelerator = accelerator
        self._pin = pin
        self._arena = arena

    def open(self) -> None:
        """As `Way.open`."""
        if self._accelerator is not None:
            self._accelerator.open()
        self.opened = True

    def needs_thread(self, batch: Any) -> bool:
        """Copying takes time, as locking new pages does."""
        accelerator = self._accelerator
        if not self._arena or accelerator is None:
            return True
        return any(
            tensor.layout is not torch.sparse_coo  # which has no size
            and tensor.nbytes > options.PIN_AT_ONCE_BYTES
            and not accelerator.is_pinned(tensor)
            for tensor in tensors_in(batch)
        )

    def host(self, batch: Any) -> Any:
        """The batch in page-locked memory."""
        return self._pin(batch)

    def full(self, waiting: int) -> bool:
        """Host memory is bounded elsewhere."""
        return False

    def make_room(self) -> None:
        """Never needed."""

    def begin(self, batch: Any, place: int) -> Any:
        """Nothing is left to be done."""
        return batch

    def give(self, begun: Any) -> Any:
        """As it is."""
        return begun

    def look(self) -> None:
        """Nothing runs."""

    restless = False

    def close(self) -> None:
        """Nothing is kept."""
