"""A cache that many processes use at once, some of which are killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from aloader import DataLoader
from aloader.datasets import ObjectDataset
from aloader.storage import Cached
from aloader.testing.s3server import S3Server
from tests.servers import BUCKET
from tests.storage.wrappers import cache_writers

pytestmark = pytest.mark.slow

COUNT = 60

READER = """
import sys
from aloader import DataLoader
from aloader.datasets import ObjectDataset
from aloader.storage import Cached, open_store
store = Cached(open_store(sys.argv[1]), sys.argv[2], complete=True)
dataset = ObjectDataset(store, [f"{number:03}" for number in range(int(sys.argv[3]))], decode=int)
with DataLoader(dataset, batch_size=5, num_workers=2) as loader:
    print([int(number) for batch in loader for number in batch])
"""


def test_writers_that_are_killed_or_crowded_leave_nothing_wrong(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, cache_writers.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("nothing_left")
def test_what_one_program_has_read_the_next_does_not_ask_for(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    prefix = uuid4().hex

    async def fill() -> None:
        async with s3_server.store(BUCKET, prefix) as store:
            await asyncio.gather(*(store.put(f"{number:03}", b"%d" % number) for number in range(COUNT)))

    asyncio.run(fill())
    url, before = s3_server.url(BUCKET, prefix), s3_server.served().gets
    done = subprocess.run(
        [sys.executable, "-c", READER, url, str(tmp_path), str(COUNT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout == f"{list(range(COUNT))}\n", done.stderr
    asked = gets_of(s3_server, before, COUNT)
    assert asked == COUNT
    store = s3_server.store(BUCKET, prefix)  # the same place, by arguments
    dataset = ObjectDataset(Cached(store, tmp_path), [f"{number:03}" for number in range(COUNT)], decode=int)
    with DataLoader(dataset, batch_size=5, num_workers=2, persistent_workers=True) as loader:
        for _ in range(2):
            assert [int(number) for batch in loader for number in batch] == list(range(COUNT))
    assert gets_of(s3_server, before, COUNT) == COUNT


def gets_of(server: S3Server, before: int, least: int) -> int:
    """How many the server has counted: it does so just after it has answered."""
    deadline = time.monotonic() + 5
    while (count := server.served().gets - before) < least and time.monotonic() < deadline:
        pass
    return count
