"""`device=`: whole loaders, with the simulated accelerator. Batches, their order, what is raised, and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time

import pytest
import torch

import aloader
from aloader.testing import SimulatedAccelerator
from tests.device.cards import CARDS, card_of
from tests.device.kit import SIZE, AsyncStamped, Stamped, Steps, batches_of, number_of_batches, simulated

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(params=CARDS)
def sim(request):
    accelerator = card_of(request.param)
    yield accelerator
    accelerator.check()


@pytest.fixture
def simulator():
    accelerator = simulated()
    yield accelerator
    accelerator.check()


async def epoch(loader, steps):
    async for batch in loader:
        steps.step(batch)


def plain_epoch(loader, steps):
    for batch in loader:
        steps.step(batch)


WAYS = [
    pytest.param(Stamped, {"num_workers": 2}, id="workers"),
    pytest.param(AsyncStamped, {"num_workers": 1}, id="async workers"),
    pytest.param(Stamped, {}, id="here"),
    pytest.param(AsyncStamped, {}, id="async here"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "how"), WAYS)
@pytest.mark.parametrize("plain", [False, True], ids=["async for", "for"])
def test_every_batch_is_on_the_device_when_it_is_used(sim, kind, how, plain):
    steps, samples = Steps(sim), SIZE * number_of_batches(12) + 2
    with aloader.DataLoader(kind(samples), SIZE, device=sim, **how) as loader:
        if plain:
            plain_epoch(loader, steps)
        else:
            asyncio.run(epoch(loader, steps))
        assert steps.seen() == batches_of(samples)


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True], ids=["async for", "for"])
def test_the_same_in_debug_mode(sim, plain, monkeypatch):
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    steps = Steps(sim)
    with aloader.DataLoader(Stamped(20), SIZE, num_workers=2, device=sim) as loader:
        if plain:
            plain_epoch(loader, steps)
        else:
            asyncio.run(epoch(loader, steps))
    assert steps.seen() == batches_of(20)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_copies_run_while_the_device_computes():
    sim = SimulatedAccelerator(h2d=2e8)  # half a millisecond a batch
    async with aloader.DataLoader(Stamped(120), SIZE, num_workers=1, device=sim, persistent_workers=True) as loader:
        for ahead in (2, 4):
            loader.device_prefetch, steps, before = ahead, Steps(sim, 1e-3), len(sim.trace)
            async for batch in loader:
                steps.step(batch)
                await asyncio.sleep(0)
                while loader.stats().batches_ready < min(ahead, 30 - len(steps.launched)):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)  # sleep: the workers take real time, which the device does not know
                sim.synchronize()  # `loss.item()`: the program does not run ahead of the device
            assert steps.seen() == batches_of(120)
            computing = [span for span in sim.trace[before:] if span.name.startswith("compute")]
            copying = [span for span in sim.trace[before:] if span.nbytes > 1000][ahead + 1 :]
            hidden = [any(one.begin < kernel.end and kernel.begin < one.end for kernel in computing) for one in copying]
            assert sum(hidden) > 0.9 * len(copying), f"{sum(hidden)} of {len(copying)} copies run beside the computing"
    sim.check()


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True], ids=["async for", "for"])
def test_no_more_than_one_batch_beyond_those_ahead_is_on_the_device(plain):
    """However far the program runs ahead of the device: here it never waits for it."""
    sim = simulated(h2d=1e9)
    with aloader.DataLoader(Stamped(80), SIZE, num_workers=1, device=sim, persistent_workers=True) as loader:
        for ahead in (1, 2):
            loader.device_prefetch, steps = ahead, Steps(sim, 5e-3)
            if plain:
                plain_epoch(loader, steps)
            else:
                asyncio.run(epoch(loader, steps))
            batch = SIZE * Stamped(1).row * 4 + 2048
            assert steps.seen() == batches_of(80)
            assert sim.peak_bytes <= (ahead + 1) * batch, f"{sim.peak_bytes / batch:.1f} batches on the device"
    sim.check()


def fail_on(number):
    def transform(batch):
        _, labels = batch
        if int(labels[0]) == number * SIZE:
            raise KeyError(f"batch {number}")
        return batch

    return transform


@pytest.mark.asyncio
@pytest.mark.slow
async def test_an_error_of_a_copy_is_raised_in_the_place_of_its_batch(simulator):
    sim = simulator
    sim.fail_copies = {5}  # two tensors a batch: the third's first
    steps, failed = Steps(sim), []
    async with aloader.DataLoader(Stamped(24), SIZE, num_workers=2, device=sim) as loader:
        batches = aiter(loader)
        for number in range(6):
            try:
                steps.step(await anext(batches))
            except RuntimeError:
                failed.append(number)
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        assert failed == [2]
        assert loader.stats().batches == 6
    assert steps.seen() == [one for at, one in enumerate(batches_of(24)) if at != 2]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "how"), [WAYS[0], *WAYS[2:]])  # what a worker runs makes no difference here
def test_an_error_of_the_transform_is_raised_in_the_place_of_its_batch(kind, how):
    seen, failed = [], []
    with aloader.DataLoader(kind(24), SIZE, device="cpu", device_transform=fail_on(3), **how) as loader:
        batches = iter(loader)
        for number in range(6):
            try:
                seen.append(next(batches)[1].tolist())
            except KeyError as error:
                failed.append((number, error.args))
        assert next(batches, None) is None
    assert failed == [(3, ("batch 3",))]
    assert seen == [one for at, one in enumerate(batches_of(24)) if at != 3]


@pytest.mark.asyncio
@pytest.mark.slow
async def test_an_end_of_iteration_in_the_transform_does_not_end_the_epoch():
    def transform(batch):
        return next(iter(()))

    async with aloader.DataLoader(Stamped(8), SIZE, num_workers=1, device="cpu", device_transform=transform) as loader:
        with pytest.raises(RuntimeError, match="StopIteration was raised"):
            await anext(aiter(loader))


@pytest.mark.asyncio
@pytest.mark.slow
async def test_cancelling_loses_no_batch(sim):
    steps = Steps(sim)
    async with aloader.DataLoader(Stamped(100), SIZE, num_workers=2, device=sim) as loader:
        batches = aiter(loader)
        steps.step(await anext(batches))  # a thousand attempts while the workers start show nothing more
        for attempt in itertools.count():
            waiting = asyncio.ensure_future(anext(batches))
            for _ in range(attempt % 5):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                steps.step(await waiting)
            except asyncio.CancelledError:
                continue
            except StopAsyncIteration:
                break
    assert steps.seen() == batches_of(100)


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True], ids=["async for", "for"])
def test_a_broken_off_epoch_leaves_nothing_behind(sim, plain):
    steps = Steps(sim)

    def some(loader):
        for number, batch in enumerate(loader):
            steps.step(batch)
            if number == 3:
                break

    async def some_async(loader):
        async for batch in loader:
            steps.step(batch)
            if len(steps.launched) == 4:
                break

    loader = aloader.DataLoader(Stamped(400), SIZE, num_workers=1, device=sim)
    for _ in range(2):
        if plain:
            some(loader)
        else:
            asyncio.run(some_async(loader))
    loader.close()
    steps.seen()
    del loader
    gc.collect()
    deadline = time.monotonic() + 10
    while sim.locked and time.monotonic() < deadline:
        time.sleep(0.001)  # sleep: threads unlock it, once a real device is done with the last copies
    assert not sim.locked


@pytest.mark.asyncio
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::aloader.WorkerWarning")
async def test_workers_that_are_killed_lose_nothing(sim):
    steps = Steps(sim)
    async with aloader.DataLoader(Stamped(160), SIZE, num_workers=2, device=sim, max_worker_restarts=100) as loader:
        async for batch in loader:
            steps.step(batch)
            if len(steps.launched) % 10 == 5:
                with contextlib.suppress(ValueError):
                    loader.restart_worker(len(steps.launched) % 2)
    assert steps.seen() == batches_of(160)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_state_is_behind_what_the_program_has_had_and_not_behind_what_was_copied(sim):
    steps = Steps(sim)
    async with aloader.DataLoader(Stamped(80), SIZE, num_workers=2, device=sim, device_prefetch=4) as loader:
        async for batch in loader:
            steps.step(batch)
            await asyncio.sleep(0.005)  # sleep: so that more is copied than was had
            if len(steps.launched) == 7:
                break
        state = loader.state_dict()
    async with aloader.DataLoader(Stamped(80), SIZE, device="cpu") as loader:
        loader.load_state_dict(state)
        rest = [labels.tolist() async for _, labels in loader]
    assert steps.seen() + rest == batches_of(80)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_sampler_that_follows_the_training_sees_what_it_would_see_without():
    """What is copied ahead has been given out by then; drawing does not follow copying."""

    had, draws = [0], []

    class Following(torch.utils.data.Sampler):
        def __len__(self):
            return 20

        def __iter__(self):
            for number in range(20):
                draws.append((number, had[0]))
                yield number

    async with aloader.DataLoader(
        Stamped(20), 2, sampler=Following(), num_workers=1, device="cpu", persistent_workers=True
    ) as loader:
        found = []
        for loader.device in ("cpu", None):
            had[0] = 0
            draws.clear()
            async for _ in loader:
                had[0] += 1
            found.append([*draws])
    assert found[0] == found[1] != []


def noise(**more):
    """What is drawn for each batch of two epochs."""

    def noisy(batch):
        return torch.rand(2)

    with aloader.DataLoader(Stamped(16), SIZE, device="cpu", device_transform=noisy, **more) as loader:
        return [[drawn.tolist() for drawn in loader] for _ in range(2)]


def test_what_the_transform_draws_is_a_function_of_seed_epoch_and_place():
    first, second = noise(seed=1)
    assert noise(seed=1) == [first, second]
    assert len({str(drawn) for drawn in first + second}) == 8
    assert noise(seed=2) != [first, second]
    torch.manual_seed(3)
    before = noise()
    torch.manual_seed(3)
    assert noise() == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 5], ids=["torch's seeds", "seed"])
def test_the_draws_of_a_transform_are_the_same_for_any_number_of_workers(seed):
    torch.manual_seed(3)
    here = noise(seed=seed)
    torch.manual_seed(3)
    epochs = 1 if seed is None else 2  # torch draws no new seed for workers that are kept
    first, second = noise(seed=seed, num_workers=2, persistent_workers=True)
    assert [first, second][:epochs] == here[:epochs]
    assert first != second


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [Stamped, AsyncStamped])
async def test_and_so_it_is_when_an_epoch_goes_on_in_which_some_have_overtaken_others(kind):
    """A batch's place is not how many the program has had before it."""

    class Gated(AsyncStamped):
        gate = asyncio.Event()

        async def __getitem__(self, index):
            if index < SIZE:
                await self.gate.wait()
            return Stamped.__getitem__(self, index)

    def noisy(batch):
        return int(batch[1][0]) // SIZE, torch.rand(2).tolist()

    def loader_of(data, **more):
        return aloader.DataLoader(data, SIZE, seed=1, device="cpu", device_transform=noisy, **more)

    with loader_of(kind(20, 16)) as loader:
        whole = list(loader)
    async with loader_of(Gated(20, 16), in_order=False) as loader:
        assert await anext(aiter(loader)) == whole[1]
        state = loader.state_dict()
    with loader_of(kind(20, 16)) as loader:
        loader.load_state_dict(state)
        assert list(loader) == [whole[0], *whole[2:]]


