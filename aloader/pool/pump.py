"""Keeps an epoch's device stage going on an event loop: when its queue has changed or a helper thread has finished and,
as long as the device is at work, by the clock: there is no descriptor that would tell."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable

from aloader import options
from aloader.device.stage import Stage
from aloader.pool.epoch import Epoch


class Pump:
    """See the top of this file. `guarded` makes a callback whose errors reach the consumer, and which wakes it.

    The stage knows the pump and the pump the epoch, which knows the stage: weakly, so that what is dropped is dropped.
    """

    def __init__(
        self, stage: Stage, epoch: Epoch, loop: asyncio.AbstractEventLoop, guarded: Callable[[Callable[[], None]], None]
    ) -> None:
        self._epoch = weakref.ref(epoch)
        self._loop = loop
        self._guarded = guarded
        self._soon: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        stage.stir, stage.wake, stage.arm = self._stir, self._wake, self._arm

    def _run(self) -> None:
        epoch = self._epoch()
        if epoch is None:
            return
        try:
            self._guarded(epoch.advance)
        except BaseException:  # Ctrl-C, perhaps in `device_transform`: whoever runs the loop again goes on
            self._stir()
            raise

    def _stirred(self) -> None:
        self._soon = None
        self._run()

    def _rung(self) -> None:
        self._alarm = None
        self._run()

    def _stir(self) -> None:
        if self._soon is None and not self._loop.is_closed():
            self._soon = self._loop.call_soon(self._stirred)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits
            self._loop.call_soon_threadsafe(self._run)

    def _arm(self) -> None:
        if self._alarm is None and not self._loop.is_closed():
            self._alarm = self._loop.call_later(options.DEVICE_POLL, self._rung)
