"""Dataclasses as samples, through whole loaders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from aloader import DataLoader

from .samples import Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


@dataclass(frozen=True)
class Pair:
    data: torch.Tensor
    label: int


class Pairs(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"pair": Pair(torch.full((30_000,), float(index)), index)}


class AsyncPairs(Numbers):
    async def __getitem__(self, index: int) -> Any:
        return {"pair": Pair(torch.full((30_000,), float(index)), index)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Pairs, AsyncPairs])
def test_batches_of_dataclasses(dataset, workers):
    with DataLoader(dataset(8), batch_size=4, num_workers=workers) as loader:
        assert loader.collate_fn == default_collate
        for n, batch in enumerate(loader):
            pair = batch["pair"]
            assert type(pair) is Pair
            assert pair.label.tolist() == list(range(4 * n, 4 * n + 4))
            assert (pair.data == pair.label[:, None]).all()


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_dataclasses(workers):
    with DataLoader(Pairs(2), batch_size=None, num_workers=workers) as loader:
        assert [sample["pair"].label for sample in loader] == [0, 1]


def test_with_torchs_ways_of_starting_too_and_in_this_process_torch_is_as_before():
    with DataLoader(Pairs(4), batch_size=4, num_workers=1, multiprocessing_context="fork") as loader:
        (batch,) = loader
        assert batch["pair"].label.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="found <class"):
        next(iter(torch.utils.data.DataLoader(Pairs(4), batch_size=4)))
