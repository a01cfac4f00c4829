"""The kit itself: what differs is found, what is allowed must be named and seen, and every pair is chosen."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from . import data, kit
from .differences import DIFFERENCES, Entry, Raised
from .frozen import frozen
from .grids import pairwise

BASE = torch.arange(6.0)
APART = {
    "value": (torch.zeros(2), torch.ones(2)),
    "negative zero": (torch.tensor(0.0), torch.tensor(-0.0)),
    "dtype": (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    "strides": (torch.zeros(2, 3), torch.zeros(3, 2).t()),
    "grad": (torch.zeros(2), torch.zeros(2, requires_grad=True)),
    "subclass": (torch.zeros(2), torch.nn.Parameter(torch.zeros(2), requires_grad=False)),
    "container": ([1, 2], (1, 2)),
    "mapping": ({"a": 1}, data.Labelled(a=1)),
    "attribute": (data.Labelled.of("x", a=1), data.Labelled.of("y", a=1)),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "number": (1, 1.0),
    "numpy number": (np.float32(1), np.float64(1)),
    "array": (np.zeros(2), np.zeros((1, 2))),
    "not writable": (np.zeros(2), np.broadcast_to(np.zeros(1), (2,))),
    "text": ("a", b"a"),
    "shared": ([BASE[:3], BASE[3:]], [BASE[:3].clone(), BASE[3:].clone()]),
    "sparse": (torch.eye(2), torch.eye(2).to_sparse()),
}


@pytest.mark.parametrize("name", APART)
def test_what_can_be_told_apart_is_written_down_differently(name: str) -> None:
    one, other = APART[name]
    assert frozen(one) != frozen(other)
    assert frozen(one) == frozen(one)
    assert name == "shared" or frozen(copy.deepcopy(one)) == frozen(one)


class Tampering(TorchDataLoader[Any]):
    """Torch's loader, with one fault."""

    fault: Any = staticmethod(lambda batches: batches)

    def __iter__(self) -> Any:
        return iter(type(self).fault(list(super().__iter__())))


def swapped(batches: list[Any]) -> list[Any]:
    return [batches[1], batches[0], *batches[2:]]


def drawn(batches: list[Any]) -> list[Any]:
    random.random()
    return batches


def warned(batches: list[Any]) -> list[Any]:
    import warnings

    warnings.warn("something", UserWarning, stacklevel=1)
    return batches


FAULTS = [swapped, drawn, warned, lambda batches: batches[:-1], lambda batches: [*batches, batches[0]]]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_loader_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = kit.Case(lambda: {"dataset": data.Made("tensor"), "batch_size": 4}, (None, None))
    torchs = kit.observe(TorchDataLoader, case)
    assert kit.compare(torchs, kit.observe(Tampering, case), frozenset()) == (set(), [])
    monkeypatch.setattr(Tampering, "fault", staticmethod(fault))
    _, found = kit.compare(torchs, kit.observe(Tampering, case), frozenset(DIFFERENCES))
    assert found


def test_an_allowed_difference_that_is_not_seen_fails() -> None:
    case = kit.Case(lambda: {"dataset": data.Made("number", 4)})
    kit.assert_alike(case)
    with pytest.raises(AssertionError, match="were not seen"):
        kit.assert_alike(dataclasses.replace(case, allow=frozenset({"the original error"})))


def test_the_original_error_is_no_excuse_for_another_one() -> None:
    def entry(error: Exception) -> list[Entry]:
        return [Entry("epoch 0: error", Raised.of(error))]

    text = "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (…):\n  …\nValueError: bad"
    told = ValueError("bad")
    told.__cause__ = RuntimeError(text)
    row = frozenset({"the original error"})
    assert kit.compare(entry(ValueError(text)), entry(told), row) == ({"the original error"}, [])
    for wrong in (ValueError("bad"), ValueError("worse"), KeyError("bad")):
        assert kit.compare(entry(ValueError(text)), entry(wrong), row)[1], wrong


def test_every_allowed_pair_is_chosen() -> None:
    factors = {"a": (1, 2, 3), "b": (1, 2, 3, 4), "c": (1, 2), "d": tuple(range(9))}
    choices = pairwise(factors, lambda choice: choice["a"] != choice["b"], most=12)
    assert all(choice["a"] != choice["b"] for choice in choices)
    assert {(c["a"], c["b"]) for c in choices} == {
        (a, b) for a, b in itertools.product((1, 2, 3), (1, 2, 3, 4)) if a != b
    }
    assert {(c["b"], c["c"]) for c in choices} == set(itertools.product((1, 2, 3, 4), (1, 2)))
    assert len(choices) < 16
    assert choices == pairwise(factors, lambda choice: choice["a"] != choice["b"], most=12)
