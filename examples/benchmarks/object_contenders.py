"""Who is compared by `object_store.py`: aloader, its client alone, and four other ways to get objects out of S3.

Each gives batches of the same objects in the same order, which `Check` looks at. As a program, it is one process of the
bare client.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import harness
import torch
import uvloop

import aloader
from aloader.datasets import ObjectDataset, PackedList
from aloader.options import CONCURRENCY, WORKER_NICENESS, share_of
from aloader.sampling import ShuffledSampler
from aloader.storage import open_store
from aloader.testing import FaultServer, Synthetic

MIB = 1 << 20
THREADS = 32
BARE_WARM_UP = 0.5
EDGE = 64
PAGE = 4096

#: Of each of aloader's loaders, for small and for large objects: all contenders are open at once, and its default is a
#: quarter of the machine.
MEMORY_LIMIT = ("4GiB", "1GiB")

#: Samples of an epoch that never ends.
ENDLESS = 1 << 40

#: What each contender needs beside torch: the module, and what brings it.
NEEDS = {
    "aloader": ("aiobotocore", "aloader[s3]"),
    "aloader, hedged": ("aiobotocore", "aloader[s3]"),
    "torch + boto3": ("boto3", "boto3"),
    "torch + 32 threads": ("boto3", "boto3"),
    "litdata": ("litdata", "litdata obstore"),
    "s3torchconnector": ("s3torchconnector", "s3torchconnector"),
    "bare client": ("aiobotocore", "aloader[s3]"),
}

#: The batches that a loader may have in advance for each worker; 2 for the others.
AHEAD = {"aloader": 32, "aloader, hedged": 32}


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison."""

    latency: str
    nbytes: int
    order: str
    workers: int

    def __str__(self) -> str:
        return f"{self.latency}, {size_of(self.nbytes)}, {self.order}, {self.workers} workers"

    @property
    def batch_size(self) -> int:
        return 64 if self.nbytes < MIB else 8

    @property
    def count(self) -> int:
        """Objects: enough that none comes twice for some time."""
        return 100_000 if self.nbytes < MIB else 2_000


def size_of(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes / 1024:g} KiB"


def endless(cell: Cell) -> torch.utils.data.Sampler[int]:
    """Numbers without end; modulo the number of objects they are the order."""
    if cell.order == "shuffled":
        return ShuffledSampler(ENDLESS)
    return torch.utils.data.SequentialSampler(range(ENDLESS))


