"""Whole crews: what their workers write is locked from the first batches on, and nothing is when they have gone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from aloader import DataLoader, options
from aloader.channel.roles import Who
from aloader.device.pages import Pages
from aloader.pool.crew import Crew
from aloader.pool.pool import WorkerPool
from aloader.testing import SimulatedAccelerator
from tests.device.locker import Locker
from tests.loader.samples import Stamped, check

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = options.MIB


class Floor:
    """All crews that are made in a test have keepers of the same accelerator."""

    def __init__(self) -> None:
        self.locker = Locker()
        self.accelerator: Any = self.locker
        self.crews: list[Crew] = []
        self.warned: list[str] = []

    def equip(self, crew: Crew) -> Crew:
        """What a loader does where it has a device."""
        crew.pages = Pages(self.accelerator, options.GIB, self.warned.append)
        self.crews.append(crew)
        return crew

    @property
    def mapped(self) -> int:
        """Bytes of the arenas of the latest crew."""
        return sum(worker.mappings.nbytes for worker in self.crews[-1].workers.values())

    def is_locked(self, tensor: torch.Tensor) -> bool:
        begin = tensor.data_ptr()
        spans = list(self.locker.locked.items())
        return any(low <= begin and begin + tensor.nbytes <= low + nbytes for low, nbytes in spans)


@pytest.fixture
def floor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Floor]:
    floor = Floor()
    make = WorkerPool.crew

    def crew(pool: WorkerPool, who: Who) -> Crew:
        return floor.equip(make(pool, who))

    monkeypatch.setattr(WorkerPool, "crew", crew)
    yield floor
    floor.locker.gate.set()
    floor.locker.wait(lambda: not floor.locker.locked)
    assert floor.locker.wrong == []
    assert floor.warned == []


def loader_of(n: int = 40, floats: int = 30_000, **settings: Any) -> DataLoader[Any]:
    settings = {"batch_size": 4, "num_workers": 2, "shuffle": False, **settings}
    return DataLoader(Stamped(n, floats), **settings)


def test_batches_lie_in_locked_memory_and_closing_unlocks_it(floor):
    with loader_of(persistent_workers=True) as loader:
        batches = iter(loader)
        check(next(batches))
        floor.locker.wait(lambda: floor.locker.nbytes >= floor.mapped > 0)
        late = next(batches)
        assert floor.is_locked(late[0])
        del late
        assert sum(len(check(batch)) for batch in batches) == 32
        held = floor.locker.nbytes
        assert held > 0
        for batch in loader:
            assert floor.is_locked(batch[0])
            break
        del batch
    assert len(floor.crews) == 1
    floor.locker.wait(lambda: not floor.locker.locked)


@pytest.mark.asyncio
async def test_a_killed_workers_memory_is_unlocked_and_its_successors_is_locked(floor):
    async with loader_of(120, max_worker_restarts=3) as loader:
        seen: list[int] = []
        with pytest.warns(match="worker"):
            async for batch in loader:
                seen += check(batch)
                if len(seen) == 8:
                    await asyncio.to_thread(floor.locker.wait, lambda: floor.locker.nbytes >= floor.mapped > 0)
                    first = floor.crews[0].workers[0]
                    mine = first.mappings
                    os.kill(first.pid, signal.SIGKILL)
        assert seen == list(range(120))
        assert mine._closed
        del batch
    assert floor.locker.did("unlock")


def test_a_batch_that_outlives_its_loader_is_locked_until_it_dies(floor):
    batches = iter(loader_of())
    batch = next(batches)
    floor.locker.wait(lambda: floor.is_locked(batch[0]))
    del batches  # and with it the loader, the crew and the workers
    floor.locker.wait(lambda: len(floor.locker.locked) == 1)
    assert floor.is_locked(batch[0])
    assert len(check(batch)) == 4
    address = batch[0].data_ptr()
    del batch
    floor.locker.wait(lambda: not floor.locker.locked)
    assert address


def test_memory_that_a_worker_gives_back_is_unlocked_first(floor):
    """A leaf of 64 MiB has a segment of its own, which goes when the epoch is over."""
    with loader_of(2, 17 * MIB // 4, batch_size=4, num_workers=1, persistent_workers=True, drop_last=False) as loader:
        for batch in loader:
            large = floor.crews[0].workers[0].mappings
            floor.locker.wait(lambda: floor.locker.nbytes >= floor.mapped > 0)
        del batch
        before = large.nbytes
        for batch in loader:
            pass
        del batch
        assert before
    assert floor.locker.did("unlock")


@pytest.mark.asyncio
async def test_the_loop_goes_on_while_a_large_segment_is_being_locked(floor):
    floor.locker.gate.clear()
    lags: list[float] = []

    async def tick() -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)  # sleep: the time that it takes is what is measured
            lags.append(time.perf_counter() - before - 0.001)
            before = time.perf_counter()

    async with loader_of(8, 16 * MIB, num_workers=1) as loader:
        ticking: asyncio.Task[None] | None = None
        async for batch in loader:
            if ticking is None:
                ticking = asyncio.create_task(tick())
            assert batch[0].nbytes == 256 * MIB
            assert not floor.is_locked(batch[0])
            del batch
        assert floor.locker.did("locking")
        assert not floor.locker.locked
        assert ticking is not None
        ticking.cancel()
        floor.locker.gate.set()
    print(f"lag {max(lags)}")
    assert max(lags) < 0.05


@pytest.mark.asyncio
async def test_no_copy_runs_from_memory_that_is_unlocked(floor):
    """The simulated device says so if one does. What it copies from is kept until the copy has been executed."""
    floor.accelerator = sim = SimulatedAccelerator(h2d=1e9)
    sim.open()
    floor.locker.wait(lambda: True)
    for _ in range(2):
        async with loader_of(24, 50_000) as loader:
            kept: list[tuple[torch.Tensor, Any]] = []
            async for batch in loader:
                copied = sim.copy(batch[0])
                kept.append((copied, (sim.record(sim.current()), batch)))
                kept = [(data, (event, host)) for data, (event, host) in kept if not sim.passed(event)]
                assert np.isfinite(batch[0].numpy()).all()
            sim.synchronize()
            assert sim.locked_calls
            del batch, kept, copied
    sim.check()
