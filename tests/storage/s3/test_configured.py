"""The server that the configuration names: it is where the objects come from, so it tells stores apart."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from botocore.session import Session, get_session

from aloader.storage import Cached, S3Store
from aloader.storage.s3.configured import configured_endpoint

PROFILES = """
[default]
region = us-east-1
endpoint_url = http://a:9000
[profile b]
endpoint_url = http://b:9000
[profile s]
services = x
endpoint_url = http://unused:9000
[profile off]
endpoint_url = http://unused:9000
ignore_configured_endpoint_urls = true
[profile broken]
services = missing
endpoint_url = http://unused:9000
[profile plain]
region = us-east-1
[services x]
s3 =
  endpoint_url = http://s:9000
"""
URL, URL_S3, PROFILE = "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"
IGNORED = {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}

CASES: list[tuple[dict[str, str], str | None]] = [
    ({}, "http://a:9000"),
    ({PROFILE: "b"}, "http://b:9000"),
    ({PROFILE: "s"}, "http://s:9000"),
    ({PROFILE: "off"}, None),
    ({PROFILE: "off", URL: "http://e:1"}, None),
    ({PROFILE: "plain"}, None),
    ({PROFILE: "b", URL: "http://e:1"}, "http://e:1"),
    ({PROFILE: "s", URL: "http://e:1", URL_S3: "http://e:3"}, "http://e:3"),
    ({PROFILE: "b", URL: "http://e:1", **IGNORED}, None),
]


@pytest.fixture(autouse=True)
def config(nobody: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in (URL, URL_S3, *IGNORED):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config"
    path.write_text(PROFILES)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    return path


@pytest.fixture(scope="module")
def loaded() -> Session:
    """A session that has read the JSON."""
    return get_session()


def set_all(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("environment", "endpoint"), CASES)
def test_it_is_the_one_that_botocore_goes_to(
    environment: dict[str, str], endpoint: str | None, loaded: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(environment, monkeypatch)
    session = get_session()
    session.register_component("data_loader", loaded.get_component("data_loader"))
    client = session.create_client("s3", region_name="us-east-1")
    assert configured_endpoint() == endpoint
    assert client.meta.endpoint_url == (endpoint or "https://s3.amazonaws.com")
    client.close()


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [({}, None), ({URL: "http://e:1"}, "http://e:1"), ({URL: "http://e:1", **IGNORED}, None), ({URL: ""}, None)],
)
def test_botocore_is_not_asked_where_no_file_names_a_server(
    environment: dict[str, str], endpoint: str | None, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("aloader.storage.s3.configured._of_botocore", refuse)
    config.write_text("[default]\nregion = us-east-1\n")
    set_all(environment, monkeypatch)
    assert configured_endpoint() == endpoint


def test_stores_of_two_profiles_are_two_stores_in_caches_and_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = S3Store("bucket", "data")
    assert one.identity == "s3://bucket/data at http://a:9000"
    monkeypatch.setenv(PROFILE, "b")
    other = S3Store("bucket", "data")
    assert Cached(one, tmp_path).namespace != Cached(other, tmp_path).namespace
    assert repr(other) == "S3Store('s3://bucket/data', endpoint_url='http://b:9000')"  # what manifests go by
    assert other.endpoint == "http://b:9000"
    assert one.endpoint == "http://a:9000"  # where it is does not change while it lives
    assert pickle.loads(pickle.dumps(one)).endpoint == "http://b:9000"  # a copy asks where it is


def test_what_there_was_is_named_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else caches would be filled anew."""
    given = S3Store("bucket", "data", endpoint_url="http://c:9000/")
    assert given.identity == "s3://bucket/data at http://c:9000/"
    monkeypatch.setenv(PROFILE, "plain")
    amazon = S3Store("bucket", "data")
    assert (amazon.identity, repr(amazon)) == ("s3://bucket/data at Amazon S3", "S3Store('s3://bucket/data')")


@pytest.mark.asyncio
@pytest.mark.parametrize("profile", ["broken", "no-such-one"])
async def test_a_configuration_that_cannot_be_read_is_said_by_opening(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROFILE, profile)
    store = S3Store("bucket")
    assert repr(store) == "S3Store('s3://bucket')"
    with pytest.raises(OSError, match=r"cannot open S3Store.*(does not exist|could not be found)"):
        await store.__aenter__()


def test_a_password_of_a_configured_server_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, "https://user:hush@host:9/base")
    store = S3Store("bucket")
    assert store.endpoint == "https://host:9/base"
    assert "hush" not in f"{store!r} {store.identity}"


def test_whose_clock_is_asked_is_the_configured_server() -> None:
    from aloader.checkup.skew import server_of

    assert server_of("s3://bucket") == "http://a:9000"
