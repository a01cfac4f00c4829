from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aloader.options import CONCURRENCY
from aloader.storage import (
    Cached,
    FsspecStore,
    Hedged,
    HTTPStore,
    Limited,
    LocalStore,
    MemoryStore,
    Parted,
    Retrying,
    RetryPolicy,
    S3Store,
    Store,
    Verified,
    open_store,
)
from aloader.storage.wrappers.wrapper import Wrapper, innermost


def layers(store: Store) -> list[type[Store]]:
    """The kinds of stores, from the outside in."""
    return [type(store), *(layers(store.store) if isinstance(store, Wrapper) else [])]


def find(store: Store, kind: type[Wrapper]) -> Any:
    while not isinstance(store, kind):
        assert isinstance(store, Wrapper)
        store = store.store
    return store


@pytest.mark.parametrize("url", ["/data/a b", Path("/data/a b"), "file:///data/a%20b"])
def test_paths_and_file_urls_are_folders(url: str | Path) -> None:
    store = open_store(url)
    assert isinstance(store, LocalStore)
    assert store.root == Path("/data/a b")


@pytest.mark.parametrize("url", ["C:/data", "data:x", "a?b#c"])
def test_what_has_no_scheme_is_a_path(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, LocalStore)
    assert store.root == Path.cwd() / url


def test_s3_urls_name_bucket_prefix_endpoint_and_region() -> None:
    url = "s3://bucket/a/b%20#c/?endpoint_url=http%3A//127.0.0.1:1&region=eu-west-1&anonymous=true"
    store = innermost(open_store(url))
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix, store.anonymous) == ("bucket", "a/b%20#c", True)
    assert (store.endpoint_url, store.region) == ("http://127.0.0.1:1", "eu-west-1")
    assert repr(innermost(open_store("s3://bucket"))) == repr(innermost(open_store("s3://bucket/")))
    assert repr(open_store("s3://bucket")) == "Parted(Retrying(Limited(S3Store('s3://bucket'))))"


def test_options_go_to_the_store() -> None:
    store = innermost(open_store("s3://bucket?region=a", region="b", access_key="k", secret_key="s"))
    assert isinstance(store, S3Store)
    assert (store.region, store.access_key, store.secret_key) == ("b", "k", "s")
    secret = open_store("https://host/a", headers={"authorization": "hush"})
    assert repr(innermost(secret)) == "HTTPStore('https://host/a')"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("s3://bucket", S3Store),
        ("http://127.0.0.1:1/a", HTTPStore),
        ("https://host/a", HTTPStore),
        ("gs://bucket/a", FsspecStore),
        ("az://container", FsspecStore),
        ("hf://datasets/a/b", FsspecStore),
    ],
)
def test_what_is_read_over_a_network_is_wrapped(url: str, kind: type[Store]) -> None:
    assert layers(open_store(url)) == [Parted, Retrying, Limited, kind]
    assert layers(open_store(url, retry=False, limit=False)) == [Parted, kind]
    assert find(open_store(url), Limited).concurrency == CONCURRENCY


def test_what_is_not_is_left_bare_unless_asked(tmp_path: Path) -> None:
    for bare in ("memory://", tmp_path, MemoryStore()):
        assert isinstance(open_store(bare), MemoryStore | LocalStore)
        assert layers(open_store(bare, retry=True, limit=3))[:2] == [Retrying, Limited]
    assert layers(open_store(tmp_path / "data", cache=tmp_path / "cache")) == [Cached, LocalStore]


def test_wrappers_take_their_arguments(tmp_path: Path) -> None:
    policy = RetryPolicy(attempts=3, deadline=5.0, first_delay=0.5, most_delay=2.0, budget=7)
    store = open_store("s3://bucket", retry=policy, limit=17, hedge=True, verify="etag", cache=tmp_path)
    assert layers(store) == [Cached, Verified, Parted, Retrying, Hedged, Limited, S3Store]
    assert (find(store, Retrying).policy, find(store, Limited).concurrency) == (policy, 17)
    assert find(store, Verified).check == "etag"


def test_a_store_is_taken_as_it_is() -> None:
    store = MemoryStore()
    assert open_store(store) is store
    store = open_store("s3://bucket")  # type: ignore[assignment]
    assert open_store(store) is store
    bucket = S3Store("bucket")
    assert open_store(bucket) is bucket


@pytest.mark.parametrize("scheme", ["gss", "htp", "S3"])
def test_an_unknown_scheme_is_an_error_that_lists_the_known_ones(scheme: str) -> None:
    with pytest.raises(ValueError, match=rf"no store for '{scheme}' URLs .*s3://bucket/prefix, .* file:///folder, m"):
        open_store(f"{scheme}://bucket/prefix")


@pytest.mark.parametrize(
    ("url", "options", "error", "message"),
    [
        ("", {}, ValueError, "an empty string names no store"),
        ("s3://", {}, ValueError, "not the name of a bucket"),
        ("s3:///prefix", {}, ValueError, "not the name of a bucket"),
        ("file://data", {}, ValueError, "three slashes"),
        ("memory://name", {}, ValueError, "memory:// has no name"),
        ("s3://bucket?secret_key=hush", {}, ValueError, "not secret_key. Credentials come from the environment"),
        ("data", {"region": "x"}, TypeError, "LocalStore takes no options here, got region"),
        (MemoryStore(), {"region": "x"}, TypeError, "MemoryStore takes no options"),
        ("s3://bucket", {"regoin": "x"}, TypeError, "regoin"),
        ("https://host", {"hedaers": {}}, TypeError, "hedaers"),
        ("s3://bucket", {"verify": "md5"}, ValueError, "verify= is one of 'length', 'etag', 'crc', 'all'"),
        ("s3://bucket", {"verify": True}, ValueError, "verify= is one of 'length'"),
        ("s3://bucket", {"retry": 3}, TypeError, "retry= is True, False or a RetryPolicy"),
        ("s3://bucket", {"limit": "500GiB", "cache": "x"}, ValueError, "limit= is a number of .*an argument of Cached"),
        ("s3://bucket", {"limit": 0}, ValueError, "limit= is a number of requests"),
        (7, {}, TypeError, "expected a URL, a path or a store, got int"),
        (None, {}, TypeError, "got NoneType"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    url: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        open_store(url, **options)
    assert "hush" not in str(caught.value)
