"""A store over TLS, as the real S3 is: the certificates are those that every AWS program trusts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aloader.errors import StoreUnreachable
from aloader.storage import ObjectInfo, S3Store
from tests.storage.s3.server import answer
from tests.storage.wire import certificates
from tests.storage.wire.scripted import Said, scripted

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with"),
]

LISTING = b"<ListBucketResult><Contents><Key>key</Key><Size>4</Size><ETag>v</ETag></Contents></ListBucketResult>"


def script(connection: int, number: int, request: bytes) -> list[Said]:
    return [answer(200, LISTING if b"list-type" in request else b"here", ETag='"v"')]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_certificate_of_the_environments_bundle_is_trusted_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_side, certificate = certificates.make(tmp_path)
    async with scripted(script, server_side) as server:
        url = f"https://localhost:{server.port}"
        async with S3Store("bucket", endpoint_url=url, access_key="a", secret_key="b") as store:
            with pytest.raises(StoreUnreachable, match=r"cannot read 'key' in .* a certificate that is not trusted"):
                await store.get("key")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        async with S3Store("bucket", endpoint_url=url, access_key="a", secret_key="b") as store:
            assert await store.get("key") == b"here"
            assert [info async for info in store.list()] == [ObjectInfo("key", 4)]
