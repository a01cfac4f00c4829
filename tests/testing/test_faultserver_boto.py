"""`FaultServer` as a process, seen by botocore, by `S3Store`, and by whoever kills the program that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import get_session

from aloader.errors import KeyNotFound
from aloader.testing import Faults, FaultServer
from tests.testing.conftest import OBJECTS


@pytest.fixture(scope="module")
def client(process: FaultServer) -> Iterator[Any]:
    settings = Config(proxies={}, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    made = get_session().create_client(
        "s3",
        endpoint_url=process.endpoint_url,
        region_name=process.region,
        aws_access_key_id=process.access_key,
        aws_secret_access_key=process.secret_key,
        config=settings,
    )
    yield made
    made.close()


def listed(client: Any, size: int, **arguments: Any) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket="any", PaginationConfig={"PageSize": size}, **arguments
    )
    found = []
    for page in pages:
        found += [each["Key"] for each in page.get("Contents", ())]
        found += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
    return found


def test_objects_ranges_and_heads(client: Any) -> None:
    whole = client.get_object(Bucket="any", Key="a/03")
    assert whole["Body"].read() == OBJECTS["a/03"]
    version = client.head_object(Bucket="any", Key="top")["ETag"]
    part = client.get_object(Bucket="any", Key="top", Range="bytes=-2", IfMatch=version)
    assert (part["Body"].read(), part["ContentRange"]) == (b"45", "bytes 3-4/5")
    assert client.head_object(Bucket="any", Key="b c/ü&<x>")["ContentLength"] == 3


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_key_is_listed_once_whatever_the_size_of_the_page(client: Any, size: int) -> None:
    assert [key for key in listed(client, size) if key in OBJECTS] == sorted(OBJECTS)
    assert listed(client, size, Prefix="a/1") == [f"a/1{number}" for number in range(10)]
    assert listed(client, size, Prefix="a/", StartAfter="a/25") == ["a/26", "a/27", "a/28", "a/29"]
    assert listed(client, size, Prefix="nothing") == []


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_a_delimiter_makes_folders(client: Any, size: int) -> None:
    assert {"a/", "b c/", "top"} <= set(listed(client, size, Delimiter="/"))
    tens = {key[: key.index("1", 2) + 1] if "1" in key[2:] else key for key in OBJECTS if key.startswith("a/")}
    assert sorted(listed(client, size, Prefix="a/", Delimiter="1")) == sorted(tens)


def test_what_was_put_is_there(client: Any) -> None:
    key = f"new/{uuid4().hex}"
    client.put_object(Bucket="any", Key=key, Body=b"hello" * 1000)
    assert client.get_object(Bucket="any", Key=key)["Body"].read() == b"hello" * 1000


@pytest.mark.parametrize(
    ("key", "arguments", "code"),
    [
        ("nothing", {}, "NoSuchKey"),
        ("top", {"Range": "bytes=5-"}, "InvalidRange"),
        ("top", {"IfMatch": "other"}, "PreconditionFailed"),
    ],
)
def test_errors_are_those_of_s3(client: Any, key: str, arguments: dict[str, str], code: str) -> None:
    with pytest.raises(ClientError) as caught:
        client.get_object(Bucket="any", Key=key, **arguments)
    assert caught.value.response["Error"]["Code"] == code
    assert caught.value.response["ResponseMetadata"]["RequestId"]


@pytest.mark.asyncio
async def test_a_store_of_it_has_what_it_serves(process: FaultServer) -> None:
    async with process.store(prefix="a") as store:
        assert await store.get("07") == OBJECTS["a/07"]
        assert [info.key async for info in store.list("2")] == [f"{number}" for number in range(20, 30)]
        with pytest.raises(KeyNotFound):
            await store.get("missing")
    assert process.url("data", "a") == f"s3://data/a?endpoint_url={process.endpoint_url}&region=us-east-1"


def test_a_process_is_told_and_asked_from_outside(client: Any, process: FaultServer) -> None:
    process.served(afresh=True)
    client.get_object(Bucket="any", Key="top")["Body"].read()
    assert process.served().requests == {"GET": 1}
    process.change(Faults(slow_down=1.0))
    try:
        with pytest.raises(ClientError, match="SlowDown"):
            client.get_object(Bucket="any", Key="top")
    finally:
        process.change(Faults())
    assert process.served().faults == {"slow_down": 1}


KILLED = """
import os, sys
from aloader.testing.faultserver import FaultServer
with FaultServer({"key": b""}) as server:
    sleeper = os.fork() or os.execvp("sleep", ["sleep", "60"])
    print(sleeper, flush=True)
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
        sleeper = psutil.Process(int(program.stdout.readline()))
        family = psutil.Process(program.pid).children(recursive=True)
        assert any("faultprocess" in part for each in family for part in each.cmdline())
        program.send_signal(signal.SIGKILL)
        program.wait()
        _, left = psutil.wait_procs([each for each in family if each != sleeper], timeout=10)
        sleeper.kill()
    assert not left
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("nothing_left")
def test_it_leaves_nothing_and_can_be_started_again() -> None:
    server = FaultServer({"key": b"x"})
    for _ in range(2):
        with server:
            assert server.served().connections == 1
    with pytest.raises(RuntimeError, match="does not run"):
        server.served()


@pytest.mark.usefixtures("nothing_left")
def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)the server did not start:.*a server serves a dict of bytes"):
        FaultServer(7).__enter__()  # type: ignore[arg-type]


def test_on_a_loop_it_needs_a_loop() -> None:
    with pytest.raises(RuntimeError, match="enter it with `async with`"):
        FaultServer({}, in_process=True).__enter__()


def test_the_process_of_a_server_has_not_imported_torch(process: FaultServer) -> None:
    assert process.endpoint_url
    family = [each for each in psutil.Process().children(recursive=True) if "faultprocess.py" in str(each.cmdline())]
    servers = [each for each in family if "keeper.py" not in str(each.cmdline())]
    assert servers
    assert not any("torch" in mapped.path for each in servers for mapped in each.memory_maps())


@pytest.mark.asyncio
async def test_entering_and_leaving_a_process_blocks_no_loop() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)  # sleep: to be woken is what is looked at
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    async with FaultServer({"key": b""}) as server:
        assert server.endpoint_url
    ticking.cancel()
    assert ticks > 3
