"""Arguments: torch's checks with torch's words, in torch's order; what is more is checked as strictly."""

from __future__ import annotations

import pickle
import re
import warnings

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, SequentialSampler

import aloader
from aloader import DataLoader
from aloader.device import choosing

from .samples import AsyncNumbers, Numbers


def named(value: object) -> str:
    """The name of a parameter, without addresses: the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Unsized:
    def __getitem__(self, index):
        return -index


def outcome(kind, arguments):
    """What constructing a loader says: the error's type and text, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            kind(**{"dataset": Numbers(10)} | arguments)
            error = None
        except Exception as raised:
            error = type(raised), str(raised)
    return error, [(w.category, str(w.message)) for w in caught]


SEQUENTIAL = SequentialSampler(range(10))


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"num_workers": 1, "prefetch_factor": -1},
        {"persistent_workers": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "thread"},
        {"num_workers": 1, "multiprocessing_context": 7},
        {"sampler": SEQUENTIAL, "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 4},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": SEQUENTIAL},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"dataset": [], "shuffle": True},
        {"dataset": []},
        {"batch_size": 0},
        {"batch_size": True},
        {"batch_size": 2.5},
        {"drop_last": 1},
        {"num_workers": 5000},
        {"dataset": Stream(), "shuffle": True},
        {"dataset": Stream(), "sampler": SEQUENTIAL},
        {"dataset": Stream(), "batch_sampler": [[1]]},
        {"num_workers": -1, "timeout": -1, "batch_size": 0},
        {"sampler": SEQUENTIAL, "shuffle": True, "batch_size": 0},
        {"num_workers": 2, "in_order": False, "prefetch_factor": 4, "persistent_workers": True},
    ],
    ids=named,
)
def test_constructing_says_what_torch_says(arguments):
    assert outcome(DataLoader, arguments) == outcome(TorchDataLoader, arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"num_workers": 1.5}, TypeError, "num_workers option should be an integer"),
        ({"num_workers": "2"}, TypeError, "num_workers option should be an integer"),
        ({"num_workers": 1, "prefetch_factor": 0}, ValueError, "prefetch_factor option should be positive"),
        ({"timeout": 3}, ValueError, "timeout option needs num_workers > 0"),
        ({"concurrency": 0}, ValueError, "concurrency"),
        ({"concurrency": 1.5}, TypeError, "concurrency"),
        ({"concurrency": 4}, ValueError, "concurrency option needs num_workers > 0 or an async dataset"),
        ({"memory_limit": "lots"}, ValueError, "memory_limit"),
        ({"memory_limit": -1}, ValueError, "memory_limit"),
        ({"dataset": Stream(), "num_workers": 2, "concurrency": 4}, ValueError, "concurrency.*iterable"),
        ({"dataset": Unsized()}, TypeError, "__len__"),
    ],
    ids=named,
)
def test_what_is_more_is_checked_at_once(arguments, error, text):
    with pytest.raises(error, match=text):
        DataLoader(**{"dataset": Numbers(10)} | arguments)


def test_an_async_iterable_is_checked_as_torch_checks_an_iterable_one():
    class Feed:
        def __aiter__(self):
            return self

    feed = Feed()
    assert DataLoader(feed).dataset is feed
    for arguments in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError, match="DataLoader with IterableDataset"):
            DataLoader(feed, **arguments)


def test_a_sampler_makes_a_length_unnecessary():
    assert [int(x) for x in DataLoader(Unsized(), sampler=[3, 1])] == [-3, -1]


def test_an_async_dataset_without_workers_takes_more_arguments():
    loader = DataLoader(AsyncNumbers(10), prefetch_factor=3, timeout=5, persistent_workers=True)
    assert [int(x) for x in loader] == list(range(10))


def test_it_is_torchs_loader():
    loader = DataLoader[int](Numbers(10), batch_size=4)
    assert isinstance(loader, TorchDataLoader)
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.prefetch_factor) == (4, False, 0, None)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(loader, name, None)
    loader.num_workers = 1
    assert len(pickle.loads(pickle.dumps(loader))) == 3
    with pytest.raises(TypeError, match="positional"):
        DataLoader(Numbers(3), 1, False, None, None, 0, None, False, False, 0, None, None, None, 2)


def test_every_option_is_an_attribute_of_the_same_name():
    options = {"concurrency": 8, "memory_limit": "1GiB", "in_order": False, "prefetch_factor": 3}
    loader = DataLoader(Numbers(4), num_workers=1, **options)
    assert {name: getattr(loader, name) for name in options} == options


def test_pinning_without_an_accelerator_warns_as_torch_does():
    if choosing.kind():
        pytest.skip("there is an accelerator")

    def warned(kind):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not next(iter(kind(Numbers(4), pin_memory=True, pin_memory_device="cuda"))).is_pinned()
        return [(w.category, str(w.message)) for w in caught]

    assert warned(DataLoader) == warned(TorchDataLoader)


def test_random_state_afterwards_is_torchs():
    def state(kind, **arguments):
        torch.manual_seed(3)
        for _ in kind(Numbers(10), **arguments):
            pass
        return torch.initial_seed(), torch.get_rng_state().tolist()

    for arguments in ({}, {"shuffle": True}, {"shuffle": True, "num_workers": 1}, {"num_workers": 1}):
        assert state(DataLoader, **arguments) == state(TorchDataLoader, **arguments)


def test_a_generator_is_drawn_from_as_torch_does():
    def run(kind, workers):
        generator = torch.Generator().manual_seed(4)
        loader = kind(Numbers(10), 3, shuffle=True, num_workers=workers, generator=generator)
        return [batch.tolist() for batch in loader] + [generator.get_state().tolist()]

    for workers in (0, 1):
        assert run(DataLoader, workers) == run(TorchDataLoader, workers)


def test_public_names():
    assert set(aloader.__all__) >= {"DataLoader", "WorkerPool", "LoaderError", "LoaderClosed", "WorkerLost"}
    assert all(hasattr(aloader, name) for name in aloader.__all__)
