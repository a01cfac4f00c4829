"""Our signatures are those of botocore, byte by byte."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from aloader.storage.s3.signing import Keys, Signer, encoded
from tests.storage.test_conformance import ODD_KEYS

DAY = 86_400


def of_botocore(
    host: str, path: str, keys: Keys, region: str, now: float, monkeypatch: pytest.MonkeyPatch, checksums: bool = True
) -> str:
    """The header by which botocore would sign the same request."""
    moment = datetime.fromtimestamp(int(now), UTC).replace(tzinfo=None)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: moment)
    request = AWSRequest(
        "GET", f"https://{host}{path}", headers={"x-amz-checksum-mode": "ENABLED"} if checksums else {}
    )
    request.context.update(client_config=Config(s3={"payload_signing_enabled": False}))
    S3SigV4Auth(Credentials(keys.access, keys.secret, keys.token or None), "s3", region).add_auth(request)
    assert request.headers["X-Amz-Content-SHA256"] == "UNSIGNED-PAYLOAD"
    return str(request.headers["Authorization"])


def header(headers: str, name: str) -> str:
    return dict(line.split(": ", 1) for line in headers.splitlines())[name]


def test_signatures_are_botocores(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(7)
    keys = [Keys(f"AKIA{i}", f"secret/{i}+", f"token{i}//" if i % 2 else "") for i in range(4)]
    hosts = ["bucket.s3.eu-north-1.amazonaws.com", "127.0.0.1:9000"]
    signers = {(host, region): Signer(host, region) for host in hosts for region in ("eu-north-1", "us-east-1")}
    now = 1.7e9
    for _ in range(500):
        now += generator.choice([0, 0, 0.3, 1, 60, DAY])
        host, region = generator.choice(list(signers))
        chosen = generator.choice(keys)
        key = "".join(chr(generator.choice([generator.randrange(33, 127), generator.randrange(160, 0xD7FF)]))
                      for _ in range(generator.randrange(1, 40)))  # fmt: skip
        path = f"/bucket/{encoded(generator.choice([key, *ODD_KEYS]))}"
        ours = signers[host, region].headers(path, chosen, now)
        assert header(ours, "Authorization") == of_botocore(host, path, chosen, region, now, monkeypatch)
        assert header(ours, "x-amz-date") == datetime.fromtimestamp(int(now), UTC).strftime("%Y%m%dT%H%M%SZ")
        assert ("x-amz-security-token" in ours) == bool(chosen.token)


def test_without_the_wish_for_checksums_too(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys("AKIA", "secret", "token")
    ours = Signer("host", "here", checksums=False).headers("/b/k", keys, 1.7e9)
    assert header(ours, "Authorization") == of_botocore("host", "/b/k", keys, "here", 1.7e9, monkeypatch, False)
    assert "checksum" not in ours


@pytest.mark.parametrize("key", ODD_KEYS)
def test_keys_are_encoded_once_and_slashes_stay(key: str) -> None:
    assert encoded(key) == quote(key, safe="/~")
    assert encoded(key).isascii()


def test_signing_the_same_twice_is_the_same() -> None:
    signer, keys = Signer("host", "region"), Keys("a", "b")
    assert signer.headers("/k", keys, 5.1) == signer.headers("/k", keys, 5.9) != signer.headers("/k", keys, 6.0)


def test_keys_are_not_shown() -> None:
    assert "secret" not in f"{Keys('access', 'secret', 'token')!r} {Keys('access', 'secret')}"
