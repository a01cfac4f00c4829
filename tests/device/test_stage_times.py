"""Who waits for what in the stage, and how often the loop looks after it: told from virtual clocks, without a process.

`test_stage_model.py` has what the bytes are; they are right as well where everything waits for everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aloader import DataLoader, options
from aloader.device import stage as module_of_stage
from aloader.device.moving import Moving
from aloader.device.stage import Stage
from aloader.pool.pump import Pump
from aloader.testing import SimulatedAccelerator
from aloader.testing.simloop import simulate
from tests.device.kit import AsyncStamped, Steps, batches_of

PATIENCE = 5.0


class Line:
    """An epoch's queue before a stage. A batch takes the device 16 ms to copy, and is copied in two calls."""

    def __init__(self, ahead: int, way: type[Moving] = Moving) -> None:
        self.sim = SimulatedAccelerator(h2d=1e6)
        self.sim.open()
        self.stage = Stage(way(self.sim, ahead), ahead, lambda outcome: outcome.batch, lambda seq: seq)
        self.queue: deque[Any] = deque()
        self.steps = Steps(self.sim)

    def arrive(self, count: int) -> None:
        for _ in range(count):
            labels = torch.arange(4) + 4 * len(self.queue)
            rows = labels[:, None].to(torch.int32).expand(4, 1024).contiguous()
            self.queue.append(SimpleNamespace(seq=len(self.queue), batch=[rows, labels]))

    def advance(self) -> None:
        """As an `Epoch`."""
        self.stage.advance(self.queue)

    def take(self) -> Any:
        assert self.stage.ready(self.queue[0]), f"batch {self.queue[0].seq} has not been begun"
        batch = self.stage.take(self.queue.popleft())
        self.steps.step(batch)
        return batch


def test_the_cpu_waits_for_no_copy_and_for_no_kernel():
    """Two batches are begun, given and computed on before the device has copied a tenth of the first."""
    line = Line(ahead=2)
    line.arrive(2)
    line.advance()
    taken = [line.take(), line.take()]
    assert line.sim.now < 1.6e-3, "the CPU has waited for the device"
    assert line.steps.seen() == batches_of(8)
    assert taken
    line.sim.check()


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_as_many_are_begun_ahead_as_is_asked_for(ahead):
    line = Line(ahead)
    line.arrive(8)
    for _ in range(3):
        line.advance()
    assert line.sim.copies == 2 * ahead
    kept = line.take()
    line.advance()
    assert line.sim.copies == 2 * (ahead + 1)
    del kept
    line.stage.close()
    line.sim.synchronize()
    line.sim.check()


@pytest.mark.asyncio
@pytest.mark.parametrize("ahead", [1, 3])
async def test_and_a_loader_asks_for_its_device_prefetch(ahead):
    sim = SimulatedAccelerator(h2d=1e6)
    async with DataLoader(AsyncStamped(40, 1024), 4, device=sim, device_prefetch=ahead) as loader:
        batches = aiter(loader)
        kept = await anext(batches)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while sim.copies < 2 * (ahead + 1):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)  # sleep: its samples are fetched in real time
        for _ in range(10):
            await asyncio.sleep(0)
        assert sim.copies == 2 * (ahead + 1)
        del kept
    sim.check()


class Slow(Moving):
    """Its batches are large, and putting them into pinned memory takes until the gate is opened."""

    gate: threading.Event
    inside: list[int]

    def needs_thread(self, batch: Any) -> bool:
        return True

    def host(self, batch: Any) -> Any:
        assert self.gate.wait(PATIENCE), "nobody opened the gate"
        self.inside.append(threading.get_ident())
        return super().host(batch)


def test_a_helper_pins_what_is_large_meanwhile_all_goes_on_and_then_it_is_told():
    class Gated(Slow):
        gate, inside = threading.Event(), []

    line, told = Line(2, Gated), threading.Event()
    line.stage.wake = told.set
    line.arrive(1)
    line.advance()
    assert Gated.inside == [], "the step has waited for the helper, or done its work"
    assert not line.stage.ready(line.queue[0])
    Gated.gate.set()
    assert told.wait(PATIENCE), "the helper is done, and nobody has been told"
    line.advance()
    line.take()
    assert Gated.inside != [threading.get_ident()]
    assert line.steps.seen() == batches_of(4)
    line.stage.close()
    line.sim.check()


