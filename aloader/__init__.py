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
from aloader.worker.sharding import ShardInfo, shard_info

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
    "ShardInfo",
    "StorageError",
    "WorkerLost",
    "WorkerPool",
    "datasets",
    "sample_rng",
    "shard_info",
    "storage",
]
