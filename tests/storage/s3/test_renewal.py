"""A store whose credentials come from a container's endpoint, and expire."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aloader.errors import AccessDenied, CredentialsExpired
from aloader.storage import S3Store, open_store
from tests.storage.s3.server import access_key, answer, container, error, objects
from tests.storage.wire.scripted import Said, Scripted, scripted

pytestmark = [pytest.mark.usefixtures("nothing_left", "nobody"), pytest.mark.asyncio]

ROLE = b"""{"Code": "Success", "AccessKeyId": "key1", "SecretAccessKey": "hush-hush", "Token": "token",
"Expiration": "2099-01-01T00:00:00Z"}"""


def store_at(server: Scripted, container: Scripted, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{container.port}/role")
    return S3Store("bucket", endpoint_url=f"http://127.0.0.1:{server.port}")


class Refusing:
    """Refuses what is signed with old keys."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def __call__(self, request: bytes) -> list[Said] | None:
        return [error(403, "ExpiredToken")] if access_key(request) in self.refused else None


async def test_expired_credentials_are_renewed_once_for_all_for_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing = Refusing()
    async with objects(b"here", refusing) as server, container() as role:
        async with store_at(server, role, monkeypatch) as store:
            assert await store.get("key") == b"here"
            refusing.refused.add("key1")
            failed = await asyncio.gather(*(store.get(f"{i}") for i in range(20)), return_exceptions=True)
            assert {type(each) for each in failed} == {CredentialsExpired}
            assert "hush-hush" not in f"{failed} {store!r}"
            assert await store.get("key") == b"here"
            assert len(role.requests) == 2
            assert b"x-amz-security-token: token" in server.requests[-1]
            assert await store.size("key") == 4  # aiobotocore has the new ones too
            assert [access_key(request) for request in server.requests[-2:]] == ["key2", "key2"]
            monkeypatch.setattr("aloader.storage.s3.credentials.ASKED_EVERY", 0)
            refusing.refused.add("key2")
            with pytest.raises(CredentialsExpired):  # and by aiobotocore's errors they are renewed as well
                await anext(store.list())
            assert await store.size("key") == 4
            assert access_key(server.requests[-1]) == "key3"


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "RequestExpired", "ExpiredTokenException"])
async def test_keys_that_were_rotated_by_hand_are_found_by_the_next_attempt(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text("[default]\naws_access_key_id=old\naws_secret_access_key=s\n")
    valid = {"old"}
    refuse = lambda request: None if access_key(request) in valid else [error(403, code)]  # noqa: E731
    async with objects(b"here", refuse) as server:
        async with open_store("s3://bucket", endpoint_url=f"http://127.0.0.1:{server.port}") as store:
            assert await store.get("key") == b"here"
            file.write_text("[default]\naws_access_key_id=new\naws_secret_access_key=s\n")
            valid = {"new"}
            assert await store.get("key") == b"here"
            assert [access_key(request) for request in server.requests] == ["old", "old", "new"]
            assert await store.size("key") == 4


async def test_a_key_that_nobody_ever_knew_is_a_refusal_once_nothing_else_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    async with objects(b"", lambda _: [error(403, "InvalidAccessKeyId")]) as server:
        async with S3Store("bucket", endpoint_url=f"http://127.0.0.1:{server.port}") as store:
            with pytest.raises(AccessDenied, match="does not know the access key") as caught:
                await store.get("key")
            assert type(caught.value) is AccessDenied
            assert len(server.requests) == 1


async def test_the_machines_role_may_refuse_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [answer(429)]

    def script(connection: int, number: int, request: bytes) -> list[Said]:
        if request.startswith(b"PUT"):
            return [answer(200, b"token")]
        if request.split()[1].endswith(b"/security-credentials/"):
            return [failures.pop() if failures else answer(200, b"role")]
        return [answer(200, ROLE)]

    async with objects(b"here") as server, scripted(script) as machine:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{machine.port}")
        async with S3Store("bucket", endpoint_url=f"http://127.0.0.1:{server.port}") as store:
            assert await store.get("key") == b"here"


async def test_keys_of_the_environment_with_the_end_of_their_line_are_refused_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush\n")
    async with objects(b"here") as server:
        async with S3Store("bucket", endpoint_url=f"http://127.0.0.1:{server.port}") as store:
            with pytest.raises(AccessDenied, match=r"cannot read 'key' in .*the secret key has white space") as caught:
                await store.get("key")
    assert "hush" not in str(caught.value)
    assert not server.requests


async def test_credentials_about_to_expire_are_asked_for_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=100)).strftime("%Y-%m-%dT%H:%M:%SZ")
    async with objects(b"here") as server, container(soon) as role, store_at(server, role, monkeypatch) as store:
        for _ in range(5):
            await asyncio.gather(*(store.get(f"{i}") for i in range(20)))
        assert len(role.requests) <= 3
        used = {access_key(request) for request in server.requests}
        assert used <= {"key1", "key2", "key3"}


async def test_given_credentials_that_have_expired_are_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with objects(b"", lambda _: [error(400, "ExpiredToken")]) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with S3Store("bucket", endpoint_url=url, access_key="a", secret_key="b", session_token="c") as store:
            for attempt in (store.get("key"), store.put("key", b"")):
                with pytest.raises(AccessDenied, match="the credentials have expired: renew them") as caught:
                    await attempt
                assert not isinstance(caught.value, CredentialsExpired)
