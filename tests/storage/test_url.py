from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aloader.storage import LocalStore, MemoryStore, S3Store, open_store


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
    store = open_store("s3://bucket/a/b%20#c/?endpoint_url=http%3A//127.0.0.1:1&region=eu-west-1&anonymous=true")
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix, store.anonymous) == ("bucket", "a/b%20#c", True)
    assert (store.endpoint_url, store.region) == ("http://127.0.0.1:1", "eu-west-1")
    assert repr(open_store("s3://bucket")) == repr(open_store("s3://bucket/")) == "S3Store('s3://bucket')"


def test_options_go_to_the_store() -> None:
    store = open_store("s3://bucket?region=a", region="b", access_key="k", secret_key="s")
    assert isinstance(store, S3Store)
    assert (store.region, store.access_key, store.secret_key) == ("b", "k", "s")


def test_a_store_is_taken_as_it_is() -> None:
    store = MemoryStore()
    assert open_store(store) is store
    assert isinstance(open_store("memory://"), MemoryStore)


@pytest.mark.parametrize("scheme", ["gs", "http", "S3"])
def test_an_unknown_scheme_is_an_error_that_lists_the_known_ones(scheme: str) -> None:
    with pytest.raises(ValueError, match=rf"no store for '{scheme}' URLs .*s3://bucket/prefix, file:///folder, memory"):
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
