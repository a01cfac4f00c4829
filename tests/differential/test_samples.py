"""What samples may be, collated and converted by torch's rules: types, dtypes, layouts, attributes, errors.

One loader has a batch of each kind, four samples of it or one alone.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from . import data
from .kit import WAYS, Case, assert_alike

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
        *("ragged", "ragged lists", "ragged dicts", "none", "a set", "complex number", "object array"),
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
    assert_alike(case_of(tuple(kind for kind in data.SAMPLES if kind != "record"), batched, 0))


@pytest.mark.parametrize("fork", [True, False], ids=["fork", "template"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
def test_kinds_that_are_collated(batched: bool, fork: bool) -> None:
    kinds = tuple(kind for kind in data.SAMPLES if kind not in (*OWN_ROWS, *REFUSED[batched], "record"))
    ways = WAYS if fork else WAYS[batched:][:1]
    assert_alike(case_of(kinds, batched, 2), ways=ways, fork=fork)


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
def test_kinds_that_are_refused(batched: bool) -> None:
    assert_alike(case_of(REFUSED[batched], batched, 2, "the original error"))


@pytest.mark.parametrize("workers", [0, 1])
def test_dataclasses(workers: int) -> None:
    row = "dataclasses" if find_spec("aloader.worker.dataclass_collation") else "the original error" if workers else ""
    assert_alike(case_of(("number", "record"), True, workers, *filter(None, [row])))
    assert_alike(case_of(("number", "record"), False, workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_views_with_gaps(workers: int) -> None:
    order = {"batch_size": None, "num_workers": workers}
    allow = frozenset({"gaps are left out"} if workers else ())
    assert_alike(Case(lambda: {"dataset": data.Gapped()} | order, allow=allow))


@pytest.mark.parametrize("kind", OWN_ROWS)
def test_kinds_that_torchs_workers_treat_otherwise(kind: str) -> None:
    assert_alike(case_of(("number", kind), True, 1, OWN_ROWS[kind]))
