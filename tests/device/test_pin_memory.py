"""`pin_memory`: whose memory batches lie in, and that copies which the program begins itself find what they should.

The program drops the host batch at once, as programs do: `x = x.to(device, non_blocking=True)`.

A hundred batches are enough for what is wrong each time. For what is wrong now and then, here and in
`test_loading.py`, with so many batches a case:

    ALOADER_TEST_BATCHES=10000 pytest -n 0 -o faulthandler_timeout=1200 -k "dropped_when or device_when" \\
        tests/device/test_pin_memory.py tests/device/test_loading.py
"""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

import aloader
from aloader.channel.leaves import LEASE
from aloader.device import choosing, pinning
from tests.device.cards import CARDS, card_of
from tests.device.kit import SIZE, AsyncStamped, Stamped, Steps, batches_of, number_of_batches, simulated
from tests.device.locker import PATIENCE

BATCHES = number_of_batches(120)


@pytest.fixture(params=CARDS)
def sim(request):
    accelerator = card_of(request.param, h2d=1e9)
    accelerator.open()  # programs that copy have done so
    with accelerator.assumed():
        yield accelerator
    accelerator.check()


def moved(sim, batch):
    x, labels = batch
    return [sim.to(x, non_blocking=True), sim.to(labels, non_blocking=True)]


def on_the_current_stream(sim, steps, loader):
    for batch in loader:
        batch = moved(sim, batch)
        steps.step(batch)


def on_a_side_stream(sim, steps, loader):
    side = sim.new_stream("copies")
    for batch in loader:
        with sim.on(side):
            batch = moved(sim, batch)
        sim.wait(sim.current(), sim.record(side))
        for tensor in batch:
            sim.record_stream(tensor, sim.current())
        steps.step(batch)


def with_a_prefetcher(sim, steps, loader):
    """As timm's: the next one is copied on a stream of its own while this one is computed on."""
    side, before = sim.new_stream("copies"), None
    for batch in loader:
        with sim.on(side):
            following = moved(sim, batch)
        if before is not None:
            steps.step(before)
        sim.wait(sim.current(), sim.record(side))
        for tensor in following:
            sim.record_stream(tensor, sim.current())
        before = following
    steps.step(before)


def settle():
    """Until what has been mapped is page-locked: an epoch may be over before."""
    for thread in threading.enumerate():
        if thread.name == "aloader-lock":
            thread.join(PATIENCE)


PROGRAMS = [on_the_current_stream, on_a_side_stream, with_a_prefetcher]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_batch_may_be_dropped_when_its_copy_has_begun(sim, program):
    steps = Steps(sim, 2e-4)
    with aloader.DataLoader(Stamped(SIZE * BATCHES), SIZE, num_workers=1, pin_memory=True) as loader:
        program(sim, steps, loader)
    assert steps.seen() == batches_of(SIZE * BATCHES)
    assert sim.waits == 0


@pytest.mark.slow
def test_views_of_the_arena_would_be_overwritten_under_the_copy(monkeypatch):
    """What `pin_memory=True` is not, and what the duty of "arena" is for."""
    sim = simulated(h2d=1e8)
    monkeypatch.setattr(pinning, "pinner", lambda pin_memory: pinning.in_arena(sim))
    steps = Steps(sim, 2e-4)
    with sim.assumed(), aloader.DataLoader(Stamped(SIZE * 40), SIZE, num_workers=1, pin_memory="arena") as loader:
        on_the_current_stream(sim, steps, loader)
    with pytest.raises(AssertionError):
        sim.check()
        steps.seen()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [(Stamped, 0), (AsyncStamped, 0), (Stamped, 1)])
@pytest.mark.parametrize("plain", [False, True], ids=["async for", "for"])
def test_true_is_one_copy_in_memory_of_torchs(sim, kind, workers, plain):
    async def looked_at(loader):
        return [look(x, labels) async for x, labels in loader]

    def look(x, labels):
        assert sim.is_pinned(x)
        assert sim.is_pinned(labels)
        assert not hasattr(x.untyped_storage(), LEASE)
        return labels.tolist()

    with aloader.DataLoader(kind(24), SIZE, num_workers=workers, pin_memory=True) as loader:
        found = [look(*batch) for batch in loader] if plain else asyncio.run(looked_at(loader))
    assert found == batches_of(24)
    assert not sim.locked_calls


