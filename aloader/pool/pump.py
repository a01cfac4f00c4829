"""Keeps an epoch's device stage going on an event loop: when a helper thread has finished or the user has dropped a
batch, and, as long as the device is at work, by the clock: there is no descriptor that would tell."""

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
        self._alarm: asyncio.TimerHandle | None = None
        self._woken = False
        stage.wake = self._wake
        stage.arm = self._arm

    def _run(self) -> None:
        self._alarm, self._woken = None, False
        epoch = self._epoch()
        if epoch is not None:
            self._guarded(epoch.advance)

    def _arm(self) -> None:
        if self._alarm is None and not self._loop.is_closed():
            self._alarm = self._loop.call_later(options.DEVICE_POLL, self._run)

    def _wake(self) -> None:
        if self._woken:
            return
        self._woken = True
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits
            self._loop.call_soon_threadsafe(self._run)
