"""Scanned digits, from a real S3 server on this machine, over asyncio, into a small convolutional network.

    make demo                                        about a minute on two cores
    python examples/quickstart.py --store file:///tmp/digits
    python examples/quickstart.py --store "s3://your-bucket/digits"

Starts SeaweedFS, writes 1,797 PNG objects, trains on four fifths of them and tests on the rest; shows what the server
says it was asked for; loads the same objects with torch's loader and a synchronous client. Exit status 1 if the network
reads less than 95 % of the test images. `digits.py` beside it sets the stage; what you would write yourself is here.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from digits import PlainImages, Relay, Watch, digits_url, write_digits
from torch import nn
from torch.utils.data import Subset, random_split
from tqdm import tqdm

from aloader import DataLoader, LoaderStats, StorageError
from aloader.datasets import ImageFolder
from aloader.storage import open_store

BATCH_SIZE = 64
GOOD_ENOUGH = 0.95
FAR_AWAY = 0.03  # seconds: the median time to the first byte of S3


def to_tensor(image: Any) -> torch.Tensor:
    """A PIL image to a float tensor of shape (1, 8, 8), values from 0 to 1."""
    return torch.from_numpy(np.asarray(image.convert("L"), dtype=np.float32) / 255)[None]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 4 * 4, 10),
    )  # fmt: skip


async def train(loader: DataLoader[Any], model: nn.Module, epochs: int, watch: Watch) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with tqdm(total=epochs * len(loader), unit=" batches", disable=None, leave=False) as bar:
        bar.write(" epoch   loss   images/s   waited for data   GETs at the server   in flight, at most", sys.stdout)
        for epoch in range(1, epochs + 1):
            losses, began = [], time.perf_counter()
            async with watch:
                async for images, labels in loader:
                    loss = nn.functional.cross_entropy(model(images), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                    bar.update()
                rate = len(losses) * BATCH_SIZE / (time.perf_counter() - began)
            waited = loader.stats().wait_share
            counts = f"{watch.gets:20,} {watch.most_in_flight:20}" if watch.server else f"{'-':>20} {'-':>20}"
            bar.write(f"{epoch:6} {np.mean(losses):6.3f} {rate:10,.0f} {waited:17.0%} {counts}", sys.stdout)


async def accuracy(loader: DataLoader[Any], model: nn.Module) -> float:
    model.eval()
    right = [model(images).argmax(1) == labels async for images, labels in loader]
    return float(torch.cat(right).float().mean())


async def look_ahead(loader: DataLoader[Any], watch: Watch) -> None:
    """Takes one batch, waits until the loader has fetched all that it means to, and looks how much that is."""
    async with watch:
        async for _ in loader:
            await watch.settled()
            ready = loader.stats().batches_ready
            break
    say("look-ahead", f"one batch of {BATCH_SIZE} taken, of {len(loader)}: {ready} more lie ready, and the server has")
    say("", f"answered {watch.gets:,} GETs and rests: nothing beyond the window is fetched early")


async def compare(url: str, workers: int, count: int) -> LoaderStats:
    """Loading alone, by turns: a first round that starts the workers, and one that counts."""
    images = await asyncio.to_thread(ImageFolder, url, to_tensor)
    chosen = torch.randperm(len(images))[:count].tolist()
    plain = Subset(PlainImages(url, images.samples, to_tensor), chosen)
    settings: Any = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": workers, "persistent_workers": True}
    theirs: Any = torch.utils.data.DataLoader(plain, multiprocessing_context="fork", **settings)
    async with DataLoader(Subset(images, chosen), **settings) as ours:
        for _ in range(2):
            began = time.perf_counter()
            async for _ in ours:
                pass
            between = time.perf_counter()
            for _ in theirs:
                pass
            fast, slow = between - began, time.perf_counter() - between
        stats = ours.stats()
    theirs_reads = "synchronous client" if url.startswith("s3:") else "open().read()"
    say("", f"{'aloader, asyncio':26} {count / fast:8,.0f} images/s   {slow / fast:.1f} × torch's")
    say("", f"{f'torch, {theirs_reads}':26} {count / slow:8,.0f} images/s")
    return stats


def say(label: str, text: str) -> None:
    for number, line in enumerate(text.splitlines()):
        print(f" {'' if number else label:<11} {line}", flush=True)


async def demonstrate(place: str | None, epochs: int, workers: int) -> float:
    began = time.perf_counter()
    print("\naloader: scanned digits out of an object store, through asyncio, into a network\n", flush=True)
    async with digits_url(place) as (url, server):
        ready = time.perf_counter()
        say("store", f"{server.endpoint_url} (SeaweedFS, started in {ready - began:.1f} s)" if server else url)
        if written := await write_digits(open_store(url)):
            say("", f"{written:,} PNG objects written in {time.perf_counter() - ready:.1f} s")

        images = await asyncio.to_thread(ImageFolder, url, to_tensor)
        training, test = random_split(images, [0.8, 0.2], torch.Generator().manual_seed(0))
        say("dataset", f"{len(images):,} images in {len(images.classes)} classes: {len(training):,} to train on")

        model, watch = network(), Watch(server)
        loader = DataLoader(training, batch_size=BATCH_SIZE, shuffle=True, num_workers=workers, persistent_workers=True)
        async with loader:
            if server:
                await look_ahead(loader, watch)
            print(flush=True)
            await train(loader, model, epochs, watch)
        async with DataLoader(test, batch_size=BATCH_SIZE) as loader:  # no workers: fetched on this very loop
            reached = await accuracy(loader, model)
        print()
        say("test", f"{reached:.1%} of {len(test)} other images are read correctly")
        print()

        close_by = "; so close by, the clients' CPU is the bound" if server else ""
        say("loading", f"{len(images):,} images, {workers} workers, nothing else going on{close_by}:")
        stats = await compare(url, workers, len(images))
        if server:
            with Relay(server.endpoint_url, FAR_AWAY) as far:
                say("", f"256 images, if the server were as far away as S3 is, {FAR_AWAY * 1000:.0f} ms:")
                await compare(url.replace(server.endpoint_url, far), workers, 256)
        print()
        say("stats", f"what aloader's loader says of its last whole epoch:\n{stats}")
    print(f"\n{time.perf_counter() - began:.0f} s in all\n", flush=True)
    return reached


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a URL or folder instead of a server; digits are written there if it is empty")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is small, and workers and server want the other cores
    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # torch's workers are forked from this process
    try:
        reached = asyncio.run(demonstrate(arguments.store, arguments.epochs, arguments.workers))
    except KeyboardInterrupt:
        sys.exit(130)
    except StorageError as error:
        sys.exit(f"quickstart: {error}")
    if reached < GOOD_ENOUGH:
        sys.exit(f"the network reads less than {GOOD_ENOUGH:.0%} of the test images")
