"""What other tools know a loader by: names of threads, labels in a profile, what DataPipes are told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from aloader import DataLoader

from .samples import AsyncNumbers, Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


class Named(Numbers):
    """Sample i is the name that the system knows this thread by."""

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return Path("/proc/thread-self/comm").read_text().strip()


@pytest.mark.parametrize("context", [None, "fork"])
def test_a_workers_thread_has_torchs_name(context):
    with DataLoader(Named(1), batch_size=None, num_workers=1, multiprocessing_context=context) as loader:
        assert list(loader) == ["pt_data_worker"]


@pytest.fixture(scope="module", autouse=True)
def _profiler_has_been_used():
    """Its first use leaves descriptors open."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass


def labels(profile):
    return {event.key: event.count for event in profile.key_averages() if "DataLoader" in event.key}


@pytest.mark.parametrize(("dataset", "workers"), [(Numbers, 0), (Numbers, 1), (AsyncNumbers, 0)])
def test_a_profile_has_torchs_labels(dataset, workers):
    found = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        loader = kind(Numbers(4) if kind is not DataLoader else dataset(4), num_workers=workers)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert len(list(loader)) == 4
        found.append(labels(profile))
    loader.close()
    assert found[0] == found[1]
    assert len(found[0]) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("dataset", "workers"), [(Numbers, 1), (AsyncNumbers, 0)])
async def test_with_async_for_the_step_that_takes_the_batch_is_labelled(dataset, workers):
    async with DataLoader(dataset(4), num_workers=workers) as loader:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert len([batch async for batch in loader]) == 4
    ((label, count),) = labels(profile).items()
    assert label.endswith("Iter.__next__")
    assert ("Multi" in label) == (workers > 0)
    assert count in (4, 5)


class Pipe(IterDataPipe):
    def __iter__(self):
        return iter(())


class MapPipe(MapDataPipe):
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("pipe", [Pipe, MapPipe])
def test_a_datapipe_is_refused_with_what_to_do_instead(pipe):
    with pytest.raises(NotImplementedError, match=rf"^{pipe.__name__} is a DataPipe.*torch's loader for this one$"):
        DataLoader(pipe())
