"""From a URL or a path to a store, with the wrappers that its kind needs. Nothing is opened here."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from aloader.options import CONCURRENCY
from aloader.storage.base import Store
from aloader.storage.fsspec_store import FsspecStore
from aloader.storage.http import HTTPStore
from aloader.storage.local import LocalStore
from aloader.storage.memory import MemoryStore
from aloader.storage.s3 import S3Store
from aloader.storage.wrappers.cached import Cached
from aloader.storage.wrappers.digests import CHECKS
from aloader.storage.wrappers.hedged import Hedged
from aloader.storage.wrappers.limited import Limited
from aloader.storage.wrappers.parted import Parted
from aloader.storage.wrappers.retries import RetryPolicy
from aloader.storage.wrappers.retrying import Retrying
from aloader.storage.wrappers.verified import Check, Verified

KNOWN: Final = "s3://bucket/prefix, https://host/path, file:///folder, memory://, what fsspec has, or a folder's path"

#: What may stand after "?" in an s3 URL. Secrets may not: URLs are logged, and shown in errors and process lists.
S3_QUERY: Final = {"endpoint_url", "region", "anonymous"}


def open_store(
    url: str | os.PathLike[str] | Store,
    *,
    retry: bool | RetryPolicy | None = None,
    limit: bool | int | None = None,
    hedge: bool = False,
    verify: Check | None = None,
    cache: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Store:
    """The store that a URL names. It is opened by `async with`.

    - `"s3://bucket/prefix"`, with `?endpoint_url=…&region=…&anonymous=true` if need be. The prefix is taken as it
      stands ("%" is not decoded). `options` are the arguments of `S3Store`.
    - `"https://host/path"`, `"http://…"`: `options` are the arguments of `HTTPStore`.
    - `"gs://bucket/prefix"`, `"az://…"`, `"hf://…"` and all else that fsspec knows: `options` go to its file system.
    - `"file:///folder"` (percent-encoded), `"folder"`, `Path("folder")`
    - `"memory://"`: a new, empty one each time
    - a `Store`, which is returned as it is, but for the wrappers that are asked for

    What is read over a network is wrapped: `Parted(Retrying(Limited(store)))` reads large objects in parts, tries again
    what may succeed the next time, and asks for no more than the store can take. Folders, memory and stores that are
    given are not, unless it is asked for:

    - `retry`: `False` for none, or a `RetryPolicy(attempts=…, deadline=…)`
    - `limit`: requests in flight at most, on each loop of each process; `False` for any number
    - `hedge`: whether a second request is sent where one takes unusually long (`Hedged`): costs one in twenty more
    - `verify`: what of the answers is compared: `"length"`, `"etag"`, `"crc"` or `"all"` (`Verified`)
    - `cache`: a folder on a local disk in which what was read is kept (`Cached`, which takes more arguments itself)

    `ValueError` for other schemes, `TypeError` for options that the store does not have.
    """
    _check(retry, limit, verify)
    store = _bare(url, options)
    remote = isinstance(store, S3Store | HTTPStore | FsspecStore) and store is not url
    if limit is not False and (remote or limit is not None):
        store = Limited(store, CONCURRENCY if limit is None or limit is True else limit)
    if hedge:
        store = Hedged(store)
    if retry if retry is not None else remote:
        store = _retrying(store, retry if isinstance(retry, RetryPolicy) else RetryPolicy())
    if remote:
        store = Parted(store)
    if verify is not None:
        store = Verified(store, verify)
    return store if cache is None else Cached(store, cache)


def _check(retry: Any, limit: Any, verify: Any) -> None:
    """Under the names that they have here."""
    if not (retry is None or isinstance(retry, bool | RetryPolicy)):
        raise TypeError(f"retry= is True, False or a RetryPolicy(attempts=…): got {retry!r}")
    if not (limit is None or (isinstance(limit, int) and (limit >= 1 or limit is False))):
        raise ValueError(
            f"limit= is a number of requests in flight, at least 1, or False for any: got {limit!r}. "
            '(How large a cache may be is an argument of Cached: Cached(open_store(…), folder, limit="500GiB"))'
        )
    if not (verify is None or verify in CHECKS):
        raise ValueError(f"verify= is one of {', '.join(map(repr, CHECKS))}: got {verify!r}")


def _retrying(store: Store, policy: RetryPolicy) -> Store:
    return Retrying(
        store,
        policy.attempts,
        policy.deadline,
        first_delay=policy.first_delay,
        most_delay=policy.most_delay,
        budget=policy.budget,
    )


def _bare(url: str | os.PathLike[str] | Store, options: dict[str, Any]) -> Store:
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
        case "http" | "https":
            return HTTPStore(text, **options)
        case "file":
            if not rest.startswith("/"):
                raise ValueError(f"a file URL has three slashes and an absolute path, file:///folder: got {text!r}")
            return _without(options, LocalStore(unquote(rest)))
        case "memory":
            if rest:
                raise ValueError("memory:// has no name: each is a new, empty store. Pass a MemoryStore to share one")
            return _without(options, MemoryStore())
        case _:
            _check_fsspec(scheme)
            return FsspecStore(text, **options)


def _check_fsspec(scheme: str) -> None:
    try:
        from fsspec import available_protocols
    except ImportError:
        raise ValueError(
            f'no store for {scheme!r} URLs, unless fsspec has one: pip install "aloader[fsspec]" (known: {KNOWN})'
        ) from None
    if scheme not in available_protocols():
        raise ValueError(f"no store for {scheme!r} URLs (known: {KNOWN})")


def _without(options: dict[str, Any], store: Store) -> Store:
    if options:
        raise TypeError(f"{type(store).__name__} takes no options here, got {', '.join(sorted(options))}")
    return store


def _s3(rest: str, options: dict[str, Any]) -> S3Store:
    place, _, query = rest.partition("?")
    bucket, _, prefix = place.partition("/")
    if "@" in bucket:
        raise ValueError(
            "credentials do not belong into a URL: they come from the environment, or as arguments of open_store: "
            "access_key=…, secret_key=…"
        )
    settings: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := settings.keys() - S3_QUERY:  # the values are not shown: they may be secrets
        raise ValueError(
            f"an s3 URL takes {', '.join(sorted(S3_QUERY))}, not {', '.join(sorted(unknown))}. "
            "Credentials come from the environment, or as arguments of open_store: access_key=…, secret_key=…"
        )
    if "anonymous" in settings:
        settings["anonymous"] = settings["anonymous"].lower() in ("", "1", "true", "yes")
    return S3Store(bucket, prefix, **(settings | options))
