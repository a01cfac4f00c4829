"""An event loop for tests: idle time is jumped over, and what is runnable is stepped in an order drawn from a seed.

A test that waits for seconds takes none, and a hundred seeds are a hundred interleavings, each of them repeatable. Time
is virtual, so nothing outside the loop may be waited for: no threads, no processes, no sockets.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SimLoop(asyncio.SelectorEventLoop):
    """`loop.time()` is virtual and begins at 0. Callbacks keep their order; only the steps of tasks change places.

    With `seed=None`, not even these: the order is asyncio's own.
    """

    def __init__(self, seed: int | None = 0) -> None:
        self._now = 0.0
        self._random = None if seed is None else random.Random(seed)
        super().__init__(selectors.SelectSelector())

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now

    def _run_once(self) -> None:
        inner: Any = self  # asyncio keeps what is ready and what is scheduled to itself
        ready = inner._ready
        while inner._scheduled and inner._scheduled[0]._cancelled:  # time must not stop there: nothing would wake up
            heapq.heappop(inner._scheduled)._scheduled = False
            inner._timer_cancelled_count -= 1
        if not ready and inner._scheduled:
            self._now = max(self._now, inner._scheduled[0]._when)
        if self._random is not None:
            handles = list(ready)
            owners = [getattr(handle._callback, "__self__", None) for handle in handles]
            steps = [i for i, owner in enumerate(owners) if isinstance(owner, asyncio.Task)]
            for i, j in zip(steps, self._random.sample(steps, len(steps)), strict=True):
                ready[i] = handles[j]
        super()._run_once()  # type: ignore[misc]


def simulate(main: Callable[[], Coroutine[Any, Any, T]], seed: int | None = 0) -> T:
    """Run `main` on a loop of its own. It fails if a task of it is left at the end."""

    async def watched() -> T:
        result = await main()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"
        return result

    with asyncio.Runner(loop_factory=lambda: SimLoop(seed)) as runner:
        return runner.run(watched())
