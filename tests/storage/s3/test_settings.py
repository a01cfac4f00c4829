"""What botocore's clients are told, of arguments and of what the user's configuration leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session

from aloader.storage import S3Store

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
