"""A loop in a thread of its own runs what it is given, and goes when it is told to."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from aloader.pool.private import PrivateLoop, _abandon

pytestmark = pytest.mark.usefixtures("nothing_left")


class Nobody:
    """A crew without anything to leave."""

    async def aclose(self) -> None:
        pass


def test_a_coroutine_runs_there_and_its_result_comes_back():
    loop = PrivateLoop(Nobody())

    async def where() -> int:
        return threading.get_ident()

    assert loop.call(where()) != threading.get_ident()
    loop.stop()
    loop.join(5)
    assert loop.loop.is_closed()
    loop.stop()  # twice is once


def test_what_is_raised_there_is_raised_here():
    loop = PrivateLoop(Nobody())
    error = KeyError("x")

    async def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        loop.call(fail())
    assert caught.value is error
    loop.stop()
    loop.join(5)


@pytest.mark.asyncio
async def test_it_works_where_a_loop_already_runs():
    loop = PrivateLoop(Nobody())

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert loop.call(work()) == "done"
    loop.stop()
    loop.join(5)


@pytest.mark.parametrize("first", [lambda loop, crew: loop.stop(), lambda loop, crew: _abandon(loop, crew)])
def test_a_loop_that_is_about_to_close_is_given_nothing_more(first, monkeypatch):
    """A program that ends just after it has let go of the iterator: Python would say of a coroutine that is not run."""
    crew = Nobody()
    loop, closing, late = PrivateLoop(crew), threading.Event(), threading.Event()
    close = loop.loop.close

    def close_late() -> None:
        closing.set()
        late.wait(5)
        close()

    monkeypatch.setattr(loop.loop, "close", close_late)
    first(loop, crew)
    assert closing.wait(5)
    _abandon(loop, crew)
    late.set()
    loop.join(5)
    assert loop.loop.is_closed()
    gc.collect()