def test_who_waits_for_the_helper_sleeps(monkeypatch):
    class Gated(Slow):
        gate, inside = threading.Event(), []

    line, waited, wait = Line(1, Gated), [], module_of_stage.wait

    def waiting(futures: Any) -> Any:
        waited.extend(futures)
        Gated.gate.set()
        return wait(futures)

    monkeypatch.setattr(module_of_stage, "wait", waiting)
    line.arrive(1)
    line.stage.settle(line.queue)
    assert len(waited) == 1
    line.take()
    line.stage.close()


def test_who_closes_does_not_wait_for_the_helper_and_that_does_no_more_and_ends():
    class Gated(Slow):
        gate, inside = threading.Event(), []
        begun = threading.Event()

        def host(self, batch: Any) -> Any:
            self.begun.set()
            return super().host(batch)

    line, told = Line(3, Gated), []
    line.stage.wake = lambda: told.append("woken")
    before = set(threading.enumerate())
    line.arrive(3)
    line.advance()
    (helper,) = set(threading.enumerate()) - before
    assert Gated.begun.wait(PATIENCE)
    line.stage.close()
    assert Gated.inside == []
    assert helper.is_alive(), "it has been waited for"
    Gated.gate.set()
    helper.join(PATIENCE)
    assert not helper.is_alive()
    assert len(Gated.inside) == 1
    assert told == []


def test_what_comes_behind_a_batch_that_is_being_pinned_is_begun_behind_it():
    """`device_transform` is called in the order of the batches."""

    class Gated(Slow):
        gate, inside = threading.Event(), []

        def needs_thread(self, batch: Any) -> bool:
            return bool(batch[1][0] == 0)

        def host(self, batch: Any) -> Any:
            return super().host(batch) if self.needs_thread(batch) else batch

    line, told = Line(2, Gated), threading.Event()
    line.stage.wake = told.set
    line.arrive(2)
    line.advance()
    assert line.sim.copies == 0, "the second has overtaken the first"
    Gated.gate.set()
    assert told.wait(PATIENCE), "the helper is done, and nobody has been told"
    line.advance()
    taken = [line.take(), line.take()]
    assert line.steps.seen() == batches_of(8)
    assert taken
    line.stage.close()
    line.sim.check()


@pytest.mark.asyncio
async def test_the_loop_hears_of_the_helper_where_nothing_else_happens():
    class Gated(Slow):
        gate, inside = threading.Event(), []

    line = Line(2, Gated)
    advanced = asyncio.Event()

    def guarded(callback: Callable[[], None]) -> None:
        callback()
        advanced.set()

    gauge = Gauge(line, guarded)
    line.arrive(1)
    line.advance()
    Gated.gate.set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await advanced.wait()
    assert advanced.is_set(), "the helper is done, and who waits has not been told"
    assert len(gauge.at) == 1, "the loop has looked without being told"
    assert line.stage.ready(line.queue[0])
    line.stage.close()


@pytest.mark.parametrize("nbytes", [options.PIN_AT_ONCE_BYTES, options.PIN_AT_ONCE_BYTES + 1])
@pytest.mark.parametrize("pinned", [False, True])
def test_large_is_what_takes_longer_to_pin_than_a_loop_may_be_held_up(nbytes, pinned):
    sim = SimulatedAccelerator()
    sim.open()
    tensor = torch.empty(nbytes, dtype=torch.uint8)
    batch = {"x": sim.pin(tensor) if pinned else tensor}
    assert Moving(sim, 2).needs_thread(batch) is (nbytes > options.PIN_AT_ONCE_BYTES and not pinned)


class Gauge:
    """When a line before a pump is advanced, by the loop's clock."""

    def __init__(self, line: Line, guarded: Callable[[Callable[[], None]], None] | None = None) -> None:
        self.line = line
        self.at: list[float] = []
        self._loop = asyncio.get_running_loop()
        Pump(line.stage, self, self._loop, guarded or (lambda callback: callback()))  # type: ignore[arg-type]

    def advance(self) -> None:
        """As an `Epoch`."""
        self.at.append(self._loop.time())
        self.line.advance()


