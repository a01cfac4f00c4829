"""What does a list of ten million paths cost in every worker that reads it, and what does a `PackedList`?

    python examples/benchmarks/packed_list.py [--n 10_000_000] [--workers 2] [--quick] [--json FILE]

**Method.** Each contender is a fresh process with a dataset that holds `n` paths, and a loader with persistent workers
over it. In one epoch the workers together read every path once, in random order. Each worker is held before its first
sample until all of them are there; then, and again after the epoch's last batch, the memory of every process is read
from `/proc/<pid>/smaps_rollup`, from outside.

*By PSS* a worker is charged its share of every page that it has mapped: of a forked list from the beginning, of a
memfd only as it reads it. So the PSS of aloader's workers rises by their shares of the one copy that was there before.
*New memory* is what did not exist before the epoch: the PSS of all processes without shared memory, plus the whole of
their memfds, less the same before, per worker. That is to be less than 5 % of the list.

**Result.** 2 cores (x86-64), Python 3.11, torch 2.13, 2 workers; 10 million paths, which take 949 MB as a list and
419 MB as a `PackedList`. On a machine with other work, so that the times say nothing.

| per worker | PSS before, MB | after | new memory, MB | of the list |
|---|---|---|---|---|
| plain list, torch fork | 419 | 1,064 | 965 | 102 % |
| plain list, aloader | 392 | 1,056 | 964 | 102 % |
| `PackedList`, torch fork | 212 | 216 | −2 | −0.2 % |
| `PackedList`, aloader | 45 | 276 | 2 | 0.2 % |

Reading a list makes a copy of it in every worker, whoever has started it; reading a `PackedList` makes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch

import aloader
from aloader.datasets import PackedList

CONTENDERS = {
    "plain list, torch fork": (list, "torch"),
    "plain list, aloader": (list, "aloader"),
    "PackedList, torch fork": (PackedList, "torch"),
    "PackedList, aloader": (PackedList, "aloader"),
}
READ_AT_ONCE = 5_000


def paths(n: int) -> Iterator[str]:
    return (f"train/n{k % 1000:08d}/n{k % 1000:08d}_{k}.JPEG" for k in range(n))


class Paths:
    """Sample i is the length of `READ_AT_ONCE` paths together. A worker's first waits for the word to go."""

    def __init__(self, items: Any, folder: str) -> None:
        self.items, self.folder, self.waited = items, Path(folder), False
        self.order = np.random.default_rng(0).permutation(len(items)).astype(np.int32)

    def __len__(self) -> int:
        return -(-len(self.items) // READ_AT_ONCE)

    def __getitem__(self, index: int) -> int:
        if not self.waited:
            (self.folder / f"worker {os.getpid()}").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.01)
            self.waited = True
        some = self.order[index * READ_AT_ONCE : (index + 1) * READ_AT_ONCE].tolist()
        return sum(len(self.items[place]) for place in some)


# -- one contender, in a process of its own ----------------------------------------------------------------------------


def be_a_probe(options: argparse.Namespace) -> None:
    kind, whose = CONTENDERS[options.probe]
    warnings.filterwarnings("ignore")  # that a list is slow to pickle is what is measured
    began = time.perf_counter()
    dataset = Paths(kind(paths(options.n)), options.folder)
    made = time.perf_counter() - began
    kinds: dict[str, Any] = {"torch": torch.utils.data.DataLoader, "aloader": aloader.DataLoader}
    loader = kinds[whose](dataset, batch_size=4, num_workers=options.workers, persistent_workers=True)
    began = time.perf_counter()
    total = sum(int(batch.sum()) for batch in loader)
    facts = {"made": made, "epoch": time.perf_counter() - began, "characters": total}
    print(json.dumps(facts | {"in_list": sum(map(len, paths(options.n)))}), flush=True)
    sys.stdin.readline()


# -- memory, seen from outside -----------------------------------------------------------------------------------------


def rollup(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}


def memfd_bytes(pids: list[int]) -> int:
    """What all memfds take that any of the processes has open, mapped or not."""
    found: dict[int, int] = {}
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if os.readlink(fd).startswith("/memfd:"):
                    stat = os.stat(fd)
                    found[stat.st_ino] = stat.st_blocks * 512
            except OSError:
                pass  # closed meanwhile
    return sum(found.values())


def look(pid: int, workers: list[int]) -> dict[str, float]:
    """Bytes: a worker's PSS (the mean of them), and the memory of all processes together."""
    pids = harness.family(pid)
    all_of_them = [rollup(each) for each in pids]
    return {
        "worker": sum(rollup(each)["Pss"] for each in workers) / len(workers),
        "all": sum(r["Pss"] - r["Pss_Shmem"] for r in all_of_them) + memfd_bytes(pids),
    }


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--probe", name, "--folder", folder]
        command += ["--n", str(options.n), "--workers", str(options.workers)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while len(there := list(Path(folder).glob("worker *"))) < options.workers and process.poll() is None:
                time.sleep(0.05)
            workers = [int(path.name.split()[1]) for path in there]
            before = look(process.pid, workers)
            (Path(folder) / "go").touch()
            said = json.loads(process.stdout.readline())
            after = look(process.pid, workers)
            process.communicate("done\n")
    if said["characters"] != said["in_list"]:
        raise RuntimeError(f"{name} read {said['characters']} characters of {said['in_list']}")
    return {"before": before, "after": after, **said}


def list_bytes(n: int) -> int:
    """What a plain list of the paths takes."""
    return sum(map(sys.getsizeof, paths(n))) + 8 * n


# -- the whole ---------------------------------------------------------------------------------------------------------


def report(found: dict[str, dict[str, Any]], size: int, workers: int) -> str:
    head = ["per worker", "PSS before, MB", "after", "new memory, MB", "of the list", "of a plain list's", "epoch, s"]
    new = {name: (row["after"]["all"] - row["before"]["all"]) / workers for name, row in found.items()}
    rows = []
    for name, row in found.items():
        rival = new[f"plain list, {name.split(', ')[1]}"]
        worker = [f"{row[when]['worker'] / 1e6:,.0f}" for when in ("before", "after")]
        rows.append(
            [
                name,
                *worker,
                f"{new[name] / 1e6:,.1f}",
                f"{new[name] / size:.1%}",
                f"{new[name] / rival:.3f}",
                f"{row['epoch']:.1f}",
            ]
        )
    return harness.table(head, rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, help="paths in the list (10 million; quick: 1 million)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a first look, not to be quoted")
    parser.add_argument("--json", metavar="FILE")
    for hidden in ("--probe", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.n = options.n or (1_000_000 if options.quick else 10_000_000)
    return options


def main() -> None:
    options = arguments()
    if options.probe:
        return be_a_probe(options)
    facts = harness.machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    size, packed = list_bytes(options.n), PackedList(paths(options.n)).nbytes
    print(f"{options.n:,} paths: a list takes {size / 1e6:,.0f} MB, a PackedList {packed / 1e6:,.0f} MB", flush=True)
    found = {}
    for name in CONTENDERS:
        harness.say(name)
        found[name] = measure(name, options)
    harness.quiet()
    print(report(found, size, options.workers))
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": facts, "list": size, "found": found}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
