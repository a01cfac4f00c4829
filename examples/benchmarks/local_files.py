"""What does it cost to read local files through an async dataset, against `open(path, "rb").read()`?

    python examples/benchmarks/local_files.py [--sizes 16KiB,128KiB,1MiB,4MiB] [--rounds 7] [--seconds 0.8]
                                              [--counted] [--folder FOLDER] [--quick] [--json FILE]

**Method.** Files of one size, written once and so in the page cache, each read again and again in batches. Contenders
are open at the same time and take turns (`harness`); ratios are taken within a round, then their median: of files per
second, and of files per second of CPU time, which other work on the machine disturbs less. One worker:

- *async*: `aloader.datasets.ObjectDataset` over `LocalStore`, in a worker of aloader;
- *plain*: a dataset whose `__getitem__` is `open(path, "rb").read()`, in a worker of aloader;
- *torch*: the same, in a worker of torch's loader;
- *store*: `LocalStore.get`, as many at once as a batch has, in this process and without a loader;
- *read*: `open(path, "rb").read()`, one after the other, in this process.

Batches are lists of bytes, which are delivered; with `--counted` the worker looks at them and returns
a number, so that reading is all there is. Every sample is checked: its length, and the number of its file.

**Result.** 2 cores (x86-64), ext4, Python 3.11, torch 2.13, otherwise quiet: 5 rounds of 0.4 s, `--counted`; medians
of the rounds' ratios, and their spread.

| | async / plain | async / torch | store / read |
|---|---|---|---|
| 16 KiB | 0.90 (0.84–0.99) | 1.04 (0.93–1.21) | 0.57 (0.48–0.61) |
| 128 KiB | 1.00 (0.86–1.03) | 3.99 (3.40–4.67) | 0.88 (0.82–1.03) |
| 1 MiB | 1.13 (1.05–1.44) | 5.96 (5.72–11.03) | 1.30 (1.21–1.68) |
| 4 MiB | 1.70 (1.38–1.95) | 8.88 (8.07–9.51) | 1.53 (1.50–1.59) |

Two things count. *Whether memory is new*: 128 KiB take 77 µs into new pages and 15 µs into used ones, 4 MiB 2.1 ms and
0.37 ms. aloader's workers keep the memory that they have freed; torch's give it back to the system each time.
*Whether a thread is needed*: a file that lies in memory is read where its sample is asked for. A hop into a thread and
a task for each sample make 16 KiB cost twice as much, which is what `LocalStore.get` by itself does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import torch

import aloader
from aloader.datasets import ObjectDataset
from aloader.options import KIB, MIB, parse_bytes
from aloader.storage import LocalStore

SIZES = (16 * KIB, 128 * KIB, MIB, 4 * MIB)

#: A set of files, and what a batch holds: so that neither grows with the files.
SET_BYTES = 256 * MIB
MOST_FILES = 2000
BATCH_BYTES = 32 * MIB
MOST_SAMPLES = 64

#: Whom to compare with whom.
PAIRS = (("async", "plain"), ("async", "torch"), ("store", "read"))

#: Samples of an epoch that nobody reaches the end of.
ENDLESS = 10_000_000


class Names(Sequence[str]):
    """The names of the files, over and over."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: Any) -> Any:
        if index >= ENDLESS:
            raise IndexError(index)
        return f"{index % self.count:06}.bin"


class Plain:
    """What a user writes."""

    def __init__(self, folder: str, names: Names) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> bytes:
        with open(f"{self.folder}/{self.names[index]}", "rb") as file:
            return file.read()


