"""Where bytes come from: objects under keys, in memory, in a folder, in a bucket, on a web server, or where fsspec
finds them; and stores around stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aloader.lazy import lazily

if TYPE_CHECKING:
    from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, Store
    from aloader.storage.fsspec_store import FsspecStore
    from aloader.storage.http import HTTPStore
    from aloader.storage.local import LocalStore
    from aloader.storage.memory import MemoryStore
    from aloader.storage.s3 import S3Store
    from aloader.storage.url import open_store
    from aloader.storage.wrappers.cached import Cached
    from aloader.storage.wrappers.hedged import Hedged
    from aloader.storage.wrappers.limited import Limited
    from aloader.storage.wrappers.parted import Parted
    from aloader.storage.wrappers.retries import RetryPolicy
    from aloader.storage.wrappers.retrying import Retrying
    from aloader.storage.wrappers.verified import Verified

__all__ = [
    "BaseStore",
    "Cached",
    "FsspecStore",
    "HTTPStore",
    "Hedged",
    "Limited",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "Parted",
    "Request",
    "Response",
    "RetryPolicy",
    "Retrying",
    "S3Store",
    "Store",
    "Verified",
    "open_store",
]

if not TYPE_CHECKING:
    __getattr__ = lazily(
        __name__,
        {
            "BaseStore": "base",
            "Cached": "wrappers.cached",
            "FsspecStore": "fsspec_store",
            "HTTPStore": "http",
            "Hedged": "wrappers.hedged",
            "Limited": "wrappers.limited",
            "LocalStore": "local",
            "MemoryStore": "memory",
            "ObjectInfo": "base",
            "Parted": "wrappers.parted",
            "Request": "base",
            "Response": "base",
            "RetryPolicy": "wrappers.retries",
            "Retrying": "wrappers.retrying",
            "S3Store": "s3",
            "Store": "base",
            "Verified": "wrappers.verified",
            "open_store": "url",
        },
    )
