"""The stage and its ways by themselves: what is closed, interrupted or broken in the middle, and what others keep."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import aloader
from aloader import options
from aloader.device.moving import Moving
from aloader.device.plain import Plain
from aloader.device.stage import Stage
from aloader.testing import SimulatedAccelerator
from tests.device.kit import SIZE, AsyncStamped, Steps, batches_of, simulated


def queue_of(*batches: Any) -> deque[Any]:
    return deque(SimpleNamespace(seq=seq, batch=batch) for seq, batch in enumerate(batches))


def stage_of(accelerator: Any, transform: Any = None, ahead: int = 2) -> Stage:
    accelerator.open()
    return Stage(Moving(accelerator, ahead, transform), ahead, lambda outcome: outcome.batch, lambda seq: seq)


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("aloader-copies"):
            thread.join(10)


def test_what_is_closed_while_a_copy_is_begun_keeps_its_source_until_it_is_done():
    """A transform that closes the loader, say: nothing more is begun, and what has been is not forgotten."""
    sim = SimulatedAccelerator(h2d=1e6)
    sim.open()
    sources = [sim.pin(torch.ones(1000)) for _ in range(2)]
    kept = [weakref.ref(source.untyped_storage()) for source in sources]
    joined = []
    join = sim.join
    sim.join = lambda event: (joined.append(kept[0]() is not None), join(event))

    def transform(batch: Any) -> Any:
        stage.close()
        return batch

    stage = stage_of(sim, transform)
    queue = queue_of(*sources)
    del sources
    stage.advance(queue)
    queue.clear()
    assert sim.copies == 1
    wait_for_threads()
    assert joined == [True]


def test_who_waits_for_the_device_goes_on_when_another_thread_closes():
    class Full(Moving):
        def full(self, waiting: int) -> bool:
            return True

        def make_room(self) -> None:
            stage.close()

    way = Full(Plain(torch.device("cpu")), 1)
    stage = Stage(way, 1, lambda outcome: outcome.batch, lambda seq: seq)
    stage.settle(queue_of(torch.ones(1)))


class Failing(SimulatedAccelerator):
    """A device on which something has gone wrong for good, as after an assertion in a kernel."""

    failed = False

    def passed(self, event: Any) -> bool:
        self._fail()
        return super().passed(event)

    def join(self, event: Any) -> None:
        self._fail()
        super().join(event)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        self._fail()
        return super().copy(tensor)

    def _fail(self) -> None:
        if self.failed:
            raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_device_that_has_failed_does_not_keep_a_loader_from_closing():
    sim = Failing()
    stage = stage_of(sim)
    stage.advance(queue_of(torch.ones(10), torch.ones(10)))
    sim.failed = True
    stage.close()
    wait_for_threads()  # its errors would be this test's: an unhandled one of a thread is a warning


def test_nor_does_one_that_fails_while_its_last_copies_are_waited_for():
    sim = SimulatedAccelerator(h2d=1e6)
    stage = stage_of(sim)
    sources = [sim.pin(torch.ones(1000)) for _ in range(2)]
    kept = [weakref.ref(source.untyped_storage()) for source in sources]

    def fail(event: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    sim.join = fail  # type: ignore[method-assign]
    queue = queue_of(*sources)
    del sources
    stage.advance(queue)
    queue.clear()
    stage.close()
    wait_for_threads()  # as above
    assert [source() for source in kept] == [None, None]


def closed_under_way(sim: Any) -> list[weakref.ref[Any]]:
    """The sources of copies that run when a stage is closed."""
    stage = stage_of(sim)
    sources = [sim.pin(torch.ones(1000)) for _ in range(2)]
    stage.advance(queue_of(*sources))
    stage.close()
    return [weakref.ref(source.untyped_storage()) for source in sources]


def test_who_waits_for_the_last_copies_is_not_torn_out_of_the_driver_when_the_program_ends():
    """Whoever closes: a thread is a daemon if it was started by one, unless it says otherwise."""
    sim, waiting, gate = SimulatedAccelerator(h2d=1e6), [], threading.Event()
    join = sim.join

    def joined(event: Any) -> None:
        waiting.append(threading.current_thread().daemon)
        assert gate.wait(10)
        join(event)

    sim.join = joined  # type: ignore[method-assign]
    closing = threading.Thread(target=closed_under_way, args=(sim,), daemon=True)
    closing.start()
    closing.join(10)
    gate.set()
    wait_for_threads()
    assert waiting == [False, False]


def test_where_no_thread_can_be_had_who_closes_waits_for_the_last_copies(monkeypatch):
    """At the end of the interpreter, say."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sim = SimulatedAccelerator(h2d=1e6)
    monkeypatch.setattr(threading.Thread, "start", fail)
    kept = closed_under_way(sim)
    assert sim.now > 8e-3, "nobody has waited"
    assert [source() for source in kept] == [None, None]


