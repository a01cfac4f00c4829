"""Where bytes come from: objects under keys, in memory, in a folder, in a bucket, or on a web server."""

from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, Store
from aloader.storage.http import HTTPStore
from aloader.storage.local import LocalStore
from aloader.storage.memory import MemoryStore
from aloader.storage.s3 import S3Store
from aloader.storage.url import open_store

__all__ = [
    "BaseStore",
    "HTTPStore",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "Request",
    "Response",
    "S3Store",
    "Store",
    "open_store",
]
