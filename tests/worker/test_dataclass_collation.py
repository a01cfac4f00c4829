"""Dataclasses in the default collation, against what each field gives by itself; torch's own functions stay torch's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.collate import default_collate_fn_map

from aloader.worker.collation import estimate
from aloader.worker.dataclass_collation import collating

collate = collating(default_collate)
convert = collating(default_convert)


@dataclass
class Sample:
    image: Any
    label: Any = 0


@dataclass(frozen=True)
class Frozen:
    x: int
    y: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", [float(self.x), torch.tensor(self.x)])


@dataclass(slots=True)
class Slotted:
    x: Any
    never_set: Any = field(init=False)


@dataclass(frozen=True, slots=True)
class Both:
    x: Any


@dataclass(kw_only=True)
class Child(Sample):
    """With a field of the parent's, one by keyword, a class attribute and an attribute that is no field."""

    name: str
    kind = "child"

    def __post_init__(self) -> None:
        self.extra = "kept"


@dataclass
class Strict:
    """Its `__init__` refuses what a batch has."""

    x: Any

    def __post_init__(self) -> None:
        assert isinstance(self.x, int)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return type(one) is type(other) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_each_field_is_collated_as_torch_collates_it():
    samples = [Sample(torch.full((2,), float(i)), {"id": i, "name": str(i)}) for i in range(3)]
    batch = collate(samples)
    assert type(batch) is Sample
    assert same(batch.image, default_collate([s.image for s in samples]))
    assert same(batch.label, default_collate([s.label for s in samples]))
    assert samples[0].label == {"id": 0, "name": "0"}  # untouched


def test_all_kinds_of_dataclasses():
    frozen = collate([Frozen(1), Frozen(2)])
    assert type(frozen) is Frozen
    assert same(frozen.x, torch.tensor([1, 2]))
    assert same(frozen.y, [torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1, 2])])
    slotted = collate([Slotted(1), Slotted(2)])
    assert same(slotted.x, torch.tensor([1, 2]))
    assert not hasattr(slotted, "never_set")
    assert same(collate([Both(1.0), Both(2.0)]).x, torch.tensor([1.0, 2.0], dtype=torch.float64))
    child = collate([Child(image=1, name="a"), Child(image=2, name="b")])
    assert (child.name, child.extra, child.kind) == (["a", "b"], "kept", "child")
    assert same(child.image, torch.tensor([1, 2]))
    assert same(collate([Strict(1), Strict(2)]).x, torch.tensor([1, 2]))


def test_nested_in_containers_and_in_each_other():
    batch = collate([{"a": Sample(Both(i), i), "b": (Both(i), i)} for i in range(2)])
    assert type(batch["a"]) is Sample
    assert same(batch["a"].image.x, torch.tensor([0, 1]))
    assert same(batch["b"][0].x, torch.tensor([0, 1]))
    assert same(batch["b"][1], torch.tensor([0, 1]))


@dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """As Hugging Face's `ModelOutput`."""

    x: Any = None


@dataclass
class Vector(Sequence):  # type: ignore[type-arg]
    x: Any

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: Any) -> Any:
        return [self.x][at]


class Point(NamedTuple):
    x: int


def test_what_torch_has_a_rule_for_keeps_it():
    one, two = Output(), Output()
    one["k"], two["k"] = 1, 2
    assert same(dict(collate([one, two])), {"k": torch.tensor([1, 2])})
    assert same(collate([Point(1), Point(2)]), default_collate([Point(1), Point(2)]))
    assert same(collate([Vector(1), Vector(2)]).x, default_collate([Vector(1), Vector(2)]).x)


def test_an_entry_of_the_users_comes_first(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, Sample, lambda batch, *, collate_fn_map=None: "the user's")
    assert collate([Sample(1), Sample(2)]) == "the user's"
    assert collate([Child(image=1, name="a")]) == "the user's"  # by the base class's entry
    assert same(collate([Both(1)]).x, torch.tensor([1]))


def test_torchs_own_functions_and_table_stay_as_they_are():
    before = dict(default_collate_fn_map)
    collate([Sample(1)])
    assert default_collate_fn_map == before
    with pytest.raises(TypeError, match="found <class"):
        default_collate([Sample(1)])
    sample = Sample(np.zeros(2))
    assert default_convert(sample) is sample
    assert type(default_convert([sample])[0].image) is np.ndarray

    def own(samples: Any) -> Any:
        return default_collate(samples)

    assert collating(own) is own


def test_a_field_that_cannot_be_collated_is_named():
    with pytest.raises(TypeError, match="NoneType") as caught:
        collate([Sample(1, None), Sample(2, None)])
    assert "in field 'label' of Sample" in caught.value.__notes__


def test_without_batches_the_fields_are_converted():
    sample = Sample(np.arange(2), {"deep": [Both(np.float32(1.5))], "text": "t"})
    converted = convert(sample)
    assert type(converted) is Sample
    assert same(converted.image, torch.tensor([0, 1]))
    assert same(converted.label["deep"][0].x, torch.tensor(1.5))
    assert converted.label["text"] == "t"
    assert type(sample.image) is np.ndarray
    assert same(convert((np.arange(2), Both(np.arange(1))))[1].x, torch.tensor([0]))
    for plain in ([np.arange(3), "x", 1.5], {"a": np.float64(2)}, Point(3), None, torch.ones(2)):
        assert same(convert(plain), default_convert(plain))


def test_their_memory_is_estimated():
    big = torch.zeros(50_000)
    assert estimate([Sample(big, Both(big))] * 3) == estimate([{"a": big, "b": {"x": big}}] * 3) > 0