def test_an_event_that_cannot_be_asked_is_not_counted():
    """One that was recorded in a capture, say: the next batch is begun, or fails, by itself."""
    sim = Failing()
    way = Moving(sim, 1)
    sim.open()
    sim.launch("step", 1.0)
    for _ in range(3):
        way.give(way.begin(torch.ones(10), 0))
    assert way.full(1)
    sim.failed = True
    assert not way.full(1)


def test_an_error_that_is_kept_does_not_keep_the_batches_behind_it():
    def transform(batch: Any) -> Any:
        if float(batch[0]) == 0.0:
            raise ValueError("the first")
        return batch * 2

    stage = stage_of(Plain(torch.device("cpu")), transform)
    queue = queue_of(torch.zeros(10), torch.ones(10))
    stage.advance(queue)
    with pytest.raises(ValueError, match="the first") as kept:
        stage.take(queue.popleft())
    batch = stage.take(queue.popleft())
    gone = weakref.ref(batch)
    del batch
    assert gone() is None, kept


class Thrower:
    """Its error is raised where the device begins, or where it is pinned: at once, or by the helper."""

    def __init__(self, where: str, nbytes: int) -> None:
        self.where = where
        self.x = torch.ones(nbytes, dtype=torch.uint8)

    def pin_memory(self) -> Thrower:
        self._throw("pin_memory")
        return self

    def to(self, device: torch.device) -> Any:
        self._throw("to")

    def _throw(self, where: str) -> None:
        if self.where == where:
            raise ValueError(where)


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "closed"])
@pytest.mark.parametrize("nbytes", [1, options.PIN_AT_ONCE_BYTES + 1], ids=["at once", "by the helper"])
@pytest.mark.parametrize("where", ["to", "pin_memory"])
def test_an_error_that_is_dropped_takes_its_batch_with_it(where, nbytes, taken):
    """And the leases on workers' memory that it holds, without the garbage collector."""
    stage = stage_of(simulated())
    queue = queue_of(Thrower(where, nbytes))
    gone = weakref.ref(queue[0].batch)
    gc.disable()
    try:
        stage.settle(queue)
        outcome = queue.popleft()
        if taken:
            with contextlib.suppress(ValueError):
                stage.take(outcome)
        del outcome
        stage.close()
        wait_for_threads()
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("nbytes", [4, options.PIN_AT_ONCE_BYTES + 4], ids=["at once", "by the helper"])
def test_what_lies_in_host_memory_is_let_go_when_nothing_reads_it_any_more(nbytes):
    """The batch that came, when it has been pinned; that, when the device is done with it: also before it is taken."""
    sim, made = simulated(), []
    pin = sim.pin

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        result = pin(tensor)
        made.append(weakref.ref(result))
        return result

    sim.pin = pinned  # type: ignore[method-assign]
    sim.open()
    stage = Stage(Moving(sim, 1), 1, lambda outcome: outcome.batch.pop(), lambda seq: seq)
    queue = queue_of([torch.ones(nbytes, dtype=torch.uint8)])
    came = weakref.ref(queue[0].batch[0])
    stage.advance(queue)
    if nbytes > options.PIN_AT_ONCE_BYTES:
        stage._helper().submit(int).result(10)  # so it has dropped what came before that
    assert came() is None
    stage.advance(queue)
    assert stage.ready(queue[0])
    sim.synchronize()
    stage.advance(queue)
    assert [pinned() for pinned in made] == [None]
    stage.close()