@pytest.mark.asyncio
async def test_batches_are_ordinary_tensors_in_the_middle_of_an_evaluation(sim):
    with torch.inference_mode():
        loader = aloader.DataLoader(Stamped(8), SIZE, device="cpu", device_transform=lambda batch: batch[0] + 1)
        async with loader:
            batch = await anext(aiter(loader))
    assert not batch.is_inference()
    batch.float().requires_grad_()


@pytest.mark.asyncio
@pytest.mark.slow
async def test_memory_that_cannot_be_locked_is_copied_by_a_thread_and_said_once():
    sim = simulated(refuse_locks="RLIMIT_MEMLOCK is 64 KiB")
    steps = Steps(sim)
    data = Stamped(24, 100_000)  # beyond what is copied in the consumer's own step
    async with aloader.DataLoader(data, SIZE, num_workers=2, device=sim) as loader:
        with pytest.warns(Warning, match="RLIMIT_MEMLOCK is 64 KiB") as told:
            await epoch(loader, steps)
    assert len(told) == 1
    assert steps.seen() == batches_of(24)
    assert sim.waits == 0
    sim.check()


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_device_that_is_not_there_is_an_error_of_the_first_batch():
    sim = simulated(fail_open="there is no such device")
    async with aloader.DataLoader(Stamped(8), SIZE, num_workers=1, device=sim) as loader:
        with pytest.raises(RuntimeError, match="there is no such device"):
            await anext(aiter(loader))
    with pytest.raises(RuntimeError, match="there is no such device"):
        next(iter(aloader.DataLoader(Stamped(8), SIZE, device=sim)))
