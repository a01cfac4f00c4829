"""Where bytes come from: objects under keys, in memory, in a folder, in a bucket, on a web server, or where fsspec
finds them."""

from aloader.storage.base import BaseStore, ObjectInfo, Request, Response, Store
from aloader.storage.fsspec_store import FsspecStore
from aloader.storage.http import HTTPStore
from aloader.storage.local import LocalStore
from aloader.storage.memory import MemoryStore
from aloader.storage.s3 import S3Store
from aloader.storage.url import open_store

__all__ = [
    "BaseStore",
    "FsspecStore",
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
