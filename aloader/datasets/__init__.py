"""Samples made of the objects of a store."""

from aloader.datasets.images import ImageFolder
from aloader.datasets.objects import ObjectDataset

__all__ = ["ImageFolder", "ObjectDataset"]
