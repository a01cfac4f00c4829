"""Where botocore would send a GET: told apart from what only botocore itself can reach. Nothing is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.session import Session, get_session

from aloader.storage import S3Store
from aloader.storage.s3.place import find


@pytest.fixture(scope="module")
def session() -> Session:
    return get_session()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY",
                 "https_proxy", "ALL_PROXY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE",
                 "REQUESTS_CA_BUNDLE", "AWS_RESPONSE_CHECKSUM_VALIDATION"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


@pytest.mark.parametrize(
    ("store", "url", "region"),
    [
        (S3Store("bucket", region="eu-north-1"), "https://bucket.s3.eu-north-1.amazonaws.com/", "eu-north-1"),
        (S3Store("my.bucket", region="eu-north-1"), "https://s3.eu-north-1.amazonaws.com/my.bucket/", "eu-north-1"),
        (S3Store("bucket"), "https://bucket.s3.amazonaws.com/", "us-east-1"),
        (S3Store("bucket", region="cn-north-1"), "https://bucket.s3.cn-north-1.amazonaws.com.cn/", "cn-north-1"),
        (S3Store("bucket", region="eu-north-1", anonymous=True), "https://bucket.s3.eu-north-1.amazonaws.com/", ""),
        (S3Store("bucket", endpoint_url="http://127.0.0.1:9000"), "http://127.0.0.1:9000/bucket/", "us-east-1"),
        (S3Store("bucket", endpoint_url="http://host:80/pre/", region="r"), "http://host/pre/bucket/", "r"),
        (S3Store("bucket", endpoint_url="http://[::1]:9000"), "http://[::1]:9000/bucket/", "us-east-1"),
    ],
)
def test_the_place_is_botocores(session: Session, store: S3Store, url: str, region: str) -> None:
    place = find(session, store._settings())
    assert place is not None
    assert (f"{place.origin}{place.base}", place.region) == (url, region)


@pytest.mark.parametrize("bucket", ["bucket--use1-az4--x-s3", "arn:aws:s3:us-west-2:123456789012:accesspoint/myap"])
def test_directory_buckets_and_access_points_are_left_to_botocore(session: Session, bucket: str) -> None:
    assert find(session, S3Store(bucket, region="us-west-2")._settings()) is None


def fresh(session: Session) -> Session:
    """One that reads the environment anew, and the JSON not."""
    other = get_session()
    other.register_component("data_loader", session.get_component("data_loader"))
    return other


def test_the_environments_servers_and_proxies_count(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://server:1234")
    store = S3Store("bucket")
    place = find(fresh(session), store._settings())
    assert place is not None
    assert (str(place.origin), store.endpoint) == ("http://server:1234", "http://server:1234")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")  # for others
    assert find(fresh(session), store._settings()) is not None
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert find(fresh(session), store._settings()) is None
    monkeypatch.setenv("NO_PROXY", "server")
    assert find(fresh(session), store._settings()) is not None


def test_checksums_are_asked_for_where_botocore_would(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, asked_for in (("", True), ("when_supported", True), ("when_required", False)):
        if setting:
            monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", setting)
        for anonymous in (False, True):
            place = find(fresh(session), S3Store("bucket", anonymous=anonymous)._settings())
            assert place is not None
            assert place.checksums is asked_for


@pytest.mark.parametrize(
    ("style", "url"),
    [
        ("virtual", "http://bucket.server.test:9/"),
        ("path", "http://server.test:9/bucket/"),
        ("", "http://server.test:9/bucket/"),
    ],
)
def test_the_bucket_is_where_the_configuration_wants_it(
    session: Session, style: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(f"[default]\nregion = here\ns3 =\n  max_concurrent_requests = 9\n  addressing_style = {style}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    place = find(fresh(session), S3Store("bucket", endpoint_url="http://server.test:9")._settings())
    assert place is not None
    assert f"{place.origin}{place.base}" == url


def test_certificates_are_the_ones_that_botocore_trusts(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def certificates() -> str | None:
        place = find(fresh(session), S3Store("bucket")._settings())
        assert place is not None
        return place.certificates

    usual = certificates()
    assert usual
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/requests.pem")
    assert certificates() == "/requests.pem"
    monkeypatch.setenv("AWS_CA_BUNDLE", "/some/file.pem")
    assert certificates() == "/some/file.pem"
