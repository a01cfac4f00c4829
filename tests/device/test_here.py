"""`device=` without workers: the device's memory is bounded there too, and no loop is held up by that."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import pytest
import torch

from aloader import DataLoader, LoaderBusy, options
from aloader.testing import SimulatedAccelerator
from tests.device.kit import SIZE, AsyncStamped, Stamped, Steps, batches_of

ROW = 1024
BATCH = SIZE * ROW * 4 + 1024  # rows, and labels
KINDS = pytest.mark.parametrize("kind", [Stamped, AsyncStamped])


class Watched(SimulatedAccelerator):
    """Knows which threads have waited for an event. Asked whether it has come so far, it has come 0.5 ms farther."""

    def __init__(self) -> None:
        super().__init__(h2d=1e9, poll_cost=5e-4)
        self.joined: list[int] = []
        self.asked = 0

    def join(self, event: Any) -> None:
        self.joined.append(threading.get_ident())
        super().join(event)

    def passed(self, event: Any) -> bool:
        self.asked += 1
        return super().passed(event)


@pytest.mark.parametrize("workers", [0, 1])
def test_nor_over_many_short_epochs(workers):
    """Each is over, for the program, before the device has seen its batches."""
    sim = Watched()
    steps = Steps(sim, 5e-3)
    kept = workers > 0
    with DataLoader(Stamped(SIZE, ROW), SIZE, device=sim, num_workers=workers, persistent_workers=kept) as loader:
        for _ in range(8):
            for batch in loader:
                steps.step(batch)
                del batch
    assert steps.seen() == batches_of(SIZE) * 8
    assert sim.peak_bytes <= 3 * BATCH, f"{sim.peak_bytes / BATCH:.1f} batches on the device"
    sim.check()


@KINDS
@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("plain", [False, True], ids=["async for", "for"])
def test_no_more_is_on_the_device_however_far_the_program_runs_ahead_of_it(kind, ahead, plain):
    sim = Watched()
    steps = Steps(sim, 5e-3)

    async def epoch(loader: Any) -> None:
        async for batch in loader:
            steps.step(batch)
            del batch

    with DataLoader(kind(12 * SIZE, ROW), SIZE, device=sim, device_prefetch=ahead) as loader:
        if plain:
            for batch in loader:
                steps.step(batch)
                del batch
        else:
            asyncio.run(epoch(loader))
            assert threading.get_ident() not in sim.joined, "the loop has stood still until the device was done"
    assert steps.seen() == batches_of(12 * SIZE)
    assert sim.peak_bytes <= (ahead + 1) * BATCH, f"{sim.peak_bytes / BATCH:.1f} batches on the device"
    sim.check()


@KINDS
@pytest.mark.asyncio
async def test_who_waits_for_room_asks_by_the_clock(kind):
    """Two kernels of 50 ms are two hundred questions to this device, one or two every millisecond."""
    sim = Watched()
    steps = Steps(sim, 50e-3)
    loop = asyncio.get_running_loop()
    async with DataLoader(kind(4 * SIZE, ROW), SIZE, device=sim, device_prefetch=1) as loader:
        before = loop.time()
        async for batch in loader:
            steps.step(batch)
            del batch
        seconds = loop.time() - before
    assert sim.asked > 100
    assert sim.asked < 3 * seconds / options.DEVICE_POLL + 50, "the loop has spun"
    assert steps.seen() == batches_of(4 * SIZE)
    sim.check()


@pytest.mark.asyncio
async def test_two_tasks_that_wait_for_room_are_one_too_many():
    sim = Watched()
    steps = Steps(sim, 1e6)  # longer than anybody asks
    async with DataLoader(Stamped(3 * SIZE, ROW), SIZE, device=sim, device_prefetch=1) as loader:
        batches = aiter(loader)
        for _ in range(2):
            steps.step(await anext(batches))
        asked, first = sim.asked, asyncio.create_task(batches.__anext__())
        while sim.asked == asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(LoaderBusy):
            await asyncio.wait_for(anext(batches), 5)
        sim.synchronize()
        steps.step(await first)
    assert steps.seen() == batches_of(3 * SIZE)


@KINDS
def test_a_batch_is_made_ready_in_the_thread_of_whoever_takes_it_and_for_its_stream(kind):
    """Also where the samples come from a loop in another thread."""
    sim, threads = Watched(), []
    sim.open()

    def transform(batch: Any) -> Any:
        threads.append(threading.get_ident())
        return batch

    steps = Steps(sim)
    with (
        sim.on(sim.new_stream("mine")),
        DataLoader(kind(3 * SIZE, ROW), SIZE, device=sim, device_transform=transform) as loader,
    ):
        for batch in loader:
            steps.step(batch)
            del batch
    assert threads == [threading.get_ident()] * 3
    assert steps.seen() == batches_of(3 * SIZE)
    sim.check()


@KINDS
def test_host_memory_is_let_go_as_soon_as_the_device_has_copied_it(kind):
    """And not at the end of the epoch."""

    class Counted(Watched):
        pinned: list[weakref.ref[torch.Tensor]] = []

        def pin(self, tensor: torch.Tensor) -> torch.Tensor:
            made = super().pin(tensor)
            self.pinned.append(weakref.ref(made))
            return made

    sim, most = Counted(), 0
    with DataLoader(kind(12 * SIZE, ROW), SIZE, device=sim, device_prefetch=1) as loader:
        for batch in loader:
            del batch
            sim.synchronize()
            most = max(most, sum(tensor() is not None for tensor in sim.pinned))
    assert len(sim.pinned) == 24, "rows and labels"
    assert most <= 2 * 3
    sim.check()
