"""A prepared loader beyond what a whole epoch shows: devices, errors, ends before the end, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from aloader import DataLoader
from aloader.pool.template import TemplateStarter
from tests.ecosystem.launcher import needs
from tests.loader.samples import AsyncNumbers, Numbers

pytestmark = [
    pytest.mark.ecosystem,
    needs("accelerate"),
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("default:::accelerate"),
]


class Fifth(AsyncNumbers):
    """Sample 5 fails."""

    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        if index == 5:
            raise KeyError(index)
        return await super().__getitem__(index)


class Stream:
    """Read with `async for`."""

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(7):
            yield number


class Dated(Numbers):
    """Samples say which epoch their replica of the dataset has been told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        return self.epoch


class Kit:
    """What is to be tested, imported only where it is installed."""

    def __init__(self) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        from aloader.integrations import accelerate

        self.module = accelerate
        self.accelerators, self.config = Accelerator, DataLoaderConfiguration

    def prepare(self, dataset: Any = None, *, configuration: dict[str, Any] | None = None, **arguments: Any) -> Any:
        self.accelerator = self.accelerators(cpu=True, dataloader_config=self.config(**configuration or {}))
        loader = DataLoader(AsyncNumbers(8) if dataset is None else dataset, **{"batch_size": 2} | arguments)
        return self.module.prepare(self.accelerator, loader)


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.mark.asyncio
async def test_who_is_cancelled_while_it_is_entered_leaves_nothing(kit, children, monkeypatch):
    opened, cancelled, others = threading.Event(), threading.Event(), children()

    def slow(starter, open=TemplateStarter.open):
        open(starter)
        opened.set()
        cancelled.wait(20)

    async def enter():
        async with kit.prepare(num_workers=1):
            pytest.fail("it was not cancelled")

    monkeypatch.setattr(TemplateStarter, "open", slow)
    task = asyncio.create_task(enter())
    await asyncio.to_thread(opened.wait)
    assert len(children() - others) == 1
    task.cancel()
    await asyncio.wait([task])
    cancelled.set()
    assert task.cancelled()
    assert children() == others


@pytest.mark.asyncio
async def test_batches_are_moved_to_the_device(kit):
    """Both ways. No accelerator is needed for a device that holds nothing."""
    async with kit.prepare() as loader:
        assert loader.device == torch.device("cpu")
        loader.device = torch.device("meta")
        assert [batch.device.type for batch in loader] == ["meta"] * 4
        assert [batch.device.type async for batch in loader] == ["meta"] * 4


@pytest.mark.asyncio
async def test_batches_stay_where_they_are_if_accelerate_is_told_so(kit):
    accelerator = kit.accelerators(cpu=True)
    async with kit.module.prepare(accelerator, DataLoader(AsyncNumbers(8)), device_placement=False) as loader:
        assert loader.device is None
        assert len([batch async for batch in loader]) == 8


@pytest.mark.asyncio
async def test_after_a_samples_error_the_next_batch_can_be_had(kit):
    """The one before it, which was held to see whether another comes, is not lost either."""
    async with kit.prepare(Fifth(10)) as loader:
        batches, found = aiter(loader), []
        with pytest.raises(KeyError, match="5"):
            while True:
                found.append((await anext(batches)).tolist())
        assert found == [[0, 1]]
        assert [batch.tolist() async for batch in batches] == [[2, 3], [6, 7], [8, 9]]


@pytest.mark.asyncio
async def test_an_epoch_can_be_ended_before_its_end(kit):
    async with kit.prepare() as loader:
        batches, state = aiter(loader), kit.accelerator.gradient_state
        await anext(batches)
        assert state.in_dataloader
        await batches.aclose()
        await batches.aclose()
        assert not state.in_dataloader
        assert [batch async for batch in batches] == []
        assert len([batch async for batch in loader]) == 4


@pytest.mark.asyncio
async def test_an_exhausted_epoch_stays_so_and_counts_once(kit):
    async with kit.prepare() as loader:
        batches = aiter(loader)
        assert len([batch async for batch in batches]) == 4
        assert [batch async for batch in batches] == []
        assert loader.iteration == 1
    async with kit.prepare(AsyncNumbers(0)) as empty:
        assert [batch async for batch in empty] == []
        assert empty.iteration == 0  # as accelerate counts


@pytest.mark.asyncio
async def test_skipped_batches_are_not_loaded_and_figures_stay(kit):
    loader = kit.prepare(AsyncNumbers(7))
    state = kit.accelerator.gradient_state
    async with loader, kit.module.skip_first_batches(loader, 2) as rest:
        assert (len(rest), rest.total_batch_size) == (2, loader.total_batch_size)
        assert [(batch.tolist(), state.remainder) async for batch in rest] == [([4, 5], 1), ([6], 1)]
        assert rest.stats().batches == 2
        assert len([batch async for batch in loader]) == 4
        assert [batch.tolist() for batch in kit.module.skip_first_batches(rest, 1)] == [[6]]


