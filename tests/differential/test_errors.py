"""Errors of samples, of collating, of samplers and of start functions: what is raised where, and what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from . import data
from .kit import Case, assert_alike

ORIGINAL = frozenset({"the original error"})


def failing(how: str, workers: int, **more: Any) -> Case:
    """Samples 4 and 5 of twelve fail, in one batch."""

    def make() -> dict[str, Any]:
        return {"dataset": data.FailsAt(how, (4, 5)), "batch_size": 2, "num_workers": workers} | more

    return Case(make, (None, 4, None), allow=ORIGINAL if workers else frozenset())


ALL = tuple(name for name in data.ERRORS if name != "stop")


@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_fails(workers: int, how: str) -> None:
    assert_alike(failing(how, workers))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "more", [{"batch_size": None}, {"batch_size": 1}, {"batch_size": 5, "drop_last": True}], ids=str
)
def test_failing_samples_in_other_batches(workers: int, more: dict[str, Any]) -> None:
    assert_alike(failing("value", workers, **more))


def test_a_persistent_worker_goes_on_after_an_error() -> None:
    assert_alike(failing("os", 2, persistent_workers=True), ways=("async for",), fork=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_raises_stop_iteration(workers: int) -> None:
    def make() -> dict[str, Any]:
        return {"dataset": data.FailsAt("stop"), "batch_size": 2, "num_workers": workers}

    assert_alike(Case(make, allow=frozenset({"stop iteration"})))


def refuses(samples: Any) -> Any:
    """A collate function that fails for one batch."""
    if 4 in samples:
        raise TypeError("cannot be collated")
    return samples


@pytest.mark.parametrize("workers", [0, 2])
def test_collating_that_fails(workers: int) -> None:
    def make() -> dict[str, Any]:
        return {"dataset": data.Made("number"), "batch_size": 4, "num_workers": workers, "collate_fn": refuses}

    assert_alike(Case(make, (None, None), allow=ORIGINAL if workers else frozenset()))


class Bare(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("workers", [0, 1])
def test_an_abstract_dataset(workers: int) -> None:
    case = Case(lambda: {"dataset": Bare(), "num_workers": workers}, allow=ORIGINAL if workers else frozenset())
    assert_alike(case)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_batch_cannot_be_collated(workers: int) -> None:
    order = {"batch_sampler": [[1, 2], [], [3]], "num_workers": workers}
    assert_alike(Case(lambda: {"dataset": data.Made("number")} | order, allow=ORIGINAL if workers else frozenset()))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_start_function_that_fails(workers: int) -> None:
    def make() -> dict[str, Any]:
        return {"dataset": data.Made("number"), "batch_size": 6, "num_workers": workers, "worker_init_fn": data.fails}

    assert_alike(Case(make, allow=frozenset({"the original error", "failed start functions"})))


class Failing(Sampler[int]):
    """Fails after some indices; or when it is asked for an iterator."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __iter__(self) -> Iterator[int]:
        if self.after < 0:
            raise LookupError("no order today")
        return self._indices()

    def _indices(self) -> Iterator[int]:
        yield from range(self.after)
        raise LookupError("no more")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's iterator, half made
@pytest.mark.parametrize("after", [-1, 0, 1, 9])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_sampler_that_fails(workers: int, after: int) -> None:
    def make() -> dict[str, Any]:
        return {"dataset": data.Made("number"), "sampler": Failing(after), "batch_size": None, "num_workers": workers}

    rows = frozenset({"a sampler's error in its place"}) if workers and after >= 0 else frozenset()
    assert_alike(Case(make, (None, None), allow=rows))


def test_a_batch_that_is_late_can_be_waited_for_again() -> None:
    def make() -> dict[str, Any]:
        return {"dataset": data.Late("number", 5), "num_workers": 1, "timeout": 0.5}

    assert_alike(Case(make, allow=frozenset({"late batches"})))