class Passes(torch.utils.data.Sampler[int]):
    """The order, for those that must be given the numbers of objects."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[int]:
        return (number % self.cell.count for number in endless(self.cell))


class Endless(Sequence[str]):
    """The keys for numbers without end."""

    def __init__(self, keys: PackedList[str]) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, number: Any) -> Any:
        return self.keys[number % len(self.keys)]


class Tensors(ObjectDataset):
    """Its transform draws nothing."""

    draws_random_numbers = False


class Check:
    """That a batch holds the next samples of the order."""

    def __init__(self, cell: Cell, objects: Synthetic) -> None:
        self._cell, self._objects, self._order = cell, objects, iter(Passes(cell))

    def __call__(self, batch: torch.Tensor, number: int) -> int:
        rows = batch.numpy()
        rows[:, ::PAGE].sum()
        for row, index in zip(rows, itertools.islice(self._order, self._cell.batch_size), strict=True):
            key = self._objects.key(index)
            edges = row[:EDGE].tobytes(), row[-EDGE:].tobytes()
            if edges != (self._objects.expected(key, 0, EDGE), self._objects.expected(key, -EDGE)):
                raise RuntimeError(f"batch {number} does not hold {key} where it should")
        return rows.nbytes


# -- contenders --------------------------------------------------------------------------------------------------------


def as_tensor(data: bytes | bytearray) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class Boto3:
    """Objects by boto3, with a client for each process, one after the other."""

    connections = 10  # its default

    def __init__(self, server: FaultServer, keys: PackedList) -> None:
        self.endpoint_url, self.bucket, self.keys = server.endpoint_url, server.bucket, keys
        self._client: tuple[int, Any] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        if self._client is None or self._client[0] != os.getpid():
            settings = Config(max_pool_connections=self.connections, s3={"addressing_style": "path"})
            made = boto3.client("s3", endpoint_url=self.endpoint_url, region_name=FaultServer.region, config=settings)
            self._client = os.getpid(), made
        return self._client[1]

    def __getitem__(self, index: int) -> torch.Tensor:
        return as_tensor(self.client().get_object(Bucket=self.bucket, Key=self.keys[index])["Body"].read())


class Boto3Threads(Boto3):
    """The same, a batch at a time in threads."""

    connections = THREADS

    def __init__(self, server: FaultServer, keys: PackedList) -> None:
        super().__init__(server, keys)
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(THREADS)
        self.client()
        return list(self._threads[1].map(self.__getitem__, indices))


def litdata(server: FaultServer, keys: PackedList, cell: Cell) -> Any:
    from litdata import StreamingRawDataset
    from litdata.raw.indexer import FileIndexer, FileMetadata
    from litdata.streaming import downloader

    # With obstore it speaks HTTPS alone, and has no argument that would change this.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    class Known(FileIndexer):
        """What is in the bucket, without asking."""

        def build_or_load_index(self, *_: Any, **__: Any) -> list[FileMetadata]:
            return [FileMetadata(f"s3://{server.bucket}/{key}", cell.nbytes) for key in keys]

    options = {"endpoint_url": server.endpoint_url, "region_name": server.region}
    place = f"s3://{server.bucket}/"
    return StreamingRawDataset(place, indexer=Known(), storage_options=options, transform=as_tensor)


def s3torchconnector(server: FaultServer, keys: PackedList) -> Any:
    from s3torchconnector import S3ClientConfig, S3MapDataset

    return S3MapDataset.from_objects(
        [f"s3://{server.bucket}/{key}" for key in keys],
        region=server.region,
        endpoint=server.endpoint_url,
        transform=lambda found: as_tensor(found.read()),
        s3client_config=S3ClientConfig(force_path_style=True),
    )


class Bare:
    """The store alone, in as many processes. They are told by a line for how many seconds, and answer by one."""

    def __init__(self, cell: Cell, server: FaultServer) -> None:
        self._cell, self._server = cell, server

    def open(self) -> None:
        command = [sys.executable, __file__, json.dumps([self._server.url(), *asdict(self._cell).values()])]
        self._processes = [
            subprocess.Popen([*command, f"{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for number in range(self._cell.workers)
        ]
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()

    def turn(self, seconds: float, warm_up: int) -> harness.Flow:
        seconds = seconds or BARE_WARM_UP
        meter = harness.Meter()
        for process in self._processes:
            print(seconds, file=process.stdin, flush=True)
        objects = sum(int(process.stdout.readline()) for process in self._processes if process.stdout is not None)
        flow = meter.done(0, objects * self._cell.nbytes)
        return harness.Flow(objects / self._cell.batch_size, flow.nbytes, seconds, flow.cpu)  # type: ignore[arg-type]

    def close(self) -> None:
        for process in self._processes:
            process.communicate("\n")  # an end alone may not come: forked workers of others hold it open


async def be_bare(url: str, cell: Cell, number: int) -> None:
    """One process of `Bare`. Each turn goes on in the order where the last one ended."""
    objects = Synthetic(cell.count, cell.nbytes)
    order = itertools.islice(iter(Passes(cell)), number, None, cell.workers)
    loop = asyncio.get_running_loop()
    done = 0

    async def ask(end: float) -> None:
        nonlocal done
        while loop.time() < end:
            if len(await store.get(objects.key(next(order)))) != cell.nbytes:
                raise RuntimeError("an object has another length")
            done += loop.time() < end

    give_way()
    async with open_store(url) as store:
        await store.get(objects.key(0))
        print(flush=True)
        while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            done, end = 0, loop.time() + float(line)
            async with asyncio.TaskGroup() as group:
                for _ in range(share_of(CONCURRENCY, cell.workers)):
                    group.create_task(ask(end))
            print(done, flush=True)


def give_way(_: int = 0) -> None:
    """What aloader's workers do, so that on a busy machine nobody has an advantage."""
    os.nice(WORKER_NICENESS)


def contenders(
    cell: Cell, server: FaultServer, objects: Synthetic, names: Iterable[str]
) -> dict[str, harness.Contender]:
    keys = PackedList(objects.key(index) for index in range(cell.count))

    def ours(place: Any, **more: Any) -> harness.Contender:
        dataset = Tensors(place, Endless(keys), transform=as_tensor)
        more |= {"sampler": endless(cell), "memory_limit": MEMORY_LIMIT[cell.nbytes >= MIB]}
        return harness.Awaiting(lambda: aloader.DataLoader(dataset, **common | more), Check(cell, objects))

    def torchs(dataset: Any) -> torch.utils.data.DataLoader[Any]:
        return torch.utils.data.DataLoader(dataset, worker_init_fn=give_way, **common)

    common: dict[str, Any] = {
        "batch_size": cell.batch_size,
        "sampler": Passes(cell),
        "num_workers": cell.workers,
        "persistent_workers": True,
    }
    made: dict[str, Callable[[], harness.Contender]] = {
        "aloader": lambda: ours(server.url()),
        "aloader, hedged": lambda: ours(open_store(server.url(), hedge=True)),
        "torch + boto3": lambda: harness.Blocking(lambda: torchs(Boto3(server, keys)), Check(cell, objects)),
        "torch + 32 threads": lambda: harness.Blocking(
            lambda: torchs(Boto3Threads(server, keys)), Check(cell, objects)
        ),
        "litdata": lambda: harness.Blocking(lambda: torchs(litdata(server, keys, cell)), Check(cell, objects)),
        "s3torchconnector": lambda: harness.Blocking(
            lambda: torchs(s3torchconnector(server, keys)), Check(cell, objects)
        ),
        "bare client": lambda: Bare(cell, server),
    }
    return {name: made[name]() for name in names}


if __name__ == "__main__":
    url, *values = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # that of aloader's workers
        runner.run(be_bare(url, Cell(*values), int(sys.argv[2])))