def test_the_loop_looks_now_and_then_while_the_device_is_at_work_and_never_while_it_rests():
    async def main() -> None:
        line = Line(ahead=2)
        gauge = Gauge(line)
        line.arrive(2)
        line.stage.stir()  # type: ignore[misc]
        for _ in range(100):
            await asyncio.sleep(0.1)  # sleep: virtual time; by the device's clock, who asks has waited 5 µs
            line.sim.advance(1e-3)
            if line.sim.copies and not line.stage.way.restless:
                break
        assert line.stage.ready(line.queue[0]), "nobody has begun it"
        between = [later - before for before, later in itertools.pairwise(gauge.at)]
        assert len(between) > 30
        assert min(between) > 0.9 * options.DEVICE_POLL, "the loop has spun"
        assert max(between) < 1.1 * options.DEVICE_POLL, "nobody has looked for a while"
        looked = len(gauge.at)
        await asyncio.sleep(60)  # sleep: virtual time
        assert len(gauge.at) == looked, "the loop looks after a device that rests"
        taken = [line.take(), line.take()]
        assert line.steps.seen() == batches_of(8)
        assert taken
        line.sim.check()

    simulate(main)


def test_what_had_no_room_is_begun_by_the_clock_when_the_device_has_come_so_far():
    """Nothing else happens: the program waits for it."""

    async def main() -> None:
        line = Line(ahead=1)
        gauge = Gauge(line)
        line.arrive(3)
        line.advance()
        line.take()  # dropped at once: its memory is in use until it is computed on
        line.advance()
        line.take()
        line.advance()
        assert not line.stage.ready(line.queue[0])
        for _ in range(100):
            line.sim.advance(1e-3)
            await asyncio.sleep(2 * options.DEVICE_POLL)  # sleep: virtual time
        assert line.stage.ready(line.queue[0]), "nobody has looked whether there is room"
        assert gauge.at
        line.take()
        assert line.steps.seen() == batches_of(12)
        line.sim.check()

    simulate(main)


@pytest.mark.parametrize("what", ["stir", "arm"])
def test_who_is_told_often_looks_once(what):
    async def main() -> None:
        line = Line(ahead=1)
        gauge = Gauge(line)
        for _ in range(2):
            for _ in range(3):
                getattr(line.stage, what)()
            await asyncio.sleep(1)  # sleep: virtual time
        assert len(gauge.at) == 2

    simulate(main)


# -- the loop that it runs on -----------------------------------------------------------------------------------------


def gauge_on(loop: asyncio.AbstractEventLoop, *args: Any) -> Gauge:
    async def made() -> Gauge:
        return Gauge(*args)

    return loop.run_until_complete(made())


def test_who_was_interrupted_in_a_callback_goes_on_when_the_loop_runs_again():
    loop, line, interrupts = asyncio.new_event_loop(), Line(ahead=1), [KeyboardInterrupt()]

    def guarded(callback: Callable[[], None]) -> None:
        if interrupts:
            raise interrupts.pop()
        callback()

    with contextlib.closing(loop):
        gauge = gauge_on(loop, line, guarded)
        line.arrive(1)
        line.stage.stir()  # type: ignore[misc]
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        assert gauge.at == []
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert line.stage.ready(line.queue[0])
        line.stage.close()


def test_a_loop_that_has_been_closed_is_left_alone():
    loop, line = asyncio.new_event_loop(), Line(ahead=1)
    gauge = gauge_on(loop, line)
    loop.close()
    for told in (line.stage.stir, line.stage.arm, line.stage.wake):
        told()  # type: ignore[misc]
    assert gauge.at == []


def test_a_pump_keeps_no_epoch():
    loop, line = asyncio.new_event_loop(), Line(ahead=1)
    with contextlib.closing(loop):
        gauge = gauge_on(loop, line)
        line.stage.stir()  # type: ignore[misc]
        dead = weakref.ref(gauge)
        del gauge
        assert dead() is None
        loop.call_soon(loop.stop)
        loop.run_forever()
    line.stage.close()