def test_an_error_of_a_worker_is_ready():
    """Nothing has to be done with it."""
    assert stage_of(Plain(torch.device("cpu"))).ready(SimpleNamespace(seq=0, error=ValueError()))


class Ending:
    """What pins it runs into an end."""

    def __init__(self, end: type[BaseException], nbytes: int = 1) -> None:
        self.end = end
        self.x = torch.ones(nbytes, dtype=torch.uint8)

    def pin_memory(self) -> Any:
        raise self.end

    def to(self, device: torch.device) -> Any:
        return self


ENDS = pytest.mark.parametrize("end", [StopIteration, StopAsyncIteration, asyncio.CancelledError])


@ENDS
@pytest.mark.parametrize("nbytes", [1, options.PIN_AT_ONCE_BYTES + 1], ids=["at once", "by the helper"])
def test_an_end_in_what_pins_a_batch_is_an_error_in_its_place(end, nbytes):
    stage = stage_of(simulated())
    queue = queue_of(Ending(end, nbytes), torch.ones(3))
    stage.settle(queue)
    with pytest.raises(RuntimeError, match=f"{end.__name__} was raised while a batch was moved"):
        stage.take(queue.popleft())
    stage.settle(queue)
    assert stage.take(queue.popleft()).shape == (3,)
    stage.close()


@ENDS
@pytest.mark.parametrize("pinning", [True, False])
def test_and_so_it_is_without_workers(end, pinning):
    def transform(batch: Any) -> Any:
        if isinstance(batch, int):
            raise end
        return batch

    data: list[Any] = [Ending(end) if pinning else 0, torch.ones(3)]
    with aloader.DataLoader(data, batch_size=None, device=simulated(), device_transform=transform) as loader:
        batches = iter(loader)
        with pytest.raises(RuntimeError, match=f"{end.__name__} was raised while a batch was moved"):
            next(batches)
        assert next(batches).shape == (3,)


def test_what_cannot_be_unpacked_is_an_error_in_its_place():
    def unpack(outcome: Any) -> Any:
        if outcome.seq == 1:
            raise ImportError("no class")
        return outcome.batch

    stage = Stage(Moving(Plain(torch.device("cpu")), 3), 3, unpack, lambda seq: seq)
    queue = queue_of(torch.zeros(1), torch.ones(1), torch.ones(2))
    stage.advance(queue)
    assert stage.take(queue.popleft()).shape == (1,)
    with pytest.raises(ImportError, match="no class"):
        stage.take(queue.popleft())
    assert stage.take(queue.popleft()).shape == (2,)


def test_an_object_pins_itself_where_something_in_it_is_not_pinned():
    sim = simulated()
    way = Moving(sim, 1)
    way.open()
    asked = []

    class Box:
        def __init__(self, *tensors: torch.Tensor) -> None:
            self.tensors = tensors

        def pin_memory(self) -> Box:
            asked.append(self)
            return Box(*map(sim.pin, self.tensors))

        def to(self, device: torch.device) -> Box:
            return self

    pinned, partly = Box(sim.pin(torch.ones(1))), Box(sim.pin(torch.ones(1)), torch.ones(1))
    assert way.host(pinned) is pinned
    made = way.host(partly)
    assert asked == [partly]
    assert all(map(sim.is_pinned, made.tensors))