def test_skipping_in_other_loaders_is_left_to_accelerate(kit):
    theirs = kit.accelerators(cpu=True).prepare(TorchDataLoader(Numbers(6), batch_size=2))
    assert [batch.tolist() for batch in kit.module.skip_first_batches(theirs, 1)] == [[2, 3], [4, 5]]
    plain = TorchDataLoader(Numbers(6), batch_size=2)
    assert [batch.tolist() for batch in kit.module.skip_first_batches(plain, 1)] == [[2, 3], [4, 5]]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_with_and_close_are_the_loaders(kit):
    loader = kit.prepare(num_workers=1)
    async with loader as same:
        assert same is loader
        assert len([batch async for batch in loader]) == 4
        assert loader.stats().workers == 1
    assert loader.closed
    with kit.prepare(num_workers=1) as other:
        assert len(list(other)) == 4
    assert other.closed


def test_every_argument_goes_along(kit):
    """Also what torch's own loader would refuse without workers."""
    loader = kit.prepare(prefetch_factor=3, concurrency=5, memory_limit="1GiB", collate_fn=sorted, timeout=9)
    base = loader.base_dataloader
    assert (base.explicit_prefetch, base.concurrency, base.memory_limit, base.timeout) == (3, 5, "1GiB", 9)
    assert base.collate_fn == sorted


@pytest.mark.asyncio
async def test_a_stream_is_read_with_either_loop(kit):
    expected = [[0, 1], [2, 3], [4, 5], [6]]
    async with kit.prepare(Stream(), configuration={"dispatch_batches": False}) as loader:
        assert [batch.tolist() async for batch in loader] == expected
        assert [batch.tolist() for batch in loader] == expected
        rest = kit.module.skip_first_batches(loader, 3)
        assert [batch.tolist() for batch in rest] == expected[3:]


@pytest.mark.asyncio
async def test_a_share_of_a_stream_is_filled_up_from_its_beginning(kit):
    shards = [kit.module.DatasetShard(Stream(), 2, num_processes=2, process_index=index) for index in range(2)]
    assert [[number async for number in shard] for shard in shards] == [[0, 1, 4, 5], [2, 3, 6, 0]]
    shards = [kit.module.DatasetShard(Stream(), 2, True, num_processes=2, process_index=index) for index in range(2)]
    assert [[number async for number in shard] for shard in shards] == [[0, 1], [2, 3]]
    shards = [kit.module.DatasetShard(Stream(), 4, False, 2, index, split_batches=True) for index in range(2)]
    assert [[number async for number in shard] for shard in shards] == [[0, 1, 4, 5], [2, 3, 6, 0]]


@pytest.mark.slow
def test_workers_that_are_kept_are_told_the_epoch(kit):
    """accelerate's own loader tells the dataset of this process alone."""
    with kit.prepare(Dated(2), num_workers=1, persistent_workers=True) as loader:
        assert [batch.tolist() for _ in range(3) for batch in loader] == [[0, 0], [1, 1], [2, 2]]
        loader.set_epoch(7)
        assert [batch.tolist() for batch in loader] == [[7, 7]]


def test_what_is_adopted_is_adopted_once(kit):
    """For frameworks that have accelerate prepare a loader of torch's own."""
    prepared = kit.accelerators(cpu=True).prepare(TorchDataLoader(AsyncNumbers(8), batch_size=2))
    assert kit.module.adopt(prepared, concurrency=3) is prepared
    base = prepared.base_dataloader
    assert (type(base), base.concurrency) == (DataLoader, 3)
    assert kit.module.adopt(prepared, concurrency=4).base_dataloader is base
    assert [batch.tolist() for batch in prepared] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_what_cannot_be_done_is_refused_with_a_sentence(kit):
    accelerator = kit.accelerators(cpu=True)
    with pytest.raises(TypeError, match=r"takes an aloader\.DataLoader, not DataLoader: change the loader's import"):
        kit.module.prepare(accelerator, TorchDataLoader(Numbers(8)))
    with pytest.raises(TypeError, match="which aloader cannot be put into"):
        kit.module.adopt(TorchDataLoader(Numbers(8)))
    with pytest.raises(TypeError, match="iterate with `for`, or prepare with DataLoaderConfiguration"):
        aiter(kit.prepare(configuration={"dispatch_batches": True}))
