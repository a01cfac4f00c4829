"""Datasets that only read and decode say that they draw nothing: their samples cost less."""

from __future__ import annotations

from typing import Any

import pytest

from aloader.datasets import ImageFolder, ObjectDataset
from aloader.storage import MemoryStore
from aloader.worker.kinds import draws_random_numbers


def flipped(value: Any) -> Any:
    return value


@pytest.mark.parametrize("transform", [None, flipped])
def test_with_a_transform_they_may_draw(transform: Any) -> None:
    store = MemoryStore({"cat/1.png": b"1", "cat/1.txt": b"2"})
    datasets = [
        ObjectDataset(store, ["cat/1.png"], transform=transform),
        ObjectDataset.from_folders(store, transform=transform),
        ObjectDataset.from_folders(store, target_transform=transform),
        ImageFolder(store, transform, decode=None),
        ObjectDataset.groups(store, {"image": ".png", "text": ".txt"}, transform=transform),
    ]
    assert [draws_random_numbers(dataset) for dataset in datasets] == [transform is not None] * 5


def test_a_subclass_that_makes_its_samples_itself_may_draw() -> None:
    class Mine(ObjectDataset):
        async def __getitem__(self, index: int) -> Any:
            return index

    assert draws_random_numbers(Mine(MemoryStore(), ["a"]))
