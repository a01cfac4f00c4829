"""What the constructor says, also when several arguments are wrong at once, and what `iter()` says."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

import aloader

from . import data
from .differences import Raised
from .kit import ATTRIBUTES, Case, assert_alike, observe


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(3))


SAMPLER = SequentialSampler(range(10))

#: Each is wrong alone, or with some of the others.
WRONG: dict[str, dict[str, Any]] = {
    "negative workers": {"num_workers": -1},
    "workers": {"num_workers": 1},
    "negative timeout": {"timeout": -1},
    "prefetch": {"prefetch_factor": 2},
    "negative prefetch": {"prefetch_factor": -1},
    "persistent": {"persistent_workers": True},
    "context": {"multiprocessing_context": "fork"},
    "unknown context": {"multiprocessing_context": "thread"},
    "no context": {"multiprocessing_context": 7},
    "stream": {"dataset": Stream()},
    "no data": {"dataset": []},
    "shuffle": {"shuffle": True},
    "sampler": {"sampler": SAMPLER},
    "batch sampler": {"batch_sampler": [[1]]},
    "batch of 4": {"batch_size": 4},
    "batch of 0": {"batch_size": 0},
    "a bool of a batch": {"batch_size": True},
    "half a batch": {"batch_size": 2.5},
    "no batch": {"batch_size": None},
    "drop": {"drop_last": True},
    "drop 1": {"drop_last": 1},
    "shuffle 1": {"shuffle": 1},
    "many workers": {"num_workers": 5000},
    "unordered": {"in_order": False},
    "pinned": {"pin_memory": True},
    "a device": {"pin_memory_device": "cuda"},
}


def together(size: int) -> list[dict[str, Any]]:
    """All sets of so many of them, without those that give one argument twice."""
    chosen = []
    for sets in itertools.combinations(WRONG.values(), size):
        keys = [key for arguments in sets for key in arguments]
        if len(set(keys)) == len(keys):
            chosen.append({key: value for arguments in sets for key, value in arguments.items()})
    return chosen


ALONE, PAIRS = together(1), together(2)
THREES = random.Random(5).sample(together(3), 300)


def said(kind: Any, arguments: dict[str, Any]) -> Any:
    """What is seen of a loader that is not iterated."""
    return observe(kind, Case(lambda: {"dataset": data.Made("number")} | arguments, epochs=()))


@pytest.mark.parametrize("sets", [ALONE, PAIRS, THREES], ids=["alone", "pairs", "threes"])
def test_the_constructor_says_what_torchs_says(sets: list[dict[str, Any]]) -> None:
    """Which of several errors is raised, with its text, and the warnings."""
    failed = 0
    for arguments in sets:
        torchs = said(TorchDataLoader, arguments)
        refused = isinstance(torchs[0].value, Raised)
        failed += refused
        assert said(aloader.DataLoader, arguments) == torchs, arguments
    assert failed > len(sets) / 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's iterator, half made
@pytest.mark.parametrize(
    "arguments", [{"num_workers": 1, "prefetch_factor": 0}, {"timeout": 3}, {"num_workers": 1.5}], ids=str
)
def test_what_torch_finds_out_at_the_first_epoch_is_found_out_at_once(arguments: dict[str, Any]) -> None:
    assert_alike(Case(lambda: {"dataset": data.Made("number")} | arguments, allow=frozenset({"found out earlier"})))


def test_attributes_that_must_not_be_set_and_those_that_may() -> None:
    for kind in (TorchDataLoader, aloader.DataLoader):
        loader = kind(data.Made("number"), 3)
        outcomes = {}
        for name in (*ATTRIBUTES, "dataset", "sampler", "batch_sampler", "collate_fn", "generator", "worker_init_fn"):
            if name.startswith("_"):
                continue
            try:
                setattr(loader, name, getattr(loader, name))
                outcomes[name] = None
            except ValueError as error:
                outcomes[name] = str(error)
        if kind is TorchDataLoader:
            expected = outcomes
    assert outcomes == expected
    assert sum(text is not None for text in outcomes.values()) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_can_be_pickled_and_iterators_cannot(workers: int) -> None:
    for kind in (TorchDataLoader, aloader.DataLoader):
        loader = kind(data.Made("number", 4), 3, num_workers=workers)
        assert [len(batch) for batch in pickle.loads(pickle.dumps(loader)).batch_sampler] == [3, 1]
        loader.multiprocessing_context = "fork" if workers else None
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            pickle.dumps(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_has_torchs_length(workers: int) -> None:
    lengths = []
    for kind in (TorchDataLoader, aloader.DataLoader):
        context = {"multiprocessing_context": "fork"} if workers else {}
        batches = iter(kind(data.Made("number", 10), 3, num_workers=workers, **context))
        next(batches)
        lengths.append(len(batches))
        assert iter(batches) is batches
    assert lengths[0] == lengths[1] == 4


def test_a_loader_is_made_again_from_its_attributes_as_frameworks_do() -> None:
    names = ("batch_size", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator")
    more = ("multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device", "drop_last")
    for kind in (TorchDataLoader, aloader.DataLoader):
        given = {"sampler": RandomSampler(range(20)), "generator": torch.Generator(), "num_workers": 1}
        loader = kind(data.Made("number"), 5, **given)
        kept = {name: getattr(loader, name) for name in names + more}
        again = kind(loader.dataset, sampler=loader.sampler, **kept)
        assert {name: getattr(again, name) for name in names + more} == kept
