"""Collating into the arena gives what torch's `default_collate` gives: values, types, strides and errors."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate

from aloader.channel.arena import Arena, Place
from aloader.channel.payload import address_of, pack
from aloader.worker.collation import collate_into, estimate
from aloader.worker.fetch import fetch_inline

pytestmark = pytest.mark.usefixtures("nothing_left")

LARGE = 20_000  # floats: 80 KB, over the size from which a leaf has a place in the arena


class Border:
    """An arena that keeps what it announces; `places` are those of a batch's large leaves."""

    def __init__(self) -> None:
        self.arena = Arena(lambda number, nbytes, fd: os.close(fd), lambda number: None)

    def places(self, batch: Any) -> list[Place | None]:
        return [self.arena.lease(address_of(buffer), buffer.nbytes) for buffer in pack(batch).buffers]


@pytest.fixture
def table() -> Iterator[dict[Any, Any]]:
    """Torch's live table, as it was before when the test is over."""
    saved = dict(collate.default_collate_fn_map)
    yield collate.default_collate_fn_map
    collate.default_collate_fn_map.clear()
    collate.default_collate_fn_map.update(saved)


@pytest.fixture
def border(table: Any) -> Iterator[Border]:
    made = Border()
    collate_into(made.arena)
    made.arena.begin(0)
    yield made
    del made.arena  # pytest keeps fixtures for longer than `nothing_left` waits


def plainly(samples: Any) -> Any:
    """What torch makes of it, with torch's own table."""
    own = dict(collate.default_collate_fn_map)
    own[torch.Tensor] = collate.collate_tensor_fn
    return collate.collate(samples, collate_fn_map=own)


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
        assert a.layout == b.layout
        assert torch.equal(torch.nan_to_num(a.detach().to(torch.complex128)), torch.nan_to_num(b.to(torch.complex128)))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


class Point(NamedTuple):
    x: Any
    y: Any


class Subclass(torch.Tensor):
    pass


def f(value: float, n: int = LARGE) -> torch.Tensor:
    return torch.full((n,), float(value))


CASES = {
    "tensors": [f(1), f(2), f(3)],
    "one": [f(1)],
    "small": [torch.tensor([1.0]), torch.tensor([2.0])],
    "scalars": [torch.tensor(1), torch.tensor(2)],
    "zero size": [torch.empty(0, 5), torch.empty(0, 5)],
    "images": [torch.zeros(3, 100, 101, dtype=torch.uint8), torch.ones(3, 100, 101, dtype=torch.uint8)],
    "not contiguous": [f(1, 40_000)[::2], torch.arange(20_000.0).reshape(100, 200).t().reshape(-1)],
    "transposed": [torch.arange(20_000.0).reshape(100, 200).t() for _ in range(2)],
    "arrays": [np.full(LARGE, 1.5), np.full(LARGE, 2.5)],
    "pairs": [(f(1), 1), (f(2), 2)],
    "dicts": [{"a": f(1), "b": 1.5, "c": "x"}, {"a": f(2), "b": 2.5, "c": "y"}],
    "named tuples": [Point(f(1), [f(2), 3]), Point(f(4), [f(5), 6])],
    "ordered": [collections.OrderedDict(z=f(1), a=np.zeros(3)), collections.OrderedDict(z=f(2), a=np.ones(3))],
    "int then float": [torch.arange(LARGE), f(2)],
    "bool": [torch.ones(200_000, dtype=torch.bool), torch.zeros(200_000, dtype=torch.bool)],
    "half": [f(1).half(), f(2).half()],
    "bfloat16": [f(1, 60_000).bfloat16(), f(2, 60_000).bfloat16()],
    "complex": [torch.full((LARGE,), 1 + 2j), torch.full((LARGE,), 3j)],
    "conjugated": [torch.full((LARGE,), 1 + 2j).conj(), torch.full((LARGE,), 3j)],
    "negated": [torch.full((LARGE,), 1 + 2j).conj().imag, f(3)],
    "uint16": [torch.ones(LARGE * 3, dtype=torch.uint16), torch.ones(LARGE * 3, dtype=torch.uint16)],
    "expanded": [torch.ones(1).expand(LARGE), f(2)],
    "with a subclass": [f(1).as_subclass(Subclass), f(2).as_subclass(Subclass)],
    "a subclass second": [f(1), f(2).as_subclass(Subclass)],
}


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_torchs(border, name):
    same(default_collate(CASES[name]), plainly(CASES[name]))


@pytest.mark.parametrize("n", [3, LARGE])
def test_a_mixed_batch_has_the_first_samples_type_as_in_torchs_workers(border, n):
    assert default_collate([f(1, n), f(2, n).double()]).dtype is torch.float32
    assert default_collate([f(1, n).double(), f(2, n)]).dtype is torch.float64
    assert default_collate([torch.arange(n, dtype=torch.int16), torch.arange(n)]).dtype is torch.int16


