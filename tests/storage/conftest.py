from collections.abc import Iterator

import pytest

from tests.servers import BUCKET, s3_server
from tests.storage import ceph

__all__ = ["ceph_server", "s3_server"]


@pytest.fixture(scope="session")
def ceph_server() -> Iterator[ceph.CephServer]:
    """A running radosgw with an empty bucket, `BUCKET`; the test is skipped where there is no Ceph."""
    if reason := ceph.missing():
        pytest.skip(reason)
    with ceph.CephServer() as server:
        server.create_bucket(BUCKET)
        yield server