def test_an_object_that_moves_itself_in_place_keeps_what_it_held_until_it_is_copied():
    """Transformers' BatchEncoding does: nobody has its host tensors any more, but for the device that reads them."""
    sim = SimulatedAccelerator(h2d=1e6)
    sim.open()

    class Encoding:
        def __init__(self, **tensors: torch.Tensor) -> None:
            self.data = tensors

        def to(self, device: torch.device, non_blocking: bool = False) -> Encoding:
            self.data = {name: sim.copy(tensor) for name, tensor in self.data.items()}
            return self

    source = sim.pin(torch.ones(1000))
    kept = weakref.ref(source.untyped_storage())
    way = Moving(sim, 1)
    begun = way.begin(way.host([Encoding(x=source)]), 0)
    del source
    way.look()
    assert not sim.passed(begun.event)
    assert kept() is not None, "the device reads memory that is somebody else's"
    sim.join(begun.event)
    way.look()
    assert kept() is None
    (encoding,) = way.give(begun)
    assert encoding.data["x"].tolist() == [1.0] * 1000


def test_an_object_moves_itself_and_is_not_waited_for_where_it_can_be_told():
    said: list[Any] = []

    class Plainly:
        def to(self, device: torch.device) -> None:
            said.append((device, None))

    class Told:
        def to(self, device: torch.device, non_blocking: bool = False) -> None:
            said.append((device, non_blocking))

    class Anything:
        def to(self, *where: torch.device, **how: bool) -> None:
            said.append((*where, how["non_blocking"]))

    sim = simulated()
    way = Moving(sim, 1)
    way.open()
    way.begin([Plainly(), Told(), Anything()], 0)
    assert said == [(sim.device, None), (sim.device, True), (sim.device, True)]


def test_the_bytes_of_all_copies_are_counted():
    way = Moving(simulated(), 1)
    way.open()
    for _ in range(2):
        way.give(way.begin([torch.ones(10), torch.ones(5, dtype=torch.uint8)], 0))
    assert way.copied_bytes == 90


def test_batches_are_ordinary_tensors_whatever_mode_they_are_unpacked_in():
    """Another task of the loop, in the middle of an evaluation, is none of a training's business."""
    way = Moving(Plain(torch.device("cpu")), 1)
    stage = Stage(way, 1, lambda outcome: torch.ones(3), lambda seq: seq)
    queue = queue_of(None)
    with torch.inference_mode():
        stage.advance(queue)
    assert not stage.take(queue.popleft()).is_inference()


