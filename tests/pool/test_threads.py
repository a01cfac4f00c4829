"""Work in a thread gives back what it gave or raised, and nobody waits for it in vain."""

from __future__ import annotations

import asyncio
import mmap
import threading
from typing import Any

import numpy as np
import pytest

from aloader.pool.threads import dispose, in_thread

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.asyncio
async def test_a_result_comes_from_another_thread():
    assert await in_thread(threading.get_ident) != threading.get_ident()


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("x"), SystemExit(3), MemoryError()], ids=repr)
async def test_what_is_raised_there_is_raised_here(error):
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await in_thread(fail)
    assert caught.value is error


@pytest.mark.asyncio
async def test_stop_iteration_hangs_nobody():
    """A future cannot hold it: a sampler's, or a `__reduce__`'s, would be waited for for ever."""
    with pytest.raises(RuntimeError) as caught:
        await asyncio.wait_for(in_thread(lambda: next(iter([]))), 2)
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.asyncio
async def test_a_cancelled_caller_leaves_it_to_end_by_itself():
    began, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        gate.wait(5)
        ended.set()

    task = asyncio.ensure_future(in_thread(work))
    await asyncio.sleep(0)
    assert began.wait(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert await asyncio.to_thread(ended.wait, 5)


def test_a_loop_that_has_been_closed_meanwhile_is_no_error():
    """pytest turns an exception in a thread into a failure."""
    gate, threads = threading.Event(), threading.active_count()

    async def main() -> None:
        task = asyncio.ensure_future(in_thread(lambda: gate.wait(5)))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "aloader-work":
            thread.join(5)
    assert threading.active_count() <= threads


def memory(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes)


def test_little_memory_is_unmapped_at_once():
    said: list[Any] = []
    memories = [memory(4096), memory(1 << 20)]
    dispose(memories, lambda: said.append(threading.get_ident()))
    assert said == [threading.get_ident()]
    assert all(m.closed for m in memories)


def test_much_memory_is_unmapped_in_a_thread_and_said_afterwards():
    said = threading.Event()
    where: list[int] = []
    memories = [memory(5 << 20), memory(5 << 20)]
    dispose(memories, lambda: (where.append(threading.get_ident()), said.set()))
    assert said.wait(5)
    assert where != [threading.get_ident()]
    assert all(m.closed for m in memories)


def test_memory_that_somebody_looks_at_stays_until_the_last_view():
    held = memory(4096)
    view = np.frombuffer(held, np.uint8)
    said: list[int] = []
    dispose([held, other := memory(4096)], lambda: said.append(1))
    assert other.closed
    assert said == [1]
    assert view.sum() == 0
    del view
    held.close()


def test_nothing_to_unmap_is_said_at_once():
    said: list[int] = []
    dispose([], lambda: said.append(1))
    dispose([])
    assert said == [1]


def test_where_no_thread_can_be_had_memory_is_unmapped_here(monkeypatch):
    """As when the interpreter ends."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    said: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        dispose([much := memory(16 << 20)], lambda: said.append(1))
    assert much.closed
    assert said == [1]
