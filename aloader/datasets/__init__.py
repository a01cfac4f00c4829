"""Samples made of the objects of a store, and what holds many of their names."""

from aloader.datasets.folders import ObjectFolder
from aloader.datasets.groups import GroupedObjects
from aloader.datasets.images import ImageFolder
from aloader.datasets.objects import ObjectDataset
from aloader.datasets.packed import PackedList

__all__ = ["GroupedObjects", "ImageFolder", "ObjectDataset", "ObjectFolder", "PackedList"]
