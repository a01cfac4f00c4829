"""What botocore's clients are told, of arguments and of what the user's configuration leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session

from aloader.storage import S3Store
from aloader.storage.s3.settings import METADATA, be_patient

VARIABLE = "AWS_REQUEST_CHECKSUM_CALCULATION"

pytestmark = pytest.mark.usefixtures("nobody")


def said(endpoint_url: str | None = "https://server") -> Any:
    config = S3Store("bucket", endpoint_url=endpoint_url)._settings().client_config(get_session())
    return config.get("request_checksum_calculation")


def test_writes_to_other_servers_have_no_trailers_unless_the_user_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert said() == "when_required"
    assert said(None) is None
    monkeypatch.setenv(VARIABLE, "when_supported")
    assert said() is None
    monkeypatch.delenv(VARIABLE)
    config = tmp_path / "config"
    config.write_text("[default]\nrequest_checksum_calculation = when_supported\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert said() is None


def test_the_machines_role_is_asked_more_patiently_unless_the_user_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, timeout = METADATA

    def asked() -> tuple[int, int]:
        session = get_session()
        be_patient(session)
        return session.get_config_variable(attempts), session.get_config_variable(timeout)

    for name in METADATA:
        monkeypatch.delenv(f"AWS_{name.upper()}", raising=False)
    assert asked() == (3, 2)
    monkeypatch.setenv(f"AWS_{attempts.upper()}", "1")
    assert asked() == (1, 2)
    config = tmp_path / "config"
    config.write_text(f"[default]\n{timeout} = 7\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert asked() == (1, 7)
