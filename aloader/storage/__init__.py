"""Where bytes come from: objects under keys, in memory, in a folder, or in a bucket."""

from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, Store
from aloader.storage.local import LocalStore
from aloader.storage.memory import MemoryStore
from aloader.storage.s3 import S3Store
from aloader.storage.url import open_store
from aloader.storage.wrappers.cached import Cached

__all__ = [
    "BaseStore",
    "Cached",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "Request",
    "Response",
    "S3Store",
    "Store",
    "open_store",
]
