"""The servers that tests talk to: real ones on this machine, one of each for the whole run.

A package's conftest imports the fixture it needs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aloader.testing.s3server import S3Server

_RUNNING = pytest.StashKey[S3Server]()

BUCKET = "test-bucket"


@pytest.fixture(scope="session")
def s3_server(pytestconfig: pytest.Config) -> Iterator[S3Server]:
    """A running SeaweedFS with an empty bucket, `BUCKET`. Tests share it: each writes under a prefix of its own."""
    running = pytestconfig.stash.get(_RUNNING, None)
    if running is not None:  # another package's conftest has imported this fixture, and started it
        yield running
        return
    with S3Server() as server:
        server.create_bucket(BUCKET)
        pytestconfig.stash[_RUNNING] = server
        yield server
        del pytestconfig.stash[_RUNNING]
