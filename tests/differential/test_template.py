"""Workers as they start by default: forked from a template. One loader, with another dataset in it for each epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import data
from .kit import Case, assert_alike

NAMES = tuple(data.DATASETS)


def test_every_dataset() -> None:
    inits = (None, data.draws, data.marks)

    def between(epoch: int, loader: Any) -> None:
        loader.dataset.inner = data.DATASETS[NAMES[epoch]]()
        loader.worker_init_fn = inits[epoch % 3]
        loader.collate_fn = data.with_info if epoch % 2 else torch.utils.data.default_collate

    def make() -> dict[str, Any]:
        return {"dataset": data.Switched(data.Made("number")), "batch_size": 4, "shuffle": True, "num_workers": 2}

    assert_alike(Case(make, (None,) * len(NAMES), between, allow=frozenset({"views travel alone"})), fork=False)


def test_persistent_workers_draw_on_from_epoch_to_epoch() -> None:
    def make() -> dict[str, Any]:
        return {
            "dataset": data.Drawing(), "batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True,
            "worker_init_fn": data.draws, "generator": torch.Generator().manual_seed(8),
        }  # fmt: skip

    assert_alike(Case(make, (None, None, None)), ways=("async for",), fork=False)


def test_what_a_worker_is_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACT", "known")
    case = Case(lambda: {"dataset": data.Facts(), "num_workers": 2, "collate_fn": data.as_list})
    assert_alike(case, ways=("for",), fork=False)
    assert_alike(case, ways=("for",))


SHARED = [
    "fork",
    pytest.param("template", marks=pytest.mark.xfail(reason="the dataset's shared memory is carried by value")),
]


@pytest.mark.parametrize("start", SHARED)
def test_memory_that_a_dataset_shares_stays_shared(start: str) -> None:
    """What a worker writes there is seen by the program."""

    def make() -> dict[str, Any]:
        noting = data.Noting()
        return {"dataset": noting, "num_workers": 2, "watch": lambda: noting.notes}

    assert_alike(Case(make, (None, None)), ways=("for",), fork=start == "fork")
