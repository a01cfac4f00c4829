"""Buckets of S3, and of servers that speak its language."""

from aloader.storage.s3.store import S3Store

__all__ = ["S3Store"]
