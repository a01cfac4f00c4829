"""What an `S3Store` was told, as the clients below it need it. It carries secrets, and is never shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from aloader.storage.s3.signing import Keys

#: Tries of one request that botocore makes, the first included, up to 1 and 2 seconds apart. Refused connections are
#: not tried again.
ATTEMPTS: Final = 3

#: Where the environment names no region, requests to other servers than Amazon's still have to be signed for one.
ANY_REGION: Final = "us-east-1"

#: Checksums of what is written go into trailers of a body in chunks. Amazon's S3 reads that; others (Google's,
#: Alibaba's, Oracle's) refuse it, mostly as a wrong signature. Not a setting of botocores before 1.36, which send none.
REQUEST_CHECKSUMS: Final = "request_checksum_calculation"

#: Attempts, and seconds of each. Not more: where nothing answers, it takes twice all this to be told of no credentials.
METADATA: Final = {"metadata_service_num_attempts": 3, "metadata_service_timeout": 2}

ENGINES: Final = ("lean", "botocore", "obstore")


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """The arguments of a store that concern its clients."""

    bucket: str
    endpoint_url: str | None  # the server, given or configured; None: Amazon's
    region: str | None
    keys: Keys | None
    anonymous: bool
    connect_timeout: float
    read_timeout: float
    max_connections: int
    engine: str
    min_rate: float
    stall_after: float

    def client_config(self, session: Any) -> dict[str, Any]:
        """The settings of botocore's `Config`, beside what its session has of the user's."""
        from botocore import UNSIGNED
        from botocore.config import Config

        config: dict[str, Any] = {
            "connect_timeout": self.connect_timeout,
            "read_timeout": self.read_timeout,
            "max_pool_connections": self.max_connections,
            "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
        }
        named = session.get_config_variable("s3")
        if self.endpoint_url and not (isinstance(named, dict) and named.get("addressing_style")):
            config["s3"] = {"addressing_style": "path"}
        if self.endpoint_url and REQUEST_CHECKSUMS in Config.OPTION_DEFAULTS and not _says(session, REQUEST_CHECKSUMS):
            config[REQUEST_CHECKSUMS] = "when_required"
        if self.anonymous:
            config["signature_version"] = UNSIGNED
        return config

    def region_for(self, session: Any) -> str | None:
        """The region's name, if it has to be said: to Amazon, botocore finds out."""
        return self.region or session.get_config_variable("region") or (ANY_REGION if self.endpoint_url else None)


def be_patient(session: Any) -> None:
    """The machine's role is asked as `METADATA` says, where the user does not say otherwise. botocore asks once, for a
    second, and then there are no credentials: but where many workers begin at once, it is slow, or refuses at first."""
    for setting, value in METADATA.items():
        if not _says(session, setting):
            session.set_config_variable(setting, value)


def _says(session: Any, setting: str) -> bool:
    """Whether the user's environment or profile has this setting: botocore's session says its default, too."""
    return f"AWS_{setting.upper()}" in os.environ or setting in session.get_scoped_config()


def check_endpoint(url: str) -> None:
    """`ValueError` unless this is where a server can be."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials do not belong into endpoint_url=: pass access_key=… and secret_key=…")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"endpoint_url= is an http:// or https:// URL, got {url!r}")