class Counted:
    """Collates to one number: bytes, if all samples are what they should be."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, samples: list[bytes]) -> int:
        return look(samples, self.size)


def look(samples: Sequence[bytes], size: int) -> int:
    first = int.from_bytes(samples[0][:8], "little")
    for sample in samples:
        assert len(sample) == size
        assert sample[-1] == sample[0]
    assert first < MOST_FILES
    return size * len(samples)


class Bare:
    """Reads without a loader; `read` takes the numbers of a batch and returns its samples."""

    def __init__(self, folder: str, names: Names, batch_size: int, size: int) -> None:
        self.folder, self.names, self.batch_size, self.size = folder, names, batch_size, size
        self.at = 0

    def open(self) -> None: ...

    def close(self) -> None: ...

    def keys(self) -> list[str]:
        self.at += self.batch_size
        return [self.names[number] for number in range(self.at - self.batch_size, self.at)]

    def turn(self, seconds: float, warm_up: int) -> harness.Flow:
        for _ in range(warm_up):
            self.batch()
        meter, batches, nbytes = harness.Meter(), 0, 0
        end = time.perf_counter() + seconds
        while not batches or time.perf_counter() < end:
            nbytes += self.batch()
            batches += 1
        return meter.done(batches, nbytes)

    def batch(self) -> int:
        samples = []
        for key in self.keys():
            with open(f"{self.folder}/{key}", "rb") as file:
                samples.append(file.read())
        return look(samples, self.size)


class BareStore(Bare):
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.store = LocalStore(self.folder)
        self.runner.run(self.store.__aenter__())

    def close(self) -> None:
        self.runner.run(self.store.__aexit__(None, None, None))
        self.runner.close()

    def batch(self) -> int:
        async def read() -> int:
            return look(await asyncio.gather(*map(self.store.get, self.keys())), self.size)

        return self.runner.run(read())  # not the samples: the runner would put its task into words, with its result


def contenders(folder: str, size: int, counted: bool) -> dict[str, harness.Contender]:
    names = Names(files_of(size))
    batch_size = min(MOST_SAMPLES, BATCH_BYTES // size)
    collate: Any = Counted(size) if counted else list

    def check(batch: Any, number: int) -> int:
        return int(batch) if counted else look(batch, size)

    def loader(dataset: Any) -> Any:
        return aloader.DataLoader(dataset, batch_size=batch_size, num_workers=1, collate_fn=collate)

    def torch_loader() -> Any:
        return torch.utils.data.DataLoader(Plain(folder, names), batch_size, num_workers=1, collate_fn=collate)

    return {  # torch forks when it is opened: before there are threads here that start processes too
        "torch": harness.Blocking(torch_loader, check),
        "async": harness.Awaiting(lambda: loader(ObjectDataset(LocalStore(folder), names)), check),
        "plain": harness.Awaiting(lambda: loader(Plain(folder, names)), check),
        "store": BareStore(folder, names, batch_size, size),
        "read": Bare(folder, names, batch_size, size),
    }


def saved(flows: list[harness.Flow], base: list[harness.Flow]) -> harness.Spread:
    """How many times more files come out of a second of CPU time, paired by round."""
    pairs = zip(flows, base, strict=True)
    return harness.Spread.of([theirs.cpu_per_gb / mine.cpu_per_gb for mine, theirs in pairs if mine.cpu])


def files_of(size: int) -> int:
    return min(MOST_FILES, SET_BYTES // size)


def write(folder: Path, size: int) -> None:
    """Files that begin with their number, and end as they begin."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files_of(size)):
        head = number.to_bytes(8, "little")
        (folder / f"{number:06}.bin").write_bytes(head + bytes(size - 9) + head[:1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--counted", action="store_true")
    parser.add_argument("--folder", help="where to put the files (a temporary folder, unless given)")
    parser.add_argument("--quick", action="store_true", help="less of everything: does it work?")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    sizes = [parse_bytes(size, "--sizes") for size in options.sizes.split(",")]
    rounds, seconds = (2, 0.1) if options.quick else (options.rounds, options.seconds)
    found: dict[str, Any] = {"machine": harness.machine()}
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            write(Path(folder), size)
            made = contenders(folder, size, options.counted)
            flows = harness.rounds(made, rounds, seconds, 4, harness.say)
        found[str(size)] = harness.as_json(flows)
        rates = [f"{harness.median(flow.byte_rate / size for flow in flows[name]):,.0f}" for name in made]
        ratios = [str(harness.ratio(flows[a], flows[b])) for a, b in PAIRS]
        costs = [str(saved(flows[a], flows[b])) for a, b in PAIRS]
        rows.append([f"{size >> 10} KiB", *rates, *ratios, *costs])
    harness.quiet()
    pairs = [f"{a} / {b}" for a, b in PAIRS]
    head = ["files/s", *contenders("", SIZES[0], False), *pairs, *(f"CPU: {pair}" for pair in pairs)]
    print(harness.table(head, rows))
    if options.json:
        Path(options.json).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
