"""What samples may be, collated and converted by torch's rules: types, dtypes, layouts, attributes, errors."""

from __future__ import annotations

from typing import Any

import pytest

from . import data
from .kit import Case, assert_alike, forked_if_any

KINDS = tuple(data.SAMPLES)


def case_of(kinds: tuple[str, ...], batched: bool, workers: int, allow: Any = ()) -> Case:
    """One loader over samples of these kinds: four of each in a batch, or one alone."""
    order: dict[str, Any] = {"batch_sampler": [[(kind, i) for i in range(4)] for kind in kinds]}
    if not batched:
        order = {"sampler": [(kind, 3) for kind in kinds], "batch_size": None}
    return Case(lambda: {"dataset": data.Everything(), "num_workers": workers} | order, allow=frozenset(allow))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_samples(batched: bool, workers: int, kind: str) -> None:
    case = case_of((kind,), batched, workers)
    assert_alike(case, ways=("for",), **forked_if_any(case))
