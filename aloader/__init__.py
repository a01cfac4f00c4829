"""An asyncio-based streaming data loader for PyTorch: change one import, and iterate with `for` or `async for`."""

from aloader import datasets, storage
from aloader.errors import (
    KeyNotFound,
    LoaderBusy,
    LoaderClosed,
    LoaderError,
    LoaderTimeout,
    SampleError,
    StorageError,
    WorkerLost,
)
from aloader.loader import DataLoader
from aloader.pool.pool import WorkerPool
from aloader.stats import BatchInfo, LoaderStats
from aloader.worker.generators import sample_rng

__all__ = [
    "BatchInfo",
    "DataLoader",
    "KeyNotFound",
    "LoaderBusy",
    "LoaderClosed",
    "LoaderError",
    "LoaderStats",
    "LoaderTimeout",
    "SampleError",
    "StorageError",
    "WorkerLost",
    "WorkerPool",
    "datasets",
    "sample_rng",
    "storage",
]
