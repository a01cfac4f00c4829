"""An HTTP and S3 server that misbehaves as it is told, for tests and benchmarks: this is what starts and ends it.

It runs in a process of its own, so that what a client costs can be measured apart, or on the loop of a test. What it
says is in `s3answers`, what goes wrong in `faults`, what it serves in `synthetic`.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from aloader.storage import S3Store
from aloader.testing.faultprotocol import listen
from aloader.testing.faults import Faults
from aloader.testing.faultservice import CONTROL, Served, Service
from aloader.testing.starting import started
from aloader.testing.synthetic import Synthetic, objects_of

#: Seconds that the server has to answer a question about itself.
PATIENCE: Final = 10.0

#: So often a question of ours may be refused.
_ATTEMPTS: Final = 50


class FaultServer:
    """A running server: `with FaultServer(objects) as server:`, or `async with`, which blocks nobody.

    `objects` is a dict of bytes, a folder, or `Synthetic(…)`: the same in every bucket. It listens on 127.0.0.1 only,
    and ends with the block, or with this process however it ends. With `in_process=True` it runs on the loop that
    enters it, by `async with` alone: for tests, where starting a process takes too long.

    It takes every request as if it were signed rightly. With `allowed`, only those under one of these access keys
    (the first is the one that `store` and `environment` use).
    """

    region: Final = "us-east-1"
    bucket: Final = "bucket"
    secret_key: Final = "secret"

    def __init__(
        self,
        objects: Mapping[str, bytes] | str | Path | Synthetic,
        faults: Faults | None = None,
        seed: int = 0,
        *,
        allowed: Collection[str] | None = None,
        in_process: bool = False,
    ) -> None:
        self._objects = objects
        self.faults = faults or Faults()
        self.seed = seed
        self._allowed = None if allowed is None else list(allowed)
        self.access_key = self._allowed[0] if self._allowed else "test"
        self._in_process = in_process
        self._port = 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._service: Service | None = None
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"FaultServer({self.endpoint_url or 'not running'!r}, {self.faults!r})"

    @property
    def endpoint_url(self) -> str:
        """Empty while it does not run."""
        return f"http://127.0.0.1:{self._port}" if self._port else ""

    @property
    def pid(self) -> int | None:
        """The process whose child is the server; None if it has none. Its CPU time is not the client's."""
        return None if self._keeper is None else self._keeper.pid

    def url(self, bucket: str = bucket, prefix: str = "") -> str:
        """The URL of a place on this server. Credentials are not part of it: see `environment`."""
        return f"s3://{bucket}/{prefix}?endpoint_url={self.endpoint_url}&region={self.region}"

    def environment(self) -> dict[str, str]:
        """Variables by which every AWS client gets in, and goes straight to this machine."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "NO_PROXY": "127.0.0.1",
        }

    def store(self, bucket: str = bucket, prefix: str = "", **options: Any) -> S3Store:
        """A place on this server as a store that carries the credentials. `options` are further ones of `S3Store`."""
        settings = {"access_key": self.access_key, "secret_key": self.secret_key, "region": self.region} | options
        return S3Store(bucket, prefix, endpoint_url=self.endpoint_url, **settings)

    def served(self, *, afresh: bool = False) -> Served:
        """What it has counted. With `afresh`, it counts from 0 afterwards.

        Blocks for some milliseconds where the server is a process; from a coroutine: `asyncio.to_thread`.
        """
        if self._service is not None:
            found = self._service.look(afresh)
        else:
            found = json.loads(self._ask("GET", "served?afresh" if afresh else "served"))
        return Served(**found | {name: Counter(found[name]) for name in ("requests", "faults")})

    def change(self, faults: Faults) -> None:
        """Other faults from now on, and with them time and the numbers of requests from 0. Blocks as `served` does."""
        self.faults = faults
        self._tell(faults=asdict(faults))

    def expire(self, *access_keys: str) -> None:
        """Refuse these access keys from now on, with ExpiredToken. Blocks as `served` does."""
        self._tell(expired=access_keys)

    def _tell(self, faults: dict[str, Any] | None = None, expired: Collection[str] = ()) -> None:
        if self._service is not None:
            self._service.settle(faults, expired)
        else:
            self._ask("PUT", "settings", json.dumps({"faults": faults, "expired": list(expired)}))

    def _ask(self, method: str, what: str, body: str | None = None) -> bytes:
        if not self._port:
            raise RuntimeError("the server does not run: enter it with `with` or `async with`")
        for _ in range(_ATTEMPTS):  # connections are refused, as told, before anybody can know whose they are
            with contextlib.suppress(ConnectionError):
                return self._ask_once(method, what, body)
        return self._ask_once(method, what, body)

    def _ask_once(self, method: str, what: str, body: str | None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            connection.request(method, f"/{CONTROL}/{what}", body)
            return connection.getresponse().read()
        finally:
            connection.close()

    # -- on this loop --------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """What `async with` does first."""
        if not self._in_process:
            return await started(self.__enter__, self._end)
        service = Service(objects_of(self._objects), self.faults, self.seed, self._allowed)
        self._server = await listen(service)
        self._service = service
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def aclose(self) -> None:
        """What `async with` does at its end."""
        if not self._in_process:
            await asyncio.to_thread(self._end)
        elif self._server is not None and self._service is not None:
            self._server.close()
            for connection in list(self._service.connections):
                connection.reset()
            await self._server.wait_closed()
            self._server = self._service = None
            self._port = 0

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- in a process of its own ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._in_process:
            raise RuntimeError("a server with in_process=True needs a running loop: enter it with `async with`")
        folder = Path(tempfile.mkdtemp(prefix="aloader-faults-"))
        settings = folder / "settings"
        settings.write_bytes(pickle.dumps((self._objects, self.faults, self.seed, self._allowed)))
        beside = Path(__file__).parent
        python = [sys.executable, "-I"]
        command = [*python, str(beside / "keeper.py"), str(folder), "--", *python, str(beside / "faultprocess.py")]
        with tempfile.TemporaryFile() as log:
            self._keeper = subprocess.Popen(
                [*command, str(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # ^C in the terminal is for the program, which then ends its server
            )
            assert self._keeper.stdout is not None
            said = self._keeper.stdout.readline()
            if not said.strip().isdigit():
                self._end()
                log.seek(0)
                raise RuntimeError(f"the server did not start:\n{log.read().decode(errors='replace')[-2000:]}")
        self._port = int(said)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        self._port = 0
        if keeper is None:
            return
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            keeper.stdin.write(b"e")  # closing alone does not do: forked workers may hold this end too
            keeper.stdin.close()
        except BrokenPipeError:
            pass
        keeper.wait()
        keeper.stdout.close()
