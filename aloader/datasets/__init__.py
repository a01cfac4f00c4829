"""Samples made of the objects of a store, and what holds many of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aloader.lazy import lazily

if TYPE_CHECKING:
    from aloader.datasets.folders import ObjectFolder
    from aloader.datasets.groups import GroupedObjects
    from aloader.datasets.images import ImageFolder
    from aloader.datasets.objects import ObjectDataset
    from aloader.datasets.packed import PackedList

__all__ = ["GroupedObjects", "ImageFolder", "ObjectDataset", "ObjectFolder", "PackedList"]

if not TYPE_CHECKING:
    __getattr__ = lazily(
        __name__,
        {
            "GroupedObjects": "groups",
            "ImageFolder": "images",
            "ObjectDataset": "objects",
            "ObjectFolder": "folders",
            "PackedList": "packed",
        },
    )