def test_small_batches_are_contiguous_as_large_ones_are(border):
    images = [torch.zeros(1, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(2)]
    assert default_collate(images).is_contiguous()


def test_the_graph_of_what_requires_grad_is_kept(border):
    leaf = f(1).requires_grad_()
    batch = default_collate([leaf, f(2)])
    assert batch.requires_grad
    batch.sum().backward()
    assert torch.equal(leaf.grad, torch.ones(LARGE))


def test_under_no_grad_and_inference_mode_the_result_is_torchs_too(border):
    with torch.no_grad():
        same(default_collate([f(1), f(2)]), plainly([f(1), f(2)]))
    with torch.inference_mode():
        batch = default_collate([f(1), f(2)])
    assert torch.equal(batch, plainly([f(1), f(2)]))


def nested() -> list[torch.Tensor]:
    return [torch.nested.nested_tensor([f(1), f(2)]) for _ in range(2)]


BAD = {
    "lengths": lambda: [f(1), f(2, LARGE + 1)],
    "ranks": lambda: [f(1), torch.zeros(2, 2)],
    "small": lambda: [torch.zeros(2), torch.zeros(3)],
    "sparse": lambda: [f(1).to_sparse(), f(2).to_sparse()],
    "nested": nested,
    "types": lambda: [f(1), "no tensor"],
    "layouts": lambda: [f(1), f(2).to_sparse()],
    "tuples": lambda: [(f(1), 1), (f(2),)],
    "unknown": lambda: [OBJECT],
    "empty": list,
}
OBJECT = object()


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_what_cannot_be_collated_fails_with_torchs_words(border, name):
    samples = BAD[name]()
    with pytest.raises(Exception) as theirs:
        plainly(samples)
    with pytest.raises(theirs.type) as ours:
        default_collate(samples)
    assert str(ours.value) == str(theirs.value)


def test_large_leaves_lie_in_the_arena_and_small_ones_stay_out(border):
    batch = default_collate([{"large": f(i), "small": torch.ones(10), "array": np.zeros((2, LARGE))} for i in range(4)])
    places = border.places(batch)
    assert len(places) == 2
    assert None not in places
    assert sorted(place.nbytes for place in places) == [4 * LARGE * 4, 4 * LARGE * 16]
    assert border.arena.live == sum(place.nbytes for place in places)


def test_large_leaves_are_contiguous_as_in_torchs_workers(border):
    images = [torch.zeros(2, 3, 100, 200).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    assert default_collate(images).is_contiguous()


def test_small_batches_touch_no_arena(border):
    default_collate([(torch.ones(10), 1) for _ in range(100)])
    assert border.arena.capacity == 0


def test_what_needs_a_promotion_is_stacked_outside(border):
    assert border.places(default_collate([f(1), f(2).double()])) == [None]
    assert border.arena.capacity == 0


def test_a_users_collate_function_that_calls_default_collate_fills_the_arena_too(border):
    def own(samples: list[Any]) -> Any:
        return {"batch": default_collate(samples)}

    assert None not in border.places(own([f(1), f(2)]))


def test_a_users_own_entries_survive(table):
    def mine(batch: Any, *, collate_fn_map: Any = None) -> str:
        return "mine"

    table[torch.Tensor] = mine
    table[Point] = mine
    collate_into(Border().arena)
    assert table[torch.Tensor] is mine
    assert default_collate([f(1), f(2)]) == "mine"
    assert default_collate([Point(1, 2)]) == "mine"


def test_a_users_entry_for_a_subclass_goes_first(table, border):
    table[Subclass] = lambda batch, *, collate_fn_map=None: len(batch)
    assert default_collate([f(1).as_subclass(Subclass)] * 3) == 3
    assert torch.equal(default_collate([f(1), f(1)]), plainly([f(1), f(1)]))


@pytest.mark.parametrize(
    "name",
    [
        *("tensors", "one", "small", "scalars", "zero size", "images", "arrays", "pairs", "dicts", "named tuples"),
        *("ordered", "bool", "half", "bfloat16", "complex", "uint16", "transposed"),
    ],
)
def test_the_estimate_is_what_is_allocated(border, name):
    samples = CASES[name]
    batch = default_collate(samples)
    assert estimate(samples) == border.arena.live
    del batch


@pytest.mark.parametrize("samples", [None, 3, "text", b"bytes", [], ["text"], [b"x" * 100_000], [3], {"a": f(1)}, f(1)])
def test_what_nobody_knows_is_estimated_as_nothing(samples):
    assert estimate(samples) == 0


def test_fetched_samples_of_a_dataset_collate_into_the_arena(border):
    samples = fetch_inline([f(1), f(2), f(3)], [2, 0], True, [0])
    assert torch.equal(default_collate(samples), torch.stack([f(3), f(1)]))
