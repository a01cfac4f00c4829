"""Without workers, batches are made in the caller's step or in one thread, with the caller's modes of torch."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import StackDataset, default_collate

from aloader.errors import LoaderBusy, LoaderClosed
from aloader.worker.here import InlineBatches, ThreadedBatches
from aloader.worker.maker import Maker
from tests.loader.samples import AsyncNumbers, Failing, Numbers, as_list

pytestmark = pytest.mark.usefixtures("nothing_left")


class Owner:
    closed = False
    _index_sampler = range(3)


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def threaded(dataset: Any, tickets: list[Any], thread: ThreadPoolExecutor, **options: Any) -> ThreadedBatches:
    return ThreadedBatches(iter(tickets), Maker(dataset, as_list, True, **options), thread, Owner())


# -- making ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_fetched_collated_and_finished():
    assert Maker(Numbers(), default_collate, True).make([1, 2]).tolist() == [1, 2]
    assert Maker(Numbers(), lambda sample: sample, False).make(4) == 4
    maker = Maker(Numbers(), as_list, True, lambda batch: (batch, "finished"))
    made = [maker.make([1])]
    assert maker.give(made) == ([1], "finished")
    assert made == []


def test_what_is_interrupted_on_its_way_is_given_the_next_time():
    interrupts = [KeyboardInterrupt]

    def finish(batch: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return batch, "finished"

    maker = Maker(Numbers(), as_list, True, finish)
    made = [maker.make([1])]
    with pytest.raises(KeyboardInterrupt):
        maker.give(made)
    assert maker.give(made) == ([1], "finished")


def test_a_failure_is_the_original_with_its_sample_named():
    maker = Maker(Failing("os error"), as_list, True)
    maker.make([1])
    with pytest.raises(FileNotFoundError) as caught:
        maker.make([4, 5])
    assert caught.value.filename == "x.jpg"
    assert caught.value.__notes__ == [
        "while fetching sample 5 of batch 1\nTo fetch it again in this process: loader.replay(5)"
    ]


def test_what_the_users_error_was_raised_from_or_during_is_kept():
    class Chained(Numbers):
        def __getitem__(self, index: int) -> int:
            try:
                raise KeyError("first")
            except KeyError as error:
                if index == 0:
                    raise ValueError("during") from None
                if index == 1:
                    raise ValueError("from") from error
                raise ValueError("second")  # noqa: B904

    maker = Maker(Chained(), as_list, True)
    for index, cause, suppressed in ((0, False, True), (1, True, True), (2, False, False)):
        with pytest.raises(ValueError) as caught:
            maker.make([index])
        assert isinstance(caught.value.__cause__, KeyError) is cause
        assert isinstance(caught.value.__context__, KeyError)
        assert caught.value.__suppress_context__ is suppressed


def test_stop_iteration_of_the_users_code_does_not_end_the_epoch():
    def stops(samples: list[int]) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration while fetching sample 5"):
        Maker(Failing("stop"), as_list, True).make([5])
    with pytest.raises(RuntimeError, match="StopIteration while collating batch 0"):
        Maker(Numbers(), stops, True).make([5])


@pytest.mark.parametrize("dataset", [AsyncNumbers(), StackDataset(AsyncNumbers(), Numbers())])
def test_awaitables_are_refused_and_closed(dataset):
    with pytest.raises(TypeError, match="async def __getitem__"):
        Maker(dataset, as_list, True).make([1, 2])


# -- in the caller's step ----------------------------------------------------------------------------------------------


def test_inline_batches_come_one_by_one_in_the_callers_thread():
    class Where(Numbers):
        def __getitem__(self, index: int) -> bool:
            return threading.current_thread() is threading.main_thread()

    batches = InlineBatches(iter([[1, 2], [3]]), Maker(Where(), as_list, True), Owner())
    assert list(batches) == [[True, True], [True]]
    assert len(batches) == 3


def test_a_closed_loader_says_so():
    owner = Owner()
    owner.closed = True
    with pytest.raises(LoaderClosed):
        next(InlineBatches(iter([[1]]), Maker(Numbers(), as_list, True), owner))


# -- in a thread -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_all_batches_are_made_in_the_one_thread(thread):
    class Where(Numbers):
        def __getitem__(self, index: int) -> int:
            return threading.get_ident()

    found = [batch async for batch in threaded(Where(), [[1], [2], [3]], thread)]
    assert len({ident for (ident,) in found}) == 1
    assert found[0] != [threading.get_ident()]


who = contextvars.ContextVar("who", default="nobody")


class Modes(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "device": str(torch.empty(0).device),
            "autocast": torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
            "who": who.get(),
            "dtype": torch.get_default_dtype(),
        }


PLAIN = {
    "grad": True,
    "inference": False,
    "device": "cpu",
    "autocast": False,
    "who": "nobody",
    "dtype": torch.float32,
}


@pytest.mark.asyncio
async def test_the_thread_has_the_callers_modes_of_the_moment(thread):
    batches = threaded(Modes(), [[n] for n in range(8)], thread)
    assert await anext(batches) == [PLAIN]
    with torch.no_grad():
        assert await anext(batches) == [PLAIN | {"grad": False}]
    with torch.inference_mode():
        (modes,) = await anext(batches)
        assert modes["inference"] is True
        assert modes["grad"] is torch.is_grad_enabled()
    with torch.device("meta"):
        assert await anext(batches) == [PLAIN | {"device": "meta"}]
    with torch.autocast("cpu", torch.bfloat16):
        assert await anext(batches) == [PLAIN | {"autocast": torch.bfloat16}]
    token = who.set("me")
    assert await anext(batches) == [PLAIN | {"who": "me"}]
    who.reset(token)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of the whole process: nothing to carry, and nothing to put back
    try:
        assert await anext(batches) == [PLAIN | {"dtype": torch.float64}]
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(dtype)
    assert await anext(batches) == [PLAIN]


@pytest.mark.asyncio
async def test_the_thread_has_the_callers_stream_and_first_its_device(thread, monkeypatch):
    """Where CUDA is in use: on another stream, what a dataset makes on the device might not be done when it is used."""
    stream, did = SimpleNamespace(device="cuda:1"), []

    @contextmanager
    def entered(*what: Any) -> Iterator[None]:
        did.append(what)
        yield

    class Looks(Numbers):
        def __getitem__(self, index: int) -> list[Any]:
            return did[:]

    cuda = {"is_initialized": lambda: True, "current_stream": lambda: stream}
    contexts = {"device": partial(entered, "device"), "stream": partial(entered, "stream")}
    for name, fake in (cuda | contexts).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    assert await anext(threaded(Looks(), [[0]], thread)) == [[("device", "cuda:1"), ("stream", stream)]]


@pytest.mark.gpu
@pytest.mark.asyncio
async def test_the_thread_works_on_the_stream_of_the_caller(thread):
    class Streams(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.cuda.current_stream()

    stream = torch.cuda.Stream(torch.cuda.device_count() - 1)
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        assert await anext(threaded(Streams(), [[0]], thread)) == [stream]


class Gated(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.calls: list[int] = []

    def __getitem__(self, index: int) -> int:
        self.calls.append(index)
        self.entered.set()
        self.gate.wait(5)
        return index


@pytest.mark.asyncio
async def test_a_cancelled_wait_keeps_the_batch_for_the_next(thread):
    dataset = Gated()
    batches = threaded(dataset, [[1], [2]], thread)
    for _ in range(3):
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.to_thread(dataset.entered.wait, 5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    dataset.gate.set()
    assert [batch async for batch in batches] == [[1], [2]]
    assert dataset.calls == [1, 2]


@pytest.mark.asyncio
async def test_a_second_waiter_is_refused_and_the_first_is_served(thread):
    dataset = Gated()
    batches = threaded(dataset, [[1], [2]], thread)
    first = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    with pytest.raises(LoaderBusy):
        await anext(batches)
    dataset.gate.set()
    assert await first == [1]
    assert await anext(batches) == [2]


@pytest.mark.asyncio
async def test_after_a_failure_comes_the_next_batch_and_after_the_last_the_end(thread):
    batches = threaded(Failing("value"), [[5], [6]], thread)
    with pytest.raises(ValueError, match="bad sample"):
        await anext(batches)
    assert await anext(batches) == [6]
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(batches)


@pytest.mark.asyncio
async def test_an_object_that_is_bound_to_its_thread_names_the_remedy(thread):
    import sqlite3

    class Table(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.connection = sqlite3.connect(":memory:")

        def __getitem__(self, index: int) -> Any:
            return self.connection.execute("select 1").fetchone()

    dataset = Table()
    with pytest.raises(sqlite3.ProgrammingError) as caught:
        await anext(threaded(dataset, [[1]], thread))
    dataset.connection.close()
    assert "use plain `for`" in caught.value.__notes__[-1]
