"""What is told of connections has to hold on both kinds of event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="session", autouse=True)
def uvloop_has_been_used() -> None:
    """The first of its loops makes a pipe that lives as long as the process."""
    uvloop.new_event_loop().run_until_complete(asyncio.sleep(0))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a loop of its own, where it must leave no task, and no callback that fails."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    async def watched(work: Coroutine[Any, Any, None]) -> None:
        failed: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        await work
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:  # asyncio's server has a task for each handshake, also for those that are refused
            _, left = await asyncio.wait(left, timeout=2)
        assert not left
        assert not failed

    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(watched(work))

    return run