MODES = {
    "none": contextlib.nullcontext,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_transform_runs_without_the_modes_that_the_program_is_in_and_without_grad(mode):
    weight = torch.ones(2, 2, requires_grad=True)
    way = Moving(Plain(torch.device("cpu")), 1, lambda batch: batch @ weight)
    with mode():
        batch = way.give(way.begin(torch.ones(2, 2), 0))
    assert batch.dtype is torch.float32
    assert not batch.requires_grad
    assert not batch.is_inference()


def test_whoever_asks_for_the_next_batch_in_a_transform_is_told_that_it_is_not_there():
    def transform(batch: Any) -> Any:
        stage.settle(queue)

    stage = stage_of(Plain(torch.device("cpu")), transform)
    queue = queue_of(torch.zeros(1))
    stage.advance(queue)
    with pytest.raises(aloader.LoaderBusy):
        stage.take(queue.popleft())


def test_a_transform_that_leads_back_here_is_called_once_for_a_batch():
    """It runs the loop that it is called in, as notebooks let it, and the loop advances when a batch arrives."""
    called = []

    def transform(batch: Any) -> Any:
        called.append(float(batch))
        if len(called) == 1:
            queue.append(SimpleNamespace(seq=1, batch=torch.ones(())))
            stage.advance(queue)
        return batch

    stage = stage_of(Plain(torch.device("cpu")), transform)
    queue = queue_of(torch.zeros(()))
    stage.advance(queue)
    assert called == [0.0]
    stage.settle(queue)
    assert float(stage.take(queue.popleft())) == 0.0
    stage.settle(queue)
    assert float(stage.take(queue.popleft())) == 1.0
    assert called == [0.0, 1.0]


def test_of_what_a_batch_holds_only_what_is_on_the_device_is_kept_from_being_used_again():
    recorded = []

    class Elsewhere(Plain):
        def record(self, stream: Any) -> Any:
            return "an event"

        def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
            recorded.append(tensor)

    way = Moving(Elsewhere(torch.device("meta")), 1, lambda batch: [*batch, torch.ones(1)])
    there, here = way.give(way.begin([torch.ones(1)], 0))
    assert [tensor is there for tensor in recorded] == [True]
    assert here.is_cpu


# -- what the transform reads -----------------------------------------------------------------------------------------


def test_what_a_transform_refers_to_is_there_before_it_begins():
    """Constants that the program has made on its own stream, just before."""
    sim = simulated()
    sim.open()
    mean = sim.apply(torch.clone, torch.full((16,), 3.0), seconds=0.1)
    data = torch.arange(8.0)[:, None].expand(8, 16).contiguous()
    with aloader.DataLoader(
        data, 4, device=sim, device_transform=lambda batch: sim.apply(torch.sub, batch, mean)
    ) as loader:
        found = [sim.read(batch)[:, 0].tolist() for batch in loader]
    assert found == [[-3.0, -2.0, -1.0, 0.0], [1.0, 2.0, 3.0, 4.0]]
    sim.check()


class Boxed:
    """Moves itself, and is there already. It looks like no container, and its tensors are its own business."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Boxed:
        return self


@pytest.mark.parametrize("boxed", [False, True])
def test_what_a_dataset_has_made_on_the_device_is_there_before_the_transform_begins(boxed):
    sim = simulated()
    sim.open()
    source = torch.full((16,), 3.0)

    class OnTheDevice:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            made = sim.apply(torch.clone, source, seconds=0.1)
            return Boxed(made) if boxed else made

    def transform(batch: Any) -> Any:
        return sim.apply(torch.neg, batch.x if boxed else batch)

    with aloader.DataLoader(OnTheDevice(), batch_size=None, device=sim, device_transform=transform) as loader:
        assert [float(sim.read(batch)[0]) for batch in loader] == [-3.0, -3.0, -3.0]
    sim.check()


# -- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_device_that_is_behind_is_not_a_worker_that_is_late():
    """`timeout` is for batches that do not come; these have come, and wait for room."""
    sim = simulated()
    steps = Steps(sim, 0.1)  # this device is asked two hundred times, one or two every millisecond
    async with aloader.DataLoader(AsyncStamped(12, 16), SIZE, device=sim, device_prefetch=1, timeout=60) as loader:
        batches = aiter(loader)
        steps.step(await anext(batches))
        while not batches.run.epoch.idle:  # noqa: ASYNC110
            await asyncio.sleep(0)
        batches.run.batch_timeout = 0.02  # from here on nothing is waited for but the device
        before = asyncio.get_running_loop().time()
        async for batch in batches:
            steps.step(batch)
            del batch
        assert asyncio.get_running_loop().time() - before > 5 * batches.run.batch_timeout
    assert steps.seen() == batches_of(12)
    sim.check()


def test_a_batch_is_given_the_next_time_if_its_user_is_interrupted_just_when_it_comes():
    with aloader.DataLoader(AsyncStamped(12, 16), SIZE, device="cpu") as loader:
        batches = iter(loader)
        call = batches.loop.call

        def interrupted(coroutine: Any) -> Any:
            call(coroutine)
            raise KeyboardInterrupt

        batches.loop.call = interrupted
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        batches.loop.call = call
        assert [labels.tolist() for _, labels in batches] == batches_of(12)
