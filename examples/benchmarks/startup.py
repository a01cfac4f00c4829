"""How long until the first batch, in the first epoch and in the second; and what do workers cost with a large dataset?

    python examples/benchmarks/startup.py [--quick] [--rounds 5] [--json FILE]

**Method.** Each measurement is made in a fresh process that has imported torch and the loader; rounds alternate
between contenders. Times run from construction to the first batch, and from the second epoch's `iter()` to its first
batch, with new workers (no `persistent_workers`) and the dataset unchanged. Datasets: *small*, and *slow*, whose
unpickling imports a module that takes three seconds. A forked worker of torch unpickles nothing and has no such wait; a
spawned one has it in every epoch.

Then the proportional memory of all processes together, its peak while an epoch of a dataset with 1 GB of numpy is read,
with 1, 4 and 8 workers, in copies of the dataset. It is sampled from outside; what torch takes alone is taken off.

**Result.** 2 cores (x86-64), Python 3.11, torch 2.13, 2 workers, nothing else running; medians of 5 rounds.

| ms to the first batch | aloader | torch fork | torch spawn |
|---|---|---|---|
| small, first epoch | 1,177 | 38 | |
| small, second epoch | 25 | 28 | |
| slow, second epoch | 30 | | 4,340 |

A cold start is the template's import of torch, once in a loader's life; `import torch` by itself, in a fresh
interpreter, took 1,410 ms there. Copies of 1 GB in the dataset: 1.93, 1.92 and 1.83 with 1, 4 and 8 workers, the
program's own and the one that all workers share.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch

import aloader

SLOW_MODULE = "a_module_that_imports_for_a_while"
SLOW_SECONDS = 3.0
WORKERS = 2
OURS = ("aloader async", "aloader for")


class Small:
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(index))


class Slow(Small):
    """Unpickling it imports a module that is slow to import, and that this process does not have."""

    def __init__(self) -> None:
        self.needs = SLOW_MODULE  # without a state, pickle would not call `__setstate__`

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        importlib.import_module(self.needs)


class Large:
    """One array, of which each worker reads everything that it is asked for: in one epoch, together, every page."""

    ROW = 1 << 16

    def __init__(self, nbytes: int) -> None:
        self.rows = np.ones((nbytes // self.ROW, self.ROW), np.uint8)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return int(self.rows[index, ::4096].sum())


# -- one contender in a process of its own -----------------------------------------------------------------------------


def firsts_by_for(make: Any) -> dict[str, float]:
    found, began = {}, time.perf_counter()
    loader = make()
    for epoch in ("first", "second"):
        for number, _ in enumerate(loader):
            if not number:
                found[epoch] = time.perf_counter() - began
        began = time.perf_counter()
    return found


async def firsts_by_async_for(make: Any) -> dict[str, float]:
    found, began = {}, time.perf_counter()
    loader = make()
    for epoch in ("first", "second"):
        number = 0
        async for _ in loader:
            if not number:
                found[epoch] = time.perf_counter() - began
            number += 1
        began = time.perf_counter()
    await loader.aclose()
    return found


def firsts(contender: str, dataset: Any, workers: int) -> dict[str, float]:
    options: dict[str, Any] = {"batch_size": 16, "num_workers": workers}
    match contender:
        case "torch fork" | "torch spawn":
            context = contender.removeprefix("torch ")
            make = lambda: torch.utils.data.DataLoader(dataset, multiprocessing_context=context, **options)  # noqa: E731
            return firsts_by_for(make)
        case "aloader async":
            return asyncio.run(firsts_by_async_for(lambda: aloader.DataLoader(dataset, **options)))
        case "aloader for":
            return firsts_by_for(lambda: aloader.DataLoader(dataset, **options))
    raise ValueError(contender)


def be_a_probe(options: argparse.Namespace) -> None:
    sys.path.insert(0, options.folder)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    match options.dataset:
        case "small":
            dataset: Any = Small()
        case "slow":
            dataset = Slow()
        case _:
            dataset = Large(options.nbytes)
    if options.probe == "nothing":
        print(json.dumps({"sum": sum(map(dataset.__getitem__, range(len(dataset))))}), flush=True)
        return time.sleep(0.3)
    print(json.dumps(firsts(options.probe, dataset, options.workers)), flush=True)


# -- the whole ---------------------------------------------------------------------------------------------------------


def measure_firsts(options: argparse.Namespace, folder: str) -> dict[str, dict[str, list[dict[str, float]]]]:
    names = ["torch fork", *OURS]
    slow_names = [*names, "torch spawn"]
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        "small": {name: [] for name in names},
        "slow": {name: [] for name in slow_names},
    }
    for number in range(options.rounds):
        for dataset, turns in found.items():
            for name in turns:
                harness.say(f"round {number + 1} of {options.rounds}: {dataset}, {name}")
                arguments = ["--probe", name, "--dataset", dataset, "--workers", str(WORKERS), "--folder", folder]
                turns[name].append(harness.probe(__file__, arguments).said)
    harness.quiet()
    return found


def measure_memory(options: argparse.Namespace, folder: str) -> dict[str, dict[str, float]]:
    """Peak proportional memory of a dataset of `nbytes`, beyond the same without data, in copies of the data."""

    def peak(name: str, workers: int, nbytes: int) -> int:
        arguments = ["--probe", name, "--dataset", "large", "--workers", str(workers), "--folder", folder]
        return harness.probe(__file__, [*arguments, "--nbytes", str(nbytes)], watch=True).pss

    found: dict[str, dict[str, float]] = {}
    for name, counts in [("nothing", [0]), *((name, [1, 4, 8]) for name in ("torch fork", *OURS))]:
        found[name] = {}
        for workers in counts:
            harness.say(f"memory: {name}, {workers} workers")
            small = peak(name, workers, 256 * Large.ROW)
            found[name][str(workers)] = (peak(name, workers, options.nbytes) - small) / options.nbytes
    harness.quiet()
    return found


def report_firsts(found: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    rows = []
    for dataset, contenders in found.items():
        for name, turns in contenders.items():
            row = [f"{dataset}: {name}"]
            for epoch in ("first", "second"):
                spread = harness.Spread.of([turn[epoch] * 1e3 for turn in turns])
                row.append(f"{spread.median:,.0f} ({spread.low:,.0f}–{spread.high:,.0f})")
            rows.append(row)
    return harness.table(["to the first batch, ms", "first epoch", "second epoch"], rows)


def report_memory(found: dict[str, dict[str, float]]) -> str:
    counts = ["0", "1", "4", "8"]
    rows = [[name, *(f"{row[count]:.2f}" if count in row else "" for count in counts)] for name, row in found.items()]
    return harness.table(["copies of the data, by workers", *counts], rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--nbytes", type=int, help="size of the large dataset (1 GB; quick: 0.2 GB)")
    parser.add_argument("--quick", action="store_true", help="a first look, not to be quoted")
    parser.add_argument("--json", metavar="FILE")
    for hidden in ("--probe", "--dataset", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.nbytes = options.nbytes or (200_000_000 if options.quick else 1_000_000_000)
    return options


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if options.probe:
        return be_a_probe(options)
    facts = harness.machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{SLOW_MODULE}.py").write_text(f"import time\n\ntime.sleep({SLOW_SECONDS})\n")
        results: dict[str, Any] = {"machine": facts, "firsts": measure_firsts(options, folder)}
        print(report_firsts(results["firsts"]), flush=True)
        results["copies"] = measure_memory(options, folder)
        print(f"\n{report_memory(results['copies'])}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
