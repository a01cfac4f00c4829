"""An async dataset that has got into torch's own loader says so, however it got there; in aloader's nothing is seen."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset, default_collate

from aloader import DataLoader
from aloader.worker.stray import Guarded, unguarded
from tests.loader.samples import AsyncNumbers, Numbers, as_list

pytestmark = pytest.mark.usefixtures("nothing_left")

SENTENCE = "AsyncNumbers is async; torch's own loader cannot await it: iterate aloader.DataLoader"


class InBulk(Numbers):
    """All samples of a batch in one coroutine."""

    async def __getitems__(self, indices: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return indices


def as_accelerate_does(loader: DataLoader) -> TorchDataLoader:
    """torch's own loader, of a loader's parts."""
    names = "batch_size num_workers collate_fn multiprocessing_context".split()
    return TorchDataLoader(loader.dataset, **{name: getattr(loader, name) for name in names})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("collate_fn", [None, as_list])
def test_torchs_own_loader_raises_a_sentence(workers, batch_size, collate_fn, monkeypatch):
    """In its worker processes as here, with any collate function; and no coroutine is said to be never awaited."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)  # for such a worker
    context = "fork" if workers else None
    loader = DataLoader(
        AsyncNumbers(8), batch_size, num_workers=workers, collate_fn=collate_fn, multiprocessing_context=context
    )
    with pytest.raises(TypeError, match=SENTENCE):
        list(as_accelerate_does(loader))


def test_the_innermost_dataset_is_named():
    with pytest.raises(TypeError, match=SENTENCE):
        list(as_accelerate_does(DataLoader(Subset(AsyncNumbers(8), [1, 2]))))


def test_samples_in_bulk_are_seen():
    with pytest.raises(TypeError, match="InBulk is async"):
        list(as_accelerate_does(DataLoader(InBulk(8), batch_size=2)))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_aloader_itself_calls_what_was_given(workers):
    loader = DataLoader(AsyncNumbers(8), batch_size=4, num_workers=workers, collate_fn=as_list)
    assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.collate_fn == as_list
    assert hash(loader.collate_fn) == hash(as_list)
    assert loader.collate_fn.__name__ == "as_list"
    assert unguarded(loader.collate_fn) is as_list


def test_an_ordinary_dataset_has_its_own_function():
    assert DataLoader(Numbers()).collate_fn is default_collate


def test_a_loader_that_is_made_again_is_not_guarded_twice():
    loader = DataLoader(AsyncNumbers())
    again = DataLoader(AsyncNumbers(), collate_fn=loader.collate_fn)
    assert type(again.collate_fn) is Guarded
    assert unguarded(again.collate_fn) is default_collate


def test_it_can_be_pickled():
    found = pickle.loads(pickle.dumps(DataLoader(AsyncNumbers()).collate_fn))
    assert type(found) is Guarded
    assert found == default_collate
