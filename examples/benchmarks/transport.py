"""How fast do batches get from worker processes to the consumer?

    make bench ARGS="--quick"
    python examples/benchmarks/transport.py [--rounds 7] [--seconds 1] [--case NAME …] [--workers 1 2] [--json FILE]

**Method.** Per case and number of workers, all contenders are open at once, with persistent workers, and take turns:
each flows for some seconds in each round, after a warm-up of more batches than any of them holds ready. The order
rotates; ratios are taken within a round; medians are reported, with the least and the greatest ratio. The data are
1,024 distinct samples, stamped with their number: more than caches hold where samples are large. The consumer reads
from every page of each batch and checks that it holds the samples whose turn it is. Every process has one torch thread.

- *memcpy*: one process copies the bytes of batch after batch into one warm buffer, and checks nothing.
- *inline*: one process fetches and collates into one warm buffer, and checks. Only more workers can be faster.
- *torch*: `torch.utils.data.DataLoader`, as it comes; *torch fork* beside it where that is not its default.
- *aloader async*, *aloader for*: `aloader.DataLoader` with the same arguments, by `async for` and by `for`.

CPU is that of all processes of a contender. *First* is the time from construction to the first batch in a fresh process
that has imported everything. The last columns come from another one, watched from outside while it flows: the most
proportional memory of all its processes, the most of /dev/shm, the most open descriptors of the main process.

**Result.** 2 cores (x86-64), Python 3.11, torch 2.13, 2 workers, nothing else running; medians of 5 to 7 rounds,
with the least and the greatest ratio. Trust the ratios, not the rates.

| batch | torch | `async for` | `for` |
|---|---|---|---|
| 32 ints | 1,242/s | 13,165/s = 10.7 × torch (8.1–12.5) | 12,618/s = 10.4 × (7.3–12.5) |
| 38 MB | 47/s, 1.8 GB/s | 260/s, 10.0 GB/s = 5.1 × (4.6–6.6) | 284/s = 5.1 × (4.8–6.7) |
| 154 MB | 13/s, 2.0 GB/s | 78/s, 12.0 GB/s = 5.6 × (4.9–12.2) | 80/s = 6.1 × (5.2–10.9) |
| 154 MB, each sample made | 13/s | 42/s = 3.4 × (3.1–4.1) | |

Against *inline*: 1.25 × (1.09–1.67) and 1.26 × for 38 MB, 1.83 × for 154 MB. On a busier machine, against torch:
6.1 × for uint8, 14.7 × for the dict, 2.2 × for files.

Where each sample is made, the most memory is 1,181 to 1,321 MB against torch's 823 (fork), 1.4 to 1.6 times as much;
1.1 was the goal. The template has imported torch for itself, 143 MB that a fork would share with the program; and each
worker recycles two blocks of its own, where torch frees and makes anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import Awaiting, Blocking, Contender, Flow

import aloader

#: Different samples. Stamps count up to it, and are exact in float32.
DISTINCT = 1024

#: Samples in an epoch: it never ends while we measure. Sample i is the distinct sample i % DISTINCT.
LENGTH = 1_000_000_000

#: Batches before each turn's clock starts: more than any loader has ready after it stood still (2 × 2 × 2 = 8).
WARM_UP = 12

PAGE = 4096
KEYS = [f"feature_{number:02}" for number in range(40)]


# -- what flows --------------------------------------------------------------------------------------------------------


class Numbers:
    """The smallest sample there is: its own number."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index % DISTINCT


class Images:
    """Every element of a float32 sample is its number; a uint8 sample begins with it, as an int32."""

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype == torch.float32:
            self.data = torch.arange(DISTINCT, dtype=dtype).view(-1, 1, 1, 1).expand(-1, 3, 224, 224).contiguous()
        else:
            self.data = stamped((DISTINCT, 3, 224, 224))

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index % DISTINCT]


