"""Whole crews: what their workers write is locked from the first batches on, and nothing is when they have gone."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch

from aloader import DataLoader, options
from aloader.device.pages import Pages
from aloader.pool.crew import Crew
from aloader.pool.launching import Launcher
from aloader.pool.workers import Worker
from aloader.testing import SimulatedAccelerator
from tests.device.locker import Locker
from tests.loader.samples import Stamped, check

pytestmark = pytest.mark.usefixtures("nothing_left")


class Floor:
    """All crews whose workers are started in a test have keepers of the same accelerator."""

    def __init__(self) -> None:
        self.locker = Locker()
        self.crews: list[Crew] = []
        self.warned: list[str] = []

    def equip(self, crew: Crew) -> None:
        """What a loader does where it has a device."""
        if crew.pages is None:
            crew.pages = Pages(self.locker, options.GIB, self.warned.append)  # type: ignore[arg-type]
            self.crews.append(crew)

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
    spawn = Launcher._spawn

    def spawned(launcher: Launcher) -> Worker:
        floor.equip(launcher._crew)
        return spawn(launcher)

    monkeypatch.setattr(Launcher, "_spawn", spawned)
    yield floor
    floor.locker.gate.set()
    floor.locker.wait(lambda: not floor.locker.locked)
    assert floor.locker.wrong == []
    assert floor.warned == []


def loader_of(n: int, floats: int = 30_000, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Stamped(n, floats), batch_size=4, **{"num_workers": 1, **settings})


def test_batches_lie_in_locked_memory_and_closing_unlocks_it(floor):
    with loader_of(40, num_workers=2, persistent_workers=True) as loader:
        batches = iter(loader)
        check(next(batches))
        floor.locker.wait(lambda: floor.locker.nbytes >= floor.mapped > 0)
        assert sum(len(check(batch)) for batch in batches) == 36
        assert floor.locker.nbytes > 0
        for batch in loader:
            assert floor.is_locked(batch[0])
            break
        del batch
    assert len(floor.crews) == 1
    floor.locker.wait(lambda: not floor.locker.locked)


@pytest.mark.asyncio
async def test_a_killed_workers_memory_is_unlocked_and_its_successors_is_locked(floor):
    locker, killed = floor.locker, []

    async def iterate(loader: DataLoader[Any]) -> AsyncIterator[int]:
        async for batch in loader:
            for index in check(batch):
                yield index
            if not killed:
                await asyncio.to_thread(locker.wait, lambda: locker.nbytes >= floor.mapped > 0)
                killed.append((floor.crews[0].workers[0], set(locker.locked)))
                os.kill(killed[0][0].pid, signal.SIGKILL)

    async with loader_of(120) as loader:
        with pytest.warns(match="worker"):
            assert [index async for index in iterate(loader)] == list(range(120))
        ((first, its),) = killed
        assert floor.crews[0].latest[0] is not first
        await asyncio.to_thread(locker.wait, lambda: its <= {address for address, _ in locker.did("unlock")})
        await asyncio.to_thread(locker.wait, lambda: len(locker.did("lock")) > len(its))


def test_a_batch_that_outlives_its_loader_is_locked_until_it_dies(floor):
    batches = iter(loader_of(40))
    kept = [next(batches)]
    floor.locker.wait(lambda: floor.is_locked(kept[0][0]))
    del batches  # and with it the loader, the crew and the workers
    floor.locker.wait(lambda: len(floor.locker.locked) == 1)
    assert floor.is_locked(kept[0][0])
    assert check(kept.pop()) == [0, 1, 2, 3]
    floor.locker.wait(lambda: not floor.locker.locked)


@pytest.mark.asyncio
async def test_the_loop_goes_on_while_a_large_segment_is_being_locked(floor):
    """The driver takes as long as the epoch. Batches are not pinned meanwhile, and that is all."""
    floor.locker.gate.clear()
    lags: list[float] = []

    async def tick() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.001)  # sleep: how much longer it takes is what is measured
            lags.append(loop.time() - before - 0.001)

    async with loader_of(12, 16 * options.MIB) as loader:
        ticking = None
        async for batch in loader:
            ticking = ticking or asyncio.create_task(tick())
            assert batch[0].nbytes == 256 * options.MIB
            assert not floor.is_locked(batch[0])
            del batch
        assert len(floor.locker.did("locking")) == 1
        assert ticking is not None
        ticking.cancel()
        floor.locker.gate.set()
    assert len(lags) > 10
    assert max(lags) < 0.5  # some 10 ms, where nothing else is going on


@pytest.mark.asyncio
async def test_no_copy_runs_from_memory_that_is_unlocked(floor):
    """The simulated device says so where one does: with a kept batch, its mapping stays locked, whoever has ended."""
    floor.locker.beside = sim = SimulatedAccelerator(h2d=1e6)
    sim.open()
    copies: list[Any] = []
    async with loader_of(24, 50_000) as loader:
        async for batch in loader:  # what is not locked yet is copied at once, and nothing of it is left to go on
            await asyncio.to_thread(floor.locker.wait, functools.partial(floor.is_locked, batch[0]))
            copies.append((sim.copy(batch[0]), batch, sim.record(sim.current())))
    assert not sim.passed(copies[-1][2])
    sim.synchronize()
    assert sim.locked_calls
    assert all((data == check_of(batch)).all() for data, batch, _ in copies)
    del batch, copies
    await asyncio.to_thread(floor.locker.wait, lambda: not floor.locker.locked)
    assert sim.locked == {}
    sim.check()


def check_of(batch: Any) -> torch.Tensor:
    """What a batch of `Stamped` holds, told from its indices."""
    return batch[1][:, None].to(batch[0].dtype)
