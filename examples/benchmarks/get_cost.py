"""What does one GET cost the program that makes it, and how fast do large ranges come?

    python examples/benchmarks/get_cost.py [--rounds 7] [--seconds 1.5] [--uvloop] [--json FILE]

**Method.** A server in a process of its own answers every GET of `/bucket/…` with the same bytes, whole or in the
range that was asked for; it checks no signature and does nothing else, so that the clients are what is measured.
All clients run in this one process and take turns, in rounds, each on an event loop of its own that stands still
between its turns; who begins changes from round to round.

*Small:* objects of 64 KiB, a new key with each GET, 64 in flight. *Large:* ranges of 8 MiB of one object, 16 in flight.
Every client signs each request and hands out `bytes`. CPU is this process's (`time.process_time`: all of its threads,
and not the server). Ratios are taken within a round.

- *aloader*: `S3Store.fetch`, as it comes
- *aiobotocore*: `get_object` and `read()`, its pool as large as what is in flight
- *aiohttp*: the same signer as aloader's, and `ClientSession.get`
- *obstore*: `get_async` and `bytes_async`, copied into `bytes`; its threads use other cores

**Result.** 2 cores (x86-64) that had other work too, server and client on the same two; Python 3.11, aiobotocore 3.10,
aiohttp 3.14, obstore 0.12; medians of 7 rounds (lowest–highest), asyncio's loop. Trust the ratios.

| 64 KiB, 64 in flight | CPU ms per GET | times less | GET/s | times faster |
|---|---|---|---|---|
| aloader | 0.06 (0.04–0.10) | 20.6 (15.2–23.3) | 10,190 | 17.1 (8.3–22.9) |
| aiobotocore | 1.02 (0.92–1.80) | 1 | 900 | 1 |
| aiohttp | 0.16 (0.14–0.24) | 6.7 (5.9–10.3) | 3,780 | 6.0 (3.6–17.5) |
| obstore | 0.25 (0.21–0.30) | 4.6 (3.3–8.2) | 4,270 | 5.2 (4.0–20.3) |

| 8 MiB ranges, 16 in flight | CPU s per GB | times less | MB/s | times faster |
|---|---|---|---|---|
| aloader | 0.25 (0.23–0.31) | 3.7 (2.6–5.3) | 2,290 | 2.9 (1.7–5.0) |
| aiobotocore | 0.85 (0.78–1.33) | 1 | 990 | 1 |
| aiohttp | 0.56 (0.43–0.61) | 2.0 (1.4–2.2) | 1,390 | 1.9 (0.9–2.0) |
| obstore | 0.60 (0.55–0.68) | 1.5 (1.2–2.4) | 1,240 | 1.8 (1.1–2.4) |

On uvloop: 19.2 (18.0–22.5) times less CPU for a small GET, 5.2 (3.0–7.2) times less for large ranges, which come 3.0
(1.8–4.6) times faster. Of a small GET's 50 µs about 15 are Python's (signing 3, the parser and the copy of the body 5,
reading the answer 2), the rest are the two system calls and the loop. Of a large range's time nine tenths are the
kernel's, which copies into memory that is touched for the first time: receiving in smaller pieces, or into a small
buffer and copying from there, takes 1.3 to 2 times as much CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import harness
import uvloop

from aloader.storage import S3Store
from aloader.storage.base import Request
from aloader.storage.s3.signing import Keys, Signer

SMALL = 64 << 10
RANGE = 8 << 20
LARGE = 64 << 20
PATTERN = bytes(range(256)) * (LARGE >> 8)
KEYS = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
REGION = "us-east-1"

#: As many headers as S3 sends, or nearly.
HEADERS = (
    'ETag: "0123456789abcdef0123456789abcdef"\r\nLast-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n'
    "Date: Wed, 21 Oct 2026 07:28:00 GMT\r\nContent-Type: application/octet-stream\r\n"
    "Accept-Ranges: bytes\r\nServer: benchmark\r\nx-amz-request-id: 0123456789ABCDEF\r\n"
)

#: Reads bytes `start` to `stop` of the object under a key.
Get = Callable[[str, int, int | None], Awaitable[bytes]]


# -- the server --------------------------------------------------------------------------------------------------------


class Serving(asyncio.Protocol):
    """The objects below "small" have 64 KiB, those below "large" 64 MiB."""

    bodies: ClassVar = {b"small": memoryview(PATTERN[:SMALL]), b"large": memoryview(PATTERN)}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.text = b""

    def data_received(self, data: bytes) -> None:
        self.text += data
        while b"\r\n\r\n" in self.text:
            request, _, self.text = self.text.partition(b"\r\n\r\n")
            body = self.bodies[request.split(b"/", 3)[2]]
            found = re.search(rb"\r\nrange: bytes=(\d+)-(\d+)", request, re.IGNORECASE)
            start, stop = (int(found[1]), int(found[2]) + 1) if found else (0, len(body))
            place = f"206 OK\r\nContent-Range: bytes {start}-{stop - 1}/{len(body)}" if found else "200 OK"
            self.transport.write(f"HTTP/1.1 {place}\r\nContent-Length: {stop - start}\r\n{HEADERS}\r\n".encode())
            self.transport.write(body[start:stop])


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Serving, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the benchmark ends


# -- the clients: each opens itself and gives a way to get -------------------------------------------------------------


async def aloader_store(url: str, in_flight: int, stack: AsyncExitStack) -> Get:
    store = S3Store(
        "bucket", endpoint_url=url, region=REGION, access_key=KEYS.access, secret_key=KEYS.secret,
        max_connections=in_flight,
    )  # fmt: skip
    await stack.enter_async_context(store)

    async def get(key: str, start: int, stop: int | None) -> bytes:
        return (await store.fetch(Request(key, start, stop))).data

    return get


async def aiobotocore_client(url: str, in_flight: int, stack: AsyncExitStack) -> Get:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    config = AioConfig(max_pool_connections=in_flight, s3={"addressing_style": "path"})
    client = await stack.enter_async_context(
        get_session().create_client(
            "s3", endpoint_url=url, region_name=REGION, config=config,
            aws_access_key_id=KEYS.access, aws_secret_access_key=KEYS.secret,
        )
    )  # fmt: skip

    async def get(key: str, start: int, stop: int | None) -> bytes:
        more = {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        response = await client.get_object(Bucket="bucket", Key=key, **more)
        async with response["Body"] as body:
            data: bytes = await body.read()
        return data

    return get


async def aiohttp_session(url: str, in_flight: int, stack: AsyncExitStack) -> Get:
    import aiohttp
    from yarl import URL

    signer = Signer(url.removeprefix("http://"), REGION)
    connector = aiohttp.TCPConnector(limit=in_flight)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, auto_decompress=False))

    async def get(key: str, start: int, stop: int | None) -> bytes:
        path = f"/bucket/{key}"
        headers = dict(line.split(": ", 1) for line in signer.headers(path, KEYS, time.time()).splitlines())
        if stop is not None:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        async with session.get(URL(url + path, encoded=True), headers=headers) as response:
            return await response.read()

    return get


async def obstore_store(url: str, in_flight: int, stack: AsyncExitStack) -> Get:
    import obstore
    from obstore.store import S3Store as Rust

    store = Rust(
        "bucket", endpoint=url, region=REGION, access_key_id=KEYS.access, secret_access_key=KEYS.secret,
        client_options={"allow_http": True, "pool_max_idle_per_host": str(in_flight)},
    )  # fmt: skip

    async def get(key: str, start: int, stop: int | None) -> bytes:
        options: Any = None if stop is None else {"range": (start, stop)}
        return bytes(await (await obstore.get_async(store, key, options=options)).bytes_async())

    return get


CLIENTS = {
    "aloader": aloader_store,
    "aiobotocore": aiobotocore_client,
    "aiohttp": aiohttp_session,
    "obstore": obstore_store,
}


# -- turns -------------------------------------------------------------------------------------------------------------


class Gets:
    """One client, with so many GETs in flight. A contender of the harness: its batches are GETs."""

    def __init__(self, name: str, url: str, large: bool, fast_loop: bool) -> None:
        self.name, self.url, self.large = name, url, large
        self.in_flight = 16 if large else 64
        self.fast_loop = fast_loop
        self.number = 0

    def open(self) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if self.fast_loop else None)
        self.runner.run(self.opened())

    async def opened(self) -> None:
        self.stack = AsyncExitStack()
        self.get = await CLIENTS[self.name](self.url, self.in_flight, self.stack)

    def turn(self, seconds: float, warm_up: int) -> harness.Flow:
        return self.runner.run(self.flow(seconds, warm_up))

    async def flow(self, seconds: float, warm_up: int) -> harness.Flow:
        await asyncio.gather(*(self.one() for _ in range(max(warm_up, self.in_flight))))
        done, began, cpu = 0, time.perf_counter(), time.process_time()
        end = began + seconds

        async def work() -> None:
            nonlocal done
            while time.perf_counter() < end:
                await self.one()
                done += 1

        await asyncio.gather(*(work() for _ in range(self.in_flight)))
        took, used = time.perf_counter() - began, time.process_time() - cpu
        return harness.Flow(done, done * (RANGE if self.large else SMALL), took, used)

    async def one(self) -> None:
        self.number += 1
        if self.large:
            start = self.number * RANGE % LARGE
            data = await self.get("large/object", start, start + RANGE)
            assert len(data) == RANGE
        else:
            data = await self.get(f"small/{self.number % 1000:03}/{self.number:09}.jpeg", 0, None)
            assert len(data) == SMALL
        assert data[-1] == 255
        assert type(data) is bytes

    def close(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()


def compare(url: str, large: bool, options: argparse.Namespace) -> dict[str, list[harness.Flow]]:
    contenders: dict[str, harness.Contender] = {
        name: Gets(name, url, large, options.uvloop) for name in CLIENTS if name in options.clients
    }
    return harness.rounds(contenders, options.rounds, options.seconds, 0, harness.say)


def report(flows: dict[str, list[harness.Flow]], large: bool) -> str:
    base = flows["aiobotocore"]
    rows = []
    for name, turns in flows.items():
        cpu = harness.Spread.of([flow.cpu_per_gb if large else 1000 * flow.cpu / flow.batches for flow in turns])
        rate = harness.Spread.of([flow.byte_rate / 1e6 if large else flow.batch_rate for flow in turns])
        less = harness.Spread.of(
            [(b.cpu / b.batches) / (flow.cpu / flow.batches) for flow, b in zip(turns, base, strict=True)]
        )
        rows.append([name, f"{cpu}", f"{less}", f"{rate.median:,.0f} ({rate.low:,.0f}–{rate.high:,.0f})",
                     f"{harness.ratio(turns, base)}"])  # fmt: skip
    unit = ("CPU s per GB", "MB/s") if large else ("CPU ms per GET", "GET/s")
    return harness.table(["8 MiB ranges" if large else "64 KiB", unit[0], "times less", unit[1], "times faster"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one turn")
    parser.add_argument("--uvloop", action="store_true", help="the clients' loops (the server's is uvloop's anyway)")
    parser.add_argument("--clients", nargs="*", default=list(CLIENTS), choices=list(CLIENTS))
    parser.add_argument("--only", choices=["small", "large"])
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve())
        return
    found = {}
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        for what in ("small", "large"):
            if options.only in (None, what):
                found[what] = compare(url, what == "large", options)
                harness.quiet()
                print(report(found[what], what == "large"), end="\n\n")
        server.communicate()
    if options.json:
        facts = {"machine": harness.machine(), "uvloop": options.uvloop}
        options.json.write_text(json.dumps(facts | {what: harness.as_json(flows) for what, flows in found.items()}))


if __name__ == "__main__":
    main()
