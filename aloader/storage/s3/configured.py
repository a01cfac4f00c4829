"""The server that the user's configuration names for S3, as botocore finds it: of the environment, of a profile, of a
profile's `[services]`; or none, where `ignore_configured_endpoint_urls` says so.

*Nothing heavy for most.* This is asked where a store is made or shown, maybe on a loop, and importing botocore takes
tenths of a second. So its sessions are asked only if a configuration file has the setting's name in it at all.
"""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

#: The files, by the variables that name others.
FILES: Final = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}

#: The setting, and a part of the name of the one that switches it off.
SETTING: Final = b"endpoint_url"


def configured_endpoint() -> str | None:
    """The server's URL; None where it is Amazon's. Without a name and password, which S3 has no use for, and which
    would be shown. `ValueError` where the configuration cannot be read: whoever opens a client with it hears why."""
    endpoint = _endpoint()
    if not endpoint or "@" not in endpoint:
        return endpoint or None
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _endpoint() -> str | None:
    if any(_mentions(os.environ.get(variable, usual)) for variable, usual in FILES.items()):
        try:
            return _of_botocore()
        except ModuleNotFoundError:  # then nobody opens a client either
            pass
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _mentions(path: str) -> bool:
    try:
        with open(os.path.expanduser(os.path.expandvars(path)), "rb") as file:
            return SETTING in file.read()
    except OSError:
        return False


def _of_botocore() -> str | None:
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.exceptions import BotoCoreError
    from botocore.session import get_session

    session = get_session()
    try:
        if session.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        provider = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3")
        endpoint: str | None = provider.provide()
        return endpoint
    except BotoCoreError as error:
        raise ValueError(str(error)) from error
