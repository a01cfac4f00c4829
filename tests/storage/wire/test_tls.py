"""The same over TLS: that it works, and that nobody is trusted without reason."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from aloader.errors import StoreUnreachable
from aloader.storage.wire.pool import Origin
from tests.storage.wire import certificates
from tests.storage.wire.conftest import Run
from tests.storage.wire.scripted import ok, pool_of, scripted

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with"),
]

BODY = bytes(range(256)) * 4_000


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    return certificates.make(tmp_path_factory.mktemp("tls"))


def test_bodies_come_whole_over_tls(run: Run, certificate: tuple[ssl.SSLContext, Path]) -> None:
    server_side, trusted = certificate

    async def main() -> None:
        client_side = ssl.create_default_context(cafile=trusted)
        async with scripted(lambda *_: [ok(BODY)], server_side) as server:
            async with pool_of(Origin("https", "127.0.0.1", server.port), tls=client_side) as pool:
                replies = await asyncio.gather(*(pool.get("/") for _ in range(12)))
                assert all(reply.body == BODY for reply in replies)
                assert (await pool.get("/", most=100_000)).body == BODY[:100_000]
            assert server.made <= 9

    run(main())


def test_a_certificate_that_nobody_vouches_for_is_refused(run: Run, certificate: tuple[ssl.SSLContext, Path]) -> None:
    async def main() -> None:
        async with scripted(lambda *_: [ok()], certificate[0]) as server:
            stranger = ssl.create_default_context()
            async with pool_of(Origin("https", "127.0.0.1", server.port), tls=stranger) as pool:
                with pytest.raises(StoreUnreachable, match="shows a certificate that is not trusted"):
                    await pool.get("/")
            assert not server.requests

    run(main())


def test_a_certificate_for_somebody_else_is_refused(
    run: Run, certificate: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        client_side = ssl.create_default_context(cafile=certificate[1])
        async with scripted(lambda *_: [ok()], certificate[0]) as server:
            async with pool_of(Origin("https", "127.0.0.2", server.port), tls=client_side) as pool:
                monkeypatch.setattr(pool._addresses, "_host", "127.0.0.1")  # the address is right, the name is not
                with pytest.raises(StoreUnreachable, match="not trusted"):
                    await pool.get("/")

    run(main())
