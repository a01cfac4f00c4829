"""A server that scores requests and, on the same event loop, evaluates its model in the background.

    python examples/serve_and_evaluate.py                     serves on http://127.0.0.1:8000, until Ctrl-C
    python examples/serve_and_evaluate.py --measure           what the evaluation costs those who send requests

    curl -X POST localhost:8000/evaluations -H 'content-type: application/json' -d '{"variants": 50}'
    curl -N localhost:8000/evaluations/<id>/stream            a line of progress now and then; Ctrl-C cancels it

The model reads scikit-learn's scanned digits; it is trained when the server starts. An evaluation scores many distorted
variants of each: PNG files that workers decode and turn. Its loader is used where it is needed, `async with` and
`async for` in one coroutine, and whatever ends that coroutine ends the workers: the result, `DELETE`, a client who
hangs up on the stream of progress, SIGTERM or Ctrl-C in the middle. `serving_load.py` beside it sends the requests of
`--measure`; the last part of this file is what aloader is compared with there.

**Result.** One short run on 2 cores that server, two workers and the sender of 100 requests/s share (2 rounds of 2 s,
of an earlier state of this program; median and both rounds: an order of magnitude, measure for yourself). Milliseconds
to an answer:

    beside                         p50                  p99   samples/s
    nothing            3.7   (2.6–4.8)      6.2   (6.0–6.4)           -
    aloader            2.9   (2.8–3.0)     13.9  (8.6–19.1)      12,700
    torch             42     (15–70)      376     (48–703)       10,200
    torch in a thread 159     (4–314)     806    (10–1,601)      10,700
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any, Literal

import numpy as np
import torch
import uvicorn
from digits import png
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from PIL import Image
from pydantic import BaseModel, Field
from sklearn.datasets import load_digits
from torch import nn

import aloader

SIDE = 8  # pixels
MOST_AT_ONCE = 4  # evaluations: each has worker processes of its own
KEPT = 100  # results that can still be asked for
GRACE = 1  # seconds that requests have when the server is told to stop


# -- model and data ----------------------------------------------------------------------------------------------------


def trained(seed: int = 0) -> nn.Module:
    """A small network that has seen the first four fifths of the digits. Takes less than a second.

    torch's optimizers would do it better, but load its compiler: the server would start several seconds later.
    """
    torch.manual_seed(seed)
    digits = load_digits()
    count = len(digits.target) * 4 // 5
    images = torch.tensor(digits.images[:count] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[:count])
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 10))
    weights = list(model.parameters())
    for _ in range(150):
        slopes = torch.autograd.grad(nn.functional.cross_entropy(model(images), labels), weights)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                weight -= 0.5 * slope
    return model.eval()


@torch.inference_mode()
def probabilities(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images).softmax(1)


def scans() -> tuple[list[bytes], list[int]]:
    """All digits as PNG files, and what they are."""
    digits = load_digits()
    return [png(image) for image in digits.images], digits.target.tolist()


class Distorted(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Each digit `variants` times, a little turned and shifted: by its number, and so the same at every reading."""

    def __init__(self, files: list[bytes], labels: list[int], variants: int) -> None:
        self.files, self.labels, self.variants = files, labels, variants

    def __len__(self) -> int:
        return len(self.files) * self.variants

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number, draw = index // self.variants, random.Random(index)
        image = Image.open(io.BytesIO(self.files[number]))
        shift = draw.uniform(-0.5, 0.5), draw.uniform(-0.5, 0.5)
        image = image.rotate(draw.uniform(-15, 15), Image.Resampling.BILINEAR, translate=shift)
        return torch.from_numpy(np.asarray(image, dtype=np.float32) / 240), self.labels[number]


# -- evaluations -------------------------------------------------------------------------------------------------------


class Order(BaseModel):
    """What is to be evaluated."""

    variants: int = Field(10, ge=1, le=10_000)
    batch_size: int = Field(256, ge=1, le=4096)
    num_workers: int = Field(2, ge=0, le=8)
    loader: Literal["aloader", "torch", "torch in a thread"] = "aloader"


