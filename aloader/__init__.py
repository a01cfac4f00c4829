"""An asyncio-based streaming data loader for PyTorch: change one import, and iterate with `for` or `async for`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aloader.lazy import lazily

if TYPE_CHECKING:
    from aloader import datasets, storage
    from aloader.checkup.doctor import doctor
    from aloader.errors import (
        BatchTooLarge,
        KeyNotFound,
        LoaderBusy,
        LoaderClosed,
        LoaderError,
        LoaderTimeout,
        SampleError,
        SampleTimeout,
        SampleWarning,
        StorageError,
        WorkerLost,
        WorkerWarning,
    )
    from aloader.loader import DataLoader
    from aloader.pool.pool import WorkerPool
    from aloader.stats import BatchInfo, LoaderStats
    from aloader.worker.generators import sample_rng
    from aloader.worker.sharding import ShardInfo, shard_info

__all__ = [
    "BatchInfo",
    "BatchTooLarge",
    "DataLoader",
    "KeyNotFound",
    "LoaderBusy",
    "LoaderClosed",
    "LoaderError",
    "LoaderStats",
    "LoaderTimeout",
    "SampleError",
    "SampleTimeout",
    "SampleWarning",
    "ShardInfo",
    "StorageError",
    "WorkerLost",
    "WorkerPool",
    "WorkerWarning",
    "datasets",
    "doctor",
    "sample_rng",
    "shard_info",
    "storage",
]

if not TYPE_CHECKING:
    __getattr__ = lazily(
        __name__,
        {
            "BatchInfo": "stats",
            "BatchTooLarge": "errors",
            "DataLoader": "loader",
            "KeyNotFound": "errors",
            "LoaderBusy": "errors",
            "LoaderClosed": "errors",
            "LoaderError": "errors",
            "LoaderStats": "stats",
            "LoaderTimeout": "errors",
            "SampleError": "errors",
            "SampleTimeout": "errors",
            "SampleWarning": "errors",
            "ShardInfo": "worker.sharding",
            "StorageError": "errors",
            "WorkerLost": "errors",
            "WorkerPool": "pool.pool",
            "WorkerWarning": "errors",
            "datasets": "",
            "doctor": "checkup.doctor",
            "errors": "",
            "integrations": "",
            "sample_rng": "worker.generators",
            "sampling": "",
            "shard_info": "worker.sharding",
            "stats": "",
            "storage": "",
            "testing": "",
        },
    )
