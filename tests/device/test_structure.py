"""A batch is made again with torch's rules, where something in it has changed, and what is in it is found."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data._utils.pin_memory import pin_memory

from aloader.device.structure import DEPTH, memory_of, moved, pinned, tensors_in


class Leaf:
    """Something that pins itself, as often as it is asked to."""

    def __init__(self, of: Leaf | None = None) -> None:
        self.of = of

    def pin_memory(self) -> Leaf:
        return Leaf(self)


class Point(NamedTuple):
    x: Any
    y: Any


class Pair(tuple[Any, ...]):
    """A tuple with a type."""


class Titled(dict[Any, Any]):
    """A mapping with an attribute of its own."""

    title = "none"


class Fixed(Mapping[Any, Any]):
    """A mapping that cannot be changed, but made."""

    def __init__(self, items: Any) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Unmakable(Fixed):
    """Nor made."""

    def __init__(self, items: Any, more: Any) -> None:
        super().__init__(items)


class Row(Sequence[Any]):
    def __init__(self, items: Any) -> None:
        self.items = tuple(items)

    def __getitem__(self, place: Any) -> Any:
        return self.items[place]

    def __len__(self) -> int:
        return len(self.items)


class UnmakableRow(Row):
    def __init__(self, items: Any, more: Any) -> None:
        super().__init__(items)


def titled(items: Mapping[Any, Any]) -> Titled:
    made = Titled(items)
    made.title = "one"
    return made


ATOMS = st.sampled_from([1, 2.5, True, None, "text", b"bytes", frozenset({3}), Ellipsis])
LEAVES = st.builds(Leaf) | ATOMS
KEYS = st.sampled_from(["a", "b", "c", 1])


def containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inside, max_size=3)
    dicts = st.dictionaries(KEYS, inside, max_size=3)
    sequences = [list, tuple, Pair, collections.deque, collections.UserList, Row, lambda x: UnmakableRow(x, 1)]
    mappings = [
        *(dict, collections.OrderedDict, titled, collections.UserDict, Fixed, types.MappingProxyType),
        lambda x: Unmakable(x, 1),
        lambda x: collections.defaultdict(list, x),
    ]
    return (
        st.builds(lambda make, items: make(items), st.sampled_from(sequences), lists)
        | st.builds(lambda make, items: make(items), st.sampled_from(mappings), dicts)
        | st.builds(Point, inside, inside)
    )


BATCHES = st.recursive(LEAVES, containers, max_leaves=12)


def has_leaf(data: Any) -> bool:
    if isinstance(data, Mapping):
        return any(map(has_leaf, data.values()))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return any(map(has_leaf, data))
    return isinstance(data, Leaf)


def assert_alike(ours: Any, torchs: Any, before: Any) -> None:
    """Torch's result, and the same object as before where there is nothing to pin."""
    if not has_leaf(before):
        assert ours is before
        return
    assert type(ours) is type(torchs)
    if isinstance(before, Leaf):
        assert ours.of is torchs.of is before
        return
    assert ours is not before
    assert getattr(ours, "title", None) == getattr(torchs, "title", None)
    assert getattr(ours, "default_factory", None) is getattr(torchs, "default_factory", None)
    assert len(ours) == len(torchs) == len(before)
    if isinstance(before, Mapping):
        assert list(ours) == list(torchs)
        for key in before:
            assert_alike(ours[key], torchs[key], before[key])
    else:
        for parts in zip(ours, torchs, before, strict=True):
            assert_alike(*parts)


@settings(max_examples=100, deadline=None)
@given(BATCHES)
def test_pinning_makes_what_torchs_makes(batch):
    assert_alike(pinned(batch, torch.clone), pin_memory(batch), batch)