class Made:
    """As the float32 images, but each made when it is asked for: a dataset that itself holds nothing."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 224, 224), float(index % DISTINCT))


class Features:
    """A dict of 40 small tensors; every element of a sample is its number."""

    def __init__(self) -> None:
        self.data = torch.arange(DISTINCT, dtype=torch.float32).view(-1, 1, 1).expand(-1, len(KEYS), 16).contiguous()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return dict(zip(KEYS, self.data[index % DISTINCT].unbind(), strict=True))


class Files:
    """Files of 16 KiB, read one by one as an ordinary dataset does; each begins with its number."""

    SIZE = 16 << 10

    def __init__(self, folder: str) -> None:
        self.paths = [f"{folder}/{number:04}" for number in range(DISTINCT)]

    @classmethod
    def write(cls, folder: str) -> Files:
        files = cls(folder)
        for path, content in zip(files.paths, stamped((DISTINCT, cls.SIZE)), strict=True):
            if not os.path.exists(path):
                Path(path).write_bytes(content.numpy().tobytes())
        return files

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.fromfile(self.paths[index % DISTINCT], np.uint8))


def stamped(shape: tuple[int, ...]) -> torch.Tensor:
    """uint8 samples: the number as an int32, and then bytes of number % 251."""
    data = (torch.arange(shape[0]) % 251).to(torch.uint8).view(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous()
    data.view(shape[0], -1)[:, :4] = torch.arange(shape[0], dtype=torch.int32).view(-1, 1).view(torch.uint8)
    return data


# -- cases -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    title: str
    batch_size: int
    make: Callable[[str], Any]  # the dataset; the argument is a folder for files
    check: Callable[[int], harness.Check]
    stack: bool = True  # the dataset gives tensors of one shape, to be stacked


def expected(batch_size: int) -> Callable[[int], torch.Tensor]:
    """The stamps of a batch by its number. Made once: checking must cost less than what it checks."""
    count = np.lcm(DISTINCT, batch_size) // batch_size
    stamps = [(torch.arange(batch_size) + number * batch_size) % DISTINCT for number in range(count)]
    return lambda number: stamps[number % count]


def check_numbers(batch_size: int) -> harness.Check:
    of = expected(batch_size)

    def check(batch: torch.Tensor, number: int) -> int:
        if not torch.equal(batch, of(number)):
            raise AssertionError(f"batch {number} is not what it should be: {batch}")
        return batch.nbytes

    return check


def check_floats(batch_size: int) -> harness.Check:
    of = expected(batch_size)

    def check(batch: torch.Tensor, number: int) -> int:
        pages = batch.view(batch_size, -1)[:, :: PAGE // 4]
        if not (pages == of(number).view(-1, 1)).all():
            raise AssertionError(f"batch {number} is not what it should be: {pages[:, 0]}")
        return batch.nbytes

    return check


def check_bytes(batch_size: int) -> harness.Check:
    of = expected(batch_size)

    def check(batch: torch.Tensor, number: int) -> int:
        samples, stamps = batch.view(batch_size, -1), of(number)
        heads = samples[:, :4].contiguous().view(torch.int32).view(-1)
        pages = samples[:, PAGE - 1 :: PAGE]
        if not torch.equal(heads, stamps.int()) or not (pages == (stamps % 251).view(-1, 1)).all():
            raise AssertionError(f"batch {number} is not what it should be: {heads}")
        return batch.nbytes

    return check


def check_features(batch_size: int) -> harness.Check:
    of = expected(batch_size)

    def check(batch: dict[str, torch.Tensor], number: int) -> int:
        leaves = torch.stack(list(batch.values()))
        if list(batch) != KEYS or not (leaves == of(number).view(1, -1, 1)).all():
            raise AssertionError(f"batch {number} is not what it should be")
        return leaves.nbytes

    return check


CASES = {
    "tiny": Case("32 ints", 32, lambda _: Numbers(), check_numbers, stack=False),
    "float64": Case("64×3×224×224 float32, 38 MB", 64, lambda _: Images(torch.float32), check_floats),
    "float256": Case("256×3×224×224 float32, 154 MB", 256, lambda _: Images(torch.float32), check_floats),
    "made256": Case("256×3×224×224 float32, 154 MB, each sample made", 256, lambda _: Made(), check_floats),
    "uint8": Case("64×3×224×224 uint8, 9.6 MB", 64, lambda _: Images(torch.uint8), check_bytes),
    "dict": Case("32 × a dict of 40 tensors of 16 float32", 32, lambda _: Features(), check_features, stack=False),
    "files": Case("64 files of 16 KiB, 1 MB", 64, lambda folder: Files.write(folder), check_bytes),
}

#: Only by name: what memory large batches take, without the dataset's own.
BESIDE = {"made256"}


# -- contenders --------------------------------------------------------------------------------------------------------


class Memcpy:
    """The bytes of one batch after the other into one warm buffer."""

    def __init__(self, data: torch.Tensor, batch_size: int) -> None:
        self._parts = data.split(batch_size)

    def open(self) -> None:
        self._buffer = self._parts[0].clone()

    def turn(self, seconds: float, warm_up: int) -> Flow:
        for number in range(warm_up):
            self._buffer.copy_(self._parts[number % len(self._parts)])
        meter, batches = harness.Meter(), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not batches:
            self._buffer.copy_(self._parts[batches % len(self._parts)])
            batches += 1
        return meter.done(batches, batches * self._buffer.nbytes)

    def close(self) -> None:
        del self._buffer


def inline(dataset: Any, case: Case) -> Iterator[Any]:
    """Fetches and collates in this process, into a buffer that is warm from the second batch on."""
    warm, number = None, 0
    while True:
        samples = [dataset[index] for index in range(number, number + case.batch_size)]
        number += case.batch_size
        if not case.stack:
            yield torch.utils.data.default_collate(samples)
        elif warm is None:
            yield (warm := torch.stack(samples))
        else:
            yield torch.stack(samples, out=warm)


def loader_contenders(case: Case, dataset: Any, workers: int) -> dict[str, Contender]:
    check = case.check(case.batch_size)
    options: dict[str, Any] = {"batch_size": case.batch_size, "num_workers": workers, "persistent_workers": True}
    found: dict[str, Contender] = {
        "torch": Blocking(lambda: torch.utils.data.DataLoader(dataset, **options), check),
    }
    if torch.multiprocessing.get_start_method() != "fork":
        options_fork = options | {"multiprocessing_context": "fork"}
        found["torch fork"] = Blocking(lambda: torch.utils.data.DataLoader(dataset, **options_fork), check)
    found["aloader async"] = Awaiting(lambda: aloader.DataLoader(dataset, **options), check)
    found["aloader for"] = Blocking(lambda: aloader.DataLoader(dataset, **options), check)
    return found


def contenders(case: Case, dataset: Any, workers: int) -> dict[str, Contender]:
    found: dict[str, Contender] = {}
    if isinstance(dataset, Images):
        found["memcpy"] = Memcpy(dataset.data, case.batch_size)
    found["inline"] = Blocking(lambda: inline(dataset, case), case.check(case.batch_size))
    return found | loader_contenders(case, dataset, workers)


# -- in a process of its own -------------------------------------------------------------------------------------------


def be_a_probe(options: argparse.Namespace) -> None:
    """Construction to first batch, and then a flow for `--seconds`, if any."""
    case = CASES[options.case[0]]
    dataset = case.make(options.folder)
    contender = loader_contenders(case, dataset, options.workers[0])[options.probe]
    began = time.perf_counter()
    contender.open()
    contender.turn(0, 0)
    print(json.dumps({"first_batch": time.perf_counter() - began}), flush=True)
    if options.seconds:
        contender.turn(options.seconds, WARM_UP)
    contender.close()


@dataclass(frozen=True)
class Costs:
    """What starting takes, and what is held while it flows."""

    first_batch: float
    peak_pss: int
    peak_shm: int
    peak_descriptors: int


def costs(name: str, case: str, workers: int, options: argparse.Namespace, folder: str) -> Costs:
    arguments = ["--probe", name, "--case", case, "--workers", str(workers), "--folder", folder, "--seconds"]
    times = 1 if options.quick else 3
    firsts = [harness.probe(__file__, [*arguments, "0"]).said["first_batch"] for _ in range(times)]
    peaks = harness.probe(__file__, [*arguments, str(options.seconds)], watch=True)
    return Costs(harness.median(firsts), peaks.pss, peaks.shm, peaks.descriptors)


# -- the whole ---------------------------------------------------------------------------------------------------------


def measure(name: str, workers: int, options: argparse.Namespace, folder: str) -> dict[str, Any]:
    case = CASES[name]
    dataset = case.make(folder)
    where = f"{name}, {workers} worker{'s' * (workers > 1)}"
    field = contenders(case, dataset, workers)
    loaders = [each for each in field if each not in ("memcpy", "inline")]
    flows = harness.rounds(
        field, options.rounds, options.seconds, WARM_UP, lambda text: harness.say(f"{where}: {text}")
    )
    del field, dataset
    found = {}
    if not options.no_costs:
        for each in loaders:
            harness.say(f"{where}: what {each} costs")
            found[each] = costs(each, name, workers, options, folder)
    harness.quiet()
    print(f"\n{case.title}; {workers} worker{'s' * (workers > 1)}")
    print(report(flows, found), flush=True)
    return {"flows": harness.as_json(flows), "costs": {each: vars(cost) for each, cost in found.items()}}


HEAD = [
    "", "batches/s", "GB/s", "÷ torch", "÷ inline", "CPU ms/batch", "CPU s/GB",
    "first, ms", "PSS, MB", "/dev/shm, MB", "descriptors",
]  # fmt: skip


def report(flows: dict[str, list[Flow]], found: dict[str, Costs]) -> str:
    rows = []
    for name, turns in flows.items():
        row = [
            name,
            f"{harness.median(turn.batch_rate for turn in turns):,.0f}",
            f"{harness.median(turn.byte_rate for turn in turns) / 1e9:.3f}",
            str(harness.ratio(turns, flows["torch"])),
            str(harness.ratio(turns, flows["inline"])),
            f"{harness.median(turn.cpu / turn.batches for turn in turns) * 1e3:.2f}",
            f"{harness.median(turn.cpu_per_gb for turn in turns):.2f}",
        ]
        if cost := found.get(name):
            row += [
                f"{cost.first_batch * 1e3:,.0f}",
                f"{cost.peak_pss / 1e6:,.0f}",
                f"{cost.peak_shm / 1e6:,.1f}",
                f"{cost.peak_descriptors}",
            ]
        rows.append(row + [""] * (len(HEAD) - len(row)))
    return harness.table(HEAD, rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, help="turns of each contender (7; quick: 3)")
    parser.add_argument("--seconds", type=float, help="length of a turn (1; quick: 0.3)")
    parser.add_argument("--quick", action="store_true", help="a first look, not to be quoted")
    parser.add_argument("--case", nargs="+", choices=CASES, default=[name for name in CASES if name not in BESIDE])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--no-costs", action="store_true", help="rates only: nothing in processes of its own")
    parser.add_argument("--json", metavar="FILE", help="every figure of every round")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 3 if options.quick else 7
    if options.seconds is None:
        options.seconds = 0.3 if options.quick else 1.0
    return options


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if options.probe:
        return be_a_probe(options)
    facts = harness.machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{options.rounds} rounds of {options.seconds} s; medians; ratios within a round: median (least–greatest)")
    results: dict[str, Any] = {"machine": facts, "rounds": options.rounds, "seconds": options.seconds, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.case:
            for workers in options.workers:
                results["cases"][f"{name}-{workers}"] = measure(name, workers, options, folder)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
