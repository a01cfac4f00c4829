"""What states may hold comes back as it was, through JSON; what they may not is named."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aloader.sampling.jsonable import decode, encode


def again(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.booleans() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@given(VALUES)
def test_plain_values_come_back_as_they_were_types_and_all(value: Any) -> None:
    found = again(value)
    assert found == value
    assert repr(found) == repr(value)  # 1, 1.0 and True are equal, and not the same


def test_a_dict_that_looks_like_one_of_ours_is_no_other() -> None:
    for value in ({"$aloader": ["tuple", [1]]}, {"$aloader": 3, "more": 4}):
        assert again(value) == value


def test_sets_and_numbers_that_json_has_no_word_for() -> None:
    assert again({3, 1, "a"}) == {3, 1, "a"}
    assert again(frozenset([1])) == frozenset([1])
    assert again([math.inf, -math.inf]) == [math.inf, -math.inf]
    assert math.isnan(again(math.nan))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.get_rng_state(),
        torch.arange(6, dtype=torch.int16).reshape(2, 3).t(),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.randn(3, requires_grad=True),
    ],
    ids=["bytes", "transposed", "bfloat16", "empty", "bool", "grad"],
)
def test_tensors(tensor: torch.Tensor) -> None:
    found = again({"t": tensor})["t"]
    assert found.dtype == tensor.dtype
    assert torch.equal(found, tensor)
    found.zero_()  # its memory is its own


@pytest.mark.parametrize("array", [np.arange(4.0), np.array("2026-01-01", "M8[D]"), np.zeros((0, 2), ">i4")])
def test_arrays(array: np.ndarray) -> None:
    found = again(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


def test_numbers_of_numpy_keep_their_type() -> None:
    found = again({"a": np.int64(3), "b": np.float32(0.5)})
    assert (type(found["a"]), type(found["b"])) == (np.int64, np.float32)


def test_what_is_nearly_a_plain_value_becomes_one() -> None:
    class Colour(IntEnum):
        RED = 2

    assert again([Colour.RED, OrderedDict(a=1), Counter("aab")]) == [2, {"a": 1}, {"a": 2, "b": 1}]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, object()]}, r"state\['a'\]\[1\] is of type object"),
        ([lambda: 0], r"state\[0\] is of type function"),
        (np.array([object()], dtype=object), "state is an array of dtype object"),
        (torch.eye(2).to_sparse(), "state is a tensor of layout torch.sparse"),
    ],
)
def test_what_cannot_be_held_is_named_with_its_place(value: Any, where: str) -> None:
    with pytest.raises(TypeError, match=where):
        encode(value)


def test_what_nobody_can_have_written_is_refused() -> None:
    with pytest.raises(ValueError, match="'pickle', which this version of aloader does not know"):
        decode({"$aloader": ["pickle", "gASVBAAAAAAAAABLAS4="]})
    with pytest.raises(ValueError, match="no dtype"):
        decode({"$aloader": ["tensor", ["load", [1], ""]]})