class To(Leaf):
    """Something that moves itself."""

    def to(self, device: str) -> To:
        return To(self)


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str = "n"
    box: Any = None
    later: Any = dataclasses.field(init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Slim:
    image: torch.Tensor


def doubled(batch: Any) -> Any:
    return moved(batch, lambda tensor: tensor * 2, lambda obj: obj.to("somewhere"))


def test_tensors_move_whatever_they_are_in():
    one = torch.ones(2)
    batch = {"a": [one, "text"], "b": (one, 3), "c": Point(one, None), "d": Sample(one, box=[torch.ones(1)])}
    result = doubled(batch)
    assert result["a"][0].tolist() == [2, 2]
    assert result["a"][1] == "text"
    assert result["b"][0] is result["a"][0] is result["c"].x is result["d"].image  # one object stays one
    assert type(result["d"]) is Sample
    assert result["d"].box[0].tolist() == [2]
    assert not hasattr(result["d"], "later")
    assert doubled(Slim(one)).image.tolist() == [2, 2]
    assert one.tolist() == batch["b"][0].tolist() == [1, 1]


def test_of_a_dataclass_torch_pins_nothing_and_we_do():
    sample = Sample(torch.ones(1), box=Leaf())
    assert pin_memory(sample) is sample
    result = pinned(sample, torch.clone)
    assert result.box.of is sample.box
    assert result.image is not sample.image


def test_what_has_nothing_to_move_stays_the_same_object():
    for batch in ("text", b"x", 1, None, np.ones(2), {1, 2}, ["a", ("b", {"c": range(3)})], bytearray(b"xy"), object()):
        assert doubled(batch) is batch
    inner = ["a", {"b": 1}]
    assert doubled([torch.ones(1), inner])[1] is inner
    same = [torch.ones(1)]
    assert moved(same, lambda tensor: tensor, lambda obj: obj) is same


def test_what_can_move_itself_does_before_it_is_taken_for_a_container():
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    asked: list[Any] = []
    batch = [packed, To()]
    result = moved(batch, pytest.fail, lambda obj: asked.append(obj) or "moved")
    assert asked == batch
    assert result == ["moved", "moved"]
    assert doubled([torch.ones(1), To])[1] is To  # a class is no batch
    assert isinstance(moved(packed, pytest.fail, lambda obj: obj.to("cpu")), PackedSequence)


def test_torchs_own_kinds_of_tuples_keep_their_types():
    found = doubled([torch.ones(2).max(0), torch.Size([2])])
    assert type(found[0]) is torch.return_types.max
    assert found[0].values == 2
    assert type(found[1]) is torch.Size


class Encoding(collections.UserDict[str, Any]):
    """As transformers' BatchEncoding."""

    def to(self, device: str) -> str:
        return f"an encoding {device}"


def test_a_mapping_that_can_move_itself_does():
    assert doubled([Encoding(a=torch.ones(1))]) == ["an encoding somewhere"]


@dataclasses.dataclass
class Made:
    """Nobody may make another one."""

    image: torch.Tensor

    def __post_init__(self) -> None:
        if self.image.sum() != 0:
            raise ValueError("only empty ones are made")


def test_a_dataclass_is_copied_and_not_made_again():
    made = Made(torch.zeros(1))
    made.image = torch.ones(1)
    assert doubled(made).image.tolist() == [2]


class Text(str):
    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("nobody looks at it letter by letter")


class Binary(bytearray):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("nobody looks at it byte by byte")


@pytest.mark.parametrize("flat", [Text("text"), Binary(b"bytes")])
def test_text_is_not_walked(flat):
    assert doubled([flat])[0] is flat
    assert list(tensors_in([flat])) == []


class Email(dict[str, Any]):
    """Keys are attributes, and one of them is "to"."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def test_an_attribute_with_the_methods_name_is_no_method():
    result = doubled(Email(to=torch.ones(1), body="text"))
    assert type(result) is Email
    assert result.to.tolist() == [2]
    assert doubled(collections.namedtuple("Mail", "to body")(torch.ones(1), "x")).to.tolist() == [2]


class Refusing(collections.OrderedDict[str, Any]):
    """As transformers' ModelOutput."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no update")


def test_mappings_are_changed_item_by_item():
    assert type(doubled(Refusing(a=torch.ones(1)))) is Refusing
    assert doubled(collections.Counter({"a": torch.ones(1)}))["a"].tolist() == [2]


class ReadOnly(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("read only")


def test_a_mapping_that_cannot_be_set_becomes_a_dict():
    assert type(doubled(ReadOnly(a=torch.ones(1)))) is dict
    assert issubclass(ReadOnly, MutableMapping)


@pytest.mark.parametrize("kind", [TypeError, ValueError])
def test_an_error_of_a_leaf_is_raised_as_it_is_and_once(kind):
    calls: list[Any] = []
    error = kind("mine")

    def fail(tensor: torch.Tensor) -> Any:
        calls.append(tensor)
        raise error

    with pytest.raises(kind) as caught:
        moved({"a": collections.deque([torch.ones(1)])}, fail, fail)
    assert caught.value is error
    assert caught.value.__context__ is None
    assert len(calls) == 1


class Fresh(Row):
    """Its items are made when they are asked for, and go at once."""

    def __getitem__(self, place: Any) -> Any:
        return torch.full((1,), float(self.items[place]))


def test_items_that_are_gone_at_once_are_not_taken_for_each_other():
    made = moved([Fresh(range(20)), 1], lambda tensor: float(tensor) + 1, pytest.fail)
    assert list(made[0].items) == [n + 1.0 for n in range(20)]


class Subclass(torch.Tensor):
    pass


UNUSUAL = {
    "sparse": lambda: torch.eye(2).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8),
    "a subclass": lambda: torch.ones(2).as_subclass(Subclass),
    "parameter": lambda: torch.nn.Parameter(torch.ones(1)),
    "meta": lambda: torch.ones(1, device="meta"),
    "a view": lambda: torch.ones(4)[1:],
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*quantiz")
@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL)
def test_every_kind_of_tensor_is_a_tensor(make):
    tensor = make()
    seen: list[Any] = []
    moved((tensor,), seen.append, pytest.fail)
    assert seen[0] is tensor
    assert next(tensors_in({"a": [tensor]})) is tensor


# -- looking ----------------------------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("__hidden", "empty", "seen")

    def __init__(self, seen: Any, hidden: Any) -> None:
        self.seen, self.__hidden = seen, hidden


class Thing:
    def __init__(self, **inside: Any) -> None:
        self.__dict__.update(inside)

    @property
    def dear(self) -> Any:
        raise AssertionError("nobody calls this")


def test_tensors_are_found_in_order_each_once_wherever_they_lie():
    t = [torch.full((1,), float(n)) for n in range(9)]
    packed = pack_sequence([t[0]])
    thing = Thing(a=t[1], b={"c": t[2]}, s=Slotted(t[3], [t[4]]))
    thing.b["me"] = thing
    batch = [t[0], (t[0], Row([t[5]])), {"x": thing}, Sample(t[6], box=[t[7]]), {t[8]}, Thing(m=torch, f=len), "text"]
    batch.append(batch)
    assert [int(tensor) for tensor in tensors_in(batch)] == [0, 5, 1, 2, 4, 3, 6, 7, 8]
    assert len(list(tensors_in(packed))) == 2
    assert list(tensors_in("text")) == list(tensors_in(range(3))) == list(tensors_in(Thing)) == []


class Wrapping(Row):
    """As `Fresh`, but its items are dicts."""

    def __getitem__(self, place: Any) -> Any:
        return {"x": torch.full((1,), float(self.items[place]))}


def test_containers_that_are_gone_at_once_are_not_taken_for_each_other():
    batch = [Wrapping([n]) for n in range(20)]
    assert len(list(tensors_in(batch))) == 20


def test_what_an_object_refers_to_far_away_is_not_looked_at():
    near = far = Thing(t=torch.ones(1))
    for _ in range(DEPTH - 1):
        near = Thing(n=near)
    for _ in range(DEPTH):
        far = Thing(n=far)
    assert len(list(tensors_in(near))) == 1
    assert list(tensors_in(far)) == []
    deep: Any = torch.ones(1)
    for _ in range(50):
        deep = [{"a": collections.deque([deep])}]
    assert len(list(tensors_in(deep))) == 1


class Two(torch.Tensor):
    """A tensor that is made of others."""

    inner: torch.Tensor
    outer: torch.Tensor

    def __tensor_flatten__(self) -> Any:
        return ["inner", "outer"], None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CS.")
def test_the_plain_tensors_that_one_is_made_of():
    eye = torch.eye(4)
    assert [part.shape for part in memory_of(eye.to_sparse())] == [(2, 4), (4,)]
    for compressed in (eye.to_sparse_csr(), eye.to_sparse_csc(), eye.to_sparse_bsr((2, 2)), eye.to_sparse_bsc((2, 2))):
        assert len([part for part in memory_of(compressed) if part.layout is torch.strided]) == 3
    assert next(memory_of(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))).tolist() == [1, 1, 1]
    two = torch.ones(1).as_subclass(Two)
    two.inner, two.outer = eye, eye.to_sparse()
    assert len(list(memory_of(two))) == 3
    assert next(memory_of(eye)) is eye
