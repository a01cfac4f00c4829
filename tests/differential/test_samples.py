"""What samples may be, collated and converted by torch's rules: types, dtypes, layouts, attributes, errors.

One loader has a batch of each kind, four samples of it or one alone.
"""

from __future__ import annotations

from typing import Any

import pytest

from . import data
from .kit import Case, assert_alike

#: What a worker of torch's gives otherwise, with the row of `DIFFERENCES`.
OWN_ROWS = {
    "shrinking": "ragged batches",
    "conjugate": "conjugate tensors",
    "grad": "gradients",
    "parameter": "gradients",
    "floats after integers": "floats after integers",
}
#: What torch's rules refuse, when it comes in a batch and when it comes alone.
REFUSED = {
    True: (
        *("ragged", "ragged lists", "ragged dicts", "none", "a set", "complex number", "record", "object array"),
        *("text array", "date", "dates", "sparse", "sparse rows", "nested tensor", "mixed lengths"),
    ),
    False: ("date", "dates"),
}


def case_of(kinds: tuple[str, ...], batched: bool, workers: int, *allow: str) -> Case:
    """One loader over samples of these kinds."""
    order: dict[str, Any] = {"batch_sampler": [[(kind, i) for i in range(4)] for kind in kinds]}
    if not batched:
        order = {"sampler": [(kind, 3) for kind in kinds], "batch_size": None}
    return Case(
        lambda: {"dataset": data.Everything(), "num_workers": workers} | order, allow=frozenset(allow), names=kinds
    )


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
def test_without_workers_every_kind_comes_out_as_from_torch(batched: bool) -> None:
    assert_alike(case_of(tuple(data.SAMPLES), batched, 0))


@pytest.mark.parametrize("fork", [True, False], ids=["fork", "template"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
def test_kinds_that_are_collated(batched: bool, fork: bool) -> None:
    kinds = tuple(kind for kind in data.SAMPLES if kind not in OWN_ROWS and kind not in REFUSED[batched])
    assert_alike(case_of(kinds, batched, 2), fork=fork)


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
def test_kinds_that_are_refused(batched: bool) -> None:
    assert_alike(case_of(REFUSED[batched], batched, 2, "the original error"))


@pytest.mark.parametrize("kind", OWN_ROWS)
def test_kinds_that_torchs_workers_treat_otherwise(kind: str) -> None:
    assert_alike(case_of(("number", kind), True, 1, OWN_ROWS[kind]))
