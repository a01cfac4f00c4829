"""A second real S3 server: Ceph's radosgw, from Debian's packages, with everything in memory and nothing outside a
temporary folder. For `make test-ceph`: it starts in about twelve seconds.

One monitor, one place for objects (`ceph-osd` with `memstore`), one gateway; no manager, which only counts. Keys are
made for each run: without any, the gateway never gets in.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from aloader.storage import S3Store
from aloader.testing import keeper
from aloader.testing.s3server import _free_ports

PROGRAMS: Final = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
INSTALL: Final = "apt-get install radosgw ceph-mon ceph-osd ceph-common"

#: Seconds that each step may take, and how often all is begun anew: the keeper of objects sometimes ends at once.
STEP_DEADLINE: Final = 60.0
STARTS: Final = 3

CONFIGURATION: Final = """
[global]
fsid = {cluster}
mon host = [v2:127.0.0.1:{monitor_port}]
public network = 127.0.0.0/8
keyring = {folder}/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
osd objectstore = memstore
memstore device bytes = 2147483648
run dir = {folder}
log file = {folder}/$name.log
admin socket =
pid file =
mon data = {folder}/mon
osd data = {folder}/osd
rgw data = {folder}/rgw
[client.admin]
rgw frontends = beast endpoint=127.0.0.1:{port}
"""


def missing() -> str:
    """Why it cannot run here; empty if it can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"no Ceph here ({', '.join(absent)} not found): {INSTALL}" if absent else ""


class CephServer:
    """`with CephServer() as server:`; it ends with the block, or with this process however it ends."""

    def __init__(self) -> None:
        self.access_key, self.secret_key = f"test-{secrets.token_hex(4)}", secrets.token_hex(16)
        self.endpoint_url = ""

    def store(self, bucket: str, prefix: str = "") -> S3Store:
        return S3Store(
            bucket,
            prefix,
            endpoint_url=self.endpoint_url,
            region="us-east-1",
            access_key=self.access_key,
            secret_key=self.secret_key,
        )

    def create_bucket(self, name: str) -> None:
        from botocore.config import Config
        from botocore.session import get_session

        client = get_session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(proxies={}, retries={"total_max_attempts": 10}, s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket=name)
        client.close()

    def __enter__(self) -> Self:
        failure: Exception | None = None
        for _ in range(STARTS):
            with ExitStack() as stack:
                try:
                    self._start(stack)
                    self.create_bucket("first-bucket")  # an open port is not enough
                except Exception as error:
                    failure = error
                    continue
                self._running = stack.pop_all()
                return self
        raise RuntimeError("Ceph did not start") from failure

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _start(self, stack: ExitStack) -> None:
        folder = Path(tempfile.mkdtemp(prefix="aloader-ceph-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in ("mon", "osd", "rgw"):
            (folder / name).mkdir()
        monitor_port, port = _free_ports(2)
        cluster = str(uuid.uuid4())
        configuration = folder / "ceph.conf"
        configuration.write_text(
            CONFIGURATION.format(cluster=cluster, monitor_port=monitor_port, port=port, folder=folder)
        )
        config, keyring = ["-c", str(configuration)], str(folder / "keyring")
        everything = [part for service in ("mon", "osd", "mgr") for part in ("--cap", service, "allow *")]

        _do("ceph-authtool", keyring, "--create-keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        _do("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", *everything)
        address = f"[v2:127.0.0.1:{monitor_port}]"
        _do("monmaptool", "--create", "--fsid", cluster, "--addv", "a", address, str(folder / "monmap"))
        _do("ceph-mon", *config, "-i", "a", "--mkfs", "--monmap", str(folder / "monmap"), "--keyring", keyring)
        self._keep(stack, folder, "ceph-mon", *config, "-i", "a", "-f")

        key, disk = _do("ceph-authtool", "--gen-print-key").strip(), str(uuid.uuid4())
        _do("ceph", *config, "osd", "new", disk, "-i", "-", given=json.dumps({"cephx_secret": key}))
        _do("ceph-authtool", keyring, "-n", "osd.0", "--add-key", key)
        _do("ceph-osd", *config, "-i", "0", "--mkfs", "--osd-uuid", disk)
        self._keep(stack, folder, "ceph-osd", *config, "-i", "0", "-f")

        user = ["--uid", "test", "--display-name", "test"]
        keys = ["--access-key", self.access_key, "--secret-key", self.secret_key]
        _do("radosgw-admin", *config, "user", "create", *user, *keys)
        self._keep(stack, folder, "radosgw", *config, "-n", "client.admin", "-f")
        self.endpoint_url = f"http://127.0.0.1:{port}"
        self._wait_for_the_port(port)

    def _keep(self, stack: ExitStack, folder: Path, *command: str) -> None:
        """Run one part of it, which ends with the stack, or with this process."""
        with open(folder / f"{command[0]}.out", "wb") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-I", str(keeper.__file__), "--", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        stack.callback(_end, process)

    def _wait_for_the_port(self, port: int) -> None:
        deadline = time.monotonic() + STEP_DEADLINE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)  # sleep: another program opens the port, and tells nobody


def _do(*command: str, given: str = "") -> str:
    done: Any = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=STEP_DEADLINE)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:1])} failed: {done.stderr[-500:]}")
    return str(done.stdout)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(b"e")
        process.stdin.close()
    except BrokenPipeError:
        pass
    process.wait()
