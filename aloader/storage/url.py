"""From a URL or a path to a store. Nothing is opened here."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from aloader.storage.base import Store
from aloader.storage.local import LocalStore
from aloader.storage.memory import MemoryStore
from aloader.storage.s3 import S3Store

KNOWN: Final = "s3://bucket/prefix, file:///folder, memory://, or the path of a folder"

#: What may stand after "?" in an s3 URL. Secrets may not: URLs are logged, and shown in errors and process lists.
S3_QUERY: Final = {"endpoint_url", "region", "anonymous"}


def open_store(url: str | os.PathLike[str] | Store, **options: Any) -> Store:
    """The store that a URL names. It is opened by `async with`.

    - `"s3://bucket/prefix"`, with `?endpoint_url=…&region=…&anonymous=true` if need be. The prefix is taken as it
      stands ("%" is not decoded). `options` are the arguments of `S3Store`.
    - `"file:///folder"` (percent-encoded), `"folder"`, `Path("folder")`
    - `"memory://"`: a new, empty one each time
    - a `Store`, which is returned as it is

    `ValueError` for other schemes, `TypeError` for options that the store does not have.
    """
    if isinstance(url, Store):
        return _without(options, url)
    if not isinstance(url, str | os.PathLike):
        raise TypeError(f"expected a URL, a path or a store, got {type(url).__name__} (known: {KNOWN})")
    text = os.fspath(url)
    if not text:
        raise ValueError(f"an empty string names no store (known: {KNOWN})")
    scheme, mark, rest = text.partition("://")
    if isinstance(url, os.PathLike) or not mark:
        return _without(options, LocalStore(text))
    match scheme:
        case "s3":
            return _s3(rest, options)
        case "file":
            if not rest.startswith("/"):
                raise ValueError(f"a file URL has three slashes and an absolute path, file:///folder: got {text!r}")
            return _without(options, LocalStore(unquote(rest)))
        case "memory":
            if rest:
                raise ValueError("memory:// has no name: each is a new, empty store. Pass a MemoryStore to share one")
            return _without(options, MemoryStore())
        case _:
            raise ValueError(f"no store for {scheme!r} URLs (known: {KNOWN})")


def _without(options: dict[str, Any], store: Store) -> Store:
    if options:
        raise TypeError(f"{type(store).__name__} takes no options here, got {', '.join(sorted(options))}")
    return store


def _s3(rest: str, options: dict[str, Any]) -> S3Store:
    place, _, query = rest.partition("?")
    bucket, _, prefix = place.partition("/")
    settings: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := settings.keys() - S3_QUERY:  # the values are not shown: they may be secrets
        raise ValueError(
            f"an s3 URL takes {', '.join(sorted(S3_QUERY))}, not {', '.join(sorted(unknown))}. "
            "Credentials come from the environment, or as arguments of open_store: access_key=…, secret_key=…"
        )
    if "anonymous" in settings:
        settings["anonymous"] = settings["anonymous"].lower() in ("", "1", "true", "yes")
    return S3Store(bucket, prefix, **(settings | options))