class Evaluation:
    """One evaluation: what it has counted so far, and the task that counts."""

    def __init__(self, model: nn.Module, dataset: Distorted, order: Order) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.samples = self.right = 0
        self._model, self._dataset, self._order = model, dataset, order
        self._began = time.perf_counter()
        self._seconds: float | None = None
        self.task = asyncio.create_task(self._run(), name=f"evaluation {self.id}")

    async def _run(self) -> None:
        settings = {"batch_size": self._order.batch_size, "num_workers": self._order.num_workers}
        try:
            if self._order.loader == "aloader":
                await self._evaluate(settings)
            else:
                await self._evaluate_with_torch(settings)
        finally:
            self._seconds = time.perf_counter() - self._began

    async def _evaluate(self, settings: dict[str, Any]) -> None:
        async with aloader.DataLoader(self._dataset, **settings) as loader:
            async for images, labels in loader:
                await self._score(images, labels)

    async def _score(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """A whole batch is scored in a thread: a larger model than this would hold up the requests meanwhile."""
        found = await asyncio.to_thread(probabilities, self._model, images)
        self.right += int((found.argmax(1) == labels).sum())
        self.samples += len(labels)

    async def _evaluate_with_torch(self, settings: dict[str, Any]) -> None:
        """See the end of this file."""
        flow = in_a_thread if self._order.loader == "torch in a thread" else by_plain_for
        async with aclosing(flow(torch.utils.data.DataLoader(self._dataset, **settings))) as batches:
            async for images, labels in batches:
                await self._score(images, labels)

    @property
    def state(self) -> str:
        if not self.task.done():
            return "running"
        if self.task.cancelled():
            return "cancelled"
        return "failed" if self.task.exception() else "done"

    def report(self) -> dict[str, Any]:
        seconds = time.perf_counter() - self._began if self._seconds is None else self._seconds
        return {
            "id": self.id,
            "state": self.state,
            "samples": self.samples,
            "total": len(self._dataset),
            "right": self.right,
            "accuracy": self.right / self.samples if self.samples else None,
            "seconds": round(seconds, 3),
            "error": repr(self.task.exception()) if self.state == "failed" else None,
        }

    async def progress(self) -> AsyncIterator[str]:
        """Lines of JSON until it is over. It is cancelled when nobody reads them any more."""
        try:
            while self.state == "running":
                yield json.dumps(self.report()) + "\n"
                await asyncio.wait([self.task], timeout=0.1)
            yield json.dumps(self.report()) + "\n"
        finally:
            self.task.cancel()  # does nothing to one that is over

    async def cancel(self) -> None:
        """Returns when its workers have gone, too."""
        self.task.cancel()
        await asyncio.wait([self.task])


class Evaluations:
    """All that are under way, and the last results. It owns their tasks."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._scans = scans()
        self._all: dict[str, Evaluation] = {}
        self._closed = False

    def start(self, order: Order) -> Evaluation:
        if self._closed:
            raise HTTPException(503, "the server is about to stop: ask again when it has been started")
        over = [key for key, evaluation in self._all.items() if evaluation.task.done()]
        if len(self._all) - len(over) >= MOST_AT_ONCE:
            raise HTTPException(429, f"{MOST_AT_ONCE} evaluations are under way: wait for one, or DELETE one")
        for key in over[:-KEPT]:
            del self._all[key]
        evaluation = Evaluation(self._model, Distorted(*self._scans, order.variants), order)
        self._all[evaluation.id] = evaluation
        return evaluation

    def find(self, key: str) -> Evaluation:
        if key not in self._all:
            raise HTTPException(404, f"there is no evaluation {key!r}: POST /evaluations starts one, and names it")
        return self._all[key]

    async def aclose(self) -> None:
        """Cancels what is under way. Returns when it has gone, and takes no more."""
        self._closed = True
        await asyncio.gather(*(evaluation.cancel() for evaluation in self._all.values()))


# -- the server --------------------------------------------------------------------------------------------------------


class Scan(BaseModel):
    """The pixels of one digit, row by row, from 0 (paper) to 16 (ink)."""

    pixels: list[Annotated[float, Field(ge=0, le=16)]] = Field(min_length=SIDE * SIDE, max_length=SIDE * SIDE)


class Answer(BaseModel):
    digit: int
    probability: float


def create_app() -> FastAPI:
    """For this file, and for `uvicorn --factory serve_and_evaluate:create_app --timeout-graceful-shutdown 1`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.model = await asyncio.to_thread(trained)
        app.state.evaluations = await asyncio.to_thread(Evaluations, app.state.model)
        try:
            yield
        finally:
            await app.state.evaluations.aclose()

    app = FastAPI(title="digits", lifespan=lifespan)

    @app.post("/score")
    async def score(scan: Scan) -> Answer:
        """On the loop's thread: one image takes a tenth of a millisecond, less than the way to another thread."""
        image = torch.tensor(scan.pixels).view(1, SIDE, SIDE) / 16
        found = probabilities(app.state.model, image)[0]
        return Answer(digit=int(found.argmax()), probability=float(found.max()))

    @app.post("/evaluations", status_code=202)
    async def start(order: Order) -> dict[str, Any]:
        return app.state.evaluations.start(order).report()

    @app.get("/evaluations/{key}")
    async def look(key: str) -> dict[str, Any]:
        return app.state.evaluations.find(key).report()

    @app.get("/evaluations/{key}/stream")
    async def stream(key: str) -> StreamingResponse:
        return StreamingResponse(app.state.evaluations.find(key).progress(), media_type="application/x-ndjson")

    @app.delete("/evaluations/{key}")
    async def cancel(key: str) -> dict[str, Any]:
        evaluation = app.state.evaluations.find(key)
        await evaluation.cancel()
        return evaluation.report()

    return app


class Server(uvicorn.Server):
    """Before it waits for its connections to end, it ends the evaluations whose progress is streamed on them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.config.app.state.evaluations.aclose()
        await super().shutdown(sockets)


def serve(port: int) -> None:
    """Until SIGTERM or Ctrl-C. `port` 0 takes a free one; the first line says which."""
    torch.set_num_threads(1)  # the network is small, and workers want the other cores
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it has stopped
    listening = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(create_app(), loop="uvloop", log_level="warning", timeout_graceful_shutdown=GRACE)
    Server(config).run(sockets=[listening])


# -- what it is compared with ------------------------------------------------------------------------------------------


async def by_plain_for(loader: Any) -> AsyncIterator[Any]:
    """torch's loader in a coroutine, as it is mostly done: nobody else is served while it waits for a batch."""
    for batch in loader:
        yield batch


async def in_a_thread(loader: Any) -> AsyncIterator[Any]:
    """torch's loader with care. Cancelled, it waits for the thread, which nothing can interrupt, and its batch."""
    batches = await asyncio.to_thread(iter, loader)
    while True:
        coming = asyncio.create_task(asyncio.to_thread(next, batches, None))
        try:
            batch = await asyncio.shield(coming)
        except asyncio.CancelledError:
            await coming
            raise
        if batch is None:
            return
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="for each condition in each round")
    parser.add_argument("--rate", type=int, default=100, help="requests per second")
    arguments = parser.parse_args()
    if arguments.measure:
        import serving_load

        serving_load.measure(arguments.rounds, arguments.seconds, arguments.rate)
    else:
        serve(arguments.port)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