@pytest.mark.slow
def test_arena_is_the_workers_own_memory_page_locked(sim):
    with aloader.DataLoader(Stamped(200), SIZE, num_workers=1, pin_memory="arena") as loader:
        leased = 0
        for number, (x, labels) in enumerate(loader):
            assert sim.is_pinned(x)
            assert sim.is_pinned(labels)
            leased += hasattr(x.untyped_storage(), LEASE)
            assert x[:, 0].tolist() == labels.tolist() == batches_of(200)[number]
            del x
    assert leased > 25, "those that had to wait for their memory to be locked were copied"


@pytest.mark.slow
def test_true_is_a_copy_also_where_workers_have_been_kept_whose_memory_is_page_locked(sim):
    with aloader.DataLoader(Stamped(40), SIZE, num_workers=1, pin_memory="arena", persistent_workers=True) as loader:
        for _ in loader:
            pass
        settle()
        assert sim.locked
        loader.pin_memory = True
        found = [(hasattr(x.untyped_storage(), LEASE), labels.tolist()) for x, labels in loader]
    assert found == [(False, batch) for batch in batches_of(40)]


class PinsItself:
    """As torch's PackedSequence: what lies in page-locked memory already is left there. It tells nobody whose that is.

    The batch is three steps deep in it, and beside it there is a tensor that it does not pin.
    """

    sim = None  # where batches are pinned: a thread of the loader's

    def __init__(self, samples):
        self.parts = {"x": (torch.stack([x for x, _ in samples]),)}
        self.labels = torch.tensor([label for _, label in samples])

    def pin_memory(self):
        sim = PinsItself.sim
        self.parts = {"x": tuple(x if sim.is_pinned(x) else sim.pin(x) for x in self.parts["x"])}
        return self


@pytest.mark.slow
def test_a_batch_that_pins_itself_is_a_copy_there_too(sim, monkeypatch):
    monkeypatch.setattr(PinsItself, "sim", sim)
    with aloader.DataLoader(
        Stamped(40), SIZE, num_workers=1, pin_memory="arena", persistent_workers=True, collate_fn=PinsItself
    ) as loader:
        for _ in loader:
            pass
        settle()
        assert sim.locked
        loader.pin_memory = True
        found = []
        for batch in loader:
            assert type(batch) is PinsItself
            (x,) = batch.parts["x"]
            assert sim.is_pinned(x)
            assert not sim.is_pinned(batch.labels)
            found.append((hasattr(x.untyped_storage(), LEASE), batch.labels.tolist(), x[:, 0].tolist()))
    assert found == [(False, numbers, numbers) for numbers in batches_of(40)]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_an_error_of_pinning_is_raised_in_the_place_of_its_batch(sim):
    class Stubborn:
        def __init__(self, number):
            self.number = number

        def pin_memory(self):
            if self.number == 2:
                raise ValueError("this one stays where it is")
            return self

    def collate(samples):
        return Stubborn(samples[0][1] // SIZE)

    loader = aloader.DataLoader(Stamped(16), SIZE, num_workers=1, pin_memory=True, collate_fn=collate)
    async with loader:
        batches, seen = aiter(loader), []
        for _ in range(4):
            try:
                seen.append((await anext(batches)).number)
            except ValueError as error:
                seen.append(str(error))
    assert seen == [0, 1, "this one stays where it is", 3]


def test_without_an_accelerator_it_warns_as_torch_does_and_pins_nothing():
    if choosing.kind():
        pytest.skip("there is an accelerator")
    for wanted in (True, "arena"):
        with pytest.warns(UserWarning, match="no accelerator is found"):
            x, _ = next(iter(aloader.DataLoader(Stamped(8), SIZE, pin_memory=wanted)))
        assert not x.is_pinned()
