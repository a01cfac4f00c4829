"""The stage for `quickstart.py`: digits as PNG objects, a server that counts, and what aloader is compared with."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import numpy as np
import torch
from PIL import Image

from aloader.errors import StoreNotFound
from aloader.storage import LocalStore, S3Store, Store, open_store
from aloader.storage.wrappers.wrapper import innermost
from aloader.testing.s3server import S3Server, Served

BUCKET = "demo-bucket"
FOLDER = "digits"


# -- objects -----------------------------------------------------------------------------------------------------------


def png(pixels: np.ndarray) -> bytes:
    """8 × 8 pixels with values from 0 to 16, as the scanner left them, in a grey PNG file."""
    file = io.BytesIO()
    Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


async def write_digits(store: Store) -> int:
    """`<label>/<number>.png` for each of scikit-learn's 1,797 digits, if it is empty; how many were written."""
    async with store:
        try:
            async for _ in store.list():
                return 0
        except StoreNotFound:
            if not isinstance(store, LocalStore):  # a folder is made by the first write; a bucket is yours to make
                raise
        from sklearn.datasets import load_digits  # here: a second, for who writes them and nobody else

        digits = load_digits()
        room = asyncio.Semaphore(64)

        async def write(number: int) -> None:
            async with room:
                await store.put(f"{digits.target[number]}/{number:04}.png", png(digits.images[number]))

        async with asyncio.TaskGroup() as tasks:
            for number in range(len(digits.target)):
                tasks.create_task(write(number))
        return len(digits.target)


@asynccontextmanager
async def digits_url(url: str | None) -> AsyncIterator[tuple[str, S3Server | None]]:
    """Where the digits are, and the server that has them: one that is started for the purpose, or None with a URL."""
    if url is not None:
        yield url, None
        return
    async with S3Server() as server:
        await asyncio.to_thread(server.create_bucket, BUCKET)
        os.environ.update(server.environment())  # credentials reach the workers as they do any AWS program
        yield server.url(BUCKET, FOLDER), server


# -- the server's own counts -------------------------------------------------------------------------------------------


class Watch:
    """What the server says that it was asked for during an `async with` block: not what the loader says of itself."""

    gets = 0
    most_in_flight = 0  # as often as it is asked, about twenty times a second

    def __init__(self, server: S3Server | None) -> None:
        self.server = server

    async def __aenter__(self) -> Self:
        self.most_in_flight = 0
        if self.server is not None:
            self._before = (await self.settled()).gets
            self._looking = asyncio.create_task(self._look(self.server))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.server is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
            self.gets = (await self.settled()).gets - self._before

    async def settled(self) -> Served:
        """Its counts, as soon as they have stopped rising: two looks alike, with nothing in flight."""
        assert self.server is not None
        last = None
        while (now := await asyncio.to_thread(self.server.served)) != last or now.gets_in_flight:
            last = now
            await asyncio.sleep(0.1)
        return now

    async def _look(self, server: S3Server) -> None:
        while True:
            served = await asyncio.to_thread(server.served)
            self.most_in_flight = max(self.most_in_flight, served.gets_in_flight)
            await asyncio.sleep(0.05)


# -- what one would write without aloader ------------------------------------------------------------------------------


class PlainImages(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The same images for `torch.utils.data.DataLoader`: one synchronous read after the other, in each worker."""

    def __init__(self, url: str, samples: list[tuple[str, int]], transform: Callable[[Any], torch.Tensor]) -> None:
        self.store, self.samples, self.transform = open_store(url), samples, transform
        self.read: Callable[[str], bytes] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.read is None:  # in the worker: a client must not be made before the fork
            self.read = reader(self.store)
        key, label = self.samples[index]
        return self.transform(Image.open(io.BytesIO(self.read(key))).convert("RGB")), label


def reader(store: Any) -> Callable[[str], bytes]:
    """Reads objects as one would without asyncio."""
    store = innermost(store)
    if not isinstance(store, S3Store):
        return lambda key: (store.root / key).read_bytes()
    from botocore.config import Config
    from botocore.session import get_session

    client = get_session().create_client(
        "s3",
        endpoint_url=store.endpoint_url,
        region_name=store.region,
        config=Config(s3={"addressing_style": "path" if store.endpoint_url else "auto"}),
    )
    folder = f"{store.prefix}/" if store.prefix else ""

    def read(key: str) -> bytes:
        data: bytes = client.get_object(Bucket=store.bucket, Key=folder + key)["Body"].read()
        return data

    return read


# -- distance ----------------------------------------------------------------------------------------------------------


class Relay:
    """The server as it would be from far away: a port of this machine whose answers come `delay` seconds late.

    In a thread of its own: `with Relay(url, 0.03) as far_url:`. Requests are passed on at once, and every piece of an
    answer after the same time, so that any number of them can be on their way together.
    """

    def __init__(self, endpoint_url: str, delay: float) -> None:
        self._target = int(endpoint_url.rpartition(":")[2])
        self._delay = delay
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay")

    def __enter__(self) -> str:
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.close()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._open |= {writer, far_writer}
        await asyncio.gather(
            self._pass_on(reader, far_writer.write, far_writer.close),
            self._pass_on(far_reader, self._late(writer.write), self._late(writer.close)),
        )
        await asyncio.sleep(self._delay)  # what is late has still to be written
        for each in (far_writer, writer):
            each.close()
            await asyncio.gather(each.wait_closed(), return_exceptions=True)
        self._open -= {writer, far_writer}

    async def _pass_on(
        self, reader: asyncio.StreamReader, write: Callable[..., Any], close: Callable[..., Any]
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                write(data)
        except ConnectionError:
            pass
        close()

    def _late(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: self._loop.call_later(self._delay, call, *arguments)
