"""What does it cost to go on in the midst of an epoch, and to be able to: in time, in memory, and at every step?

    python examples/benchmarks/resume.py [--quick] [--rounds 5] [--json FILE]

`StatefulDataLoader` is compared if it is found: `pip install --target DIR torchdata --no-deps`, and `PYTHONPATH=DIR`.

**Method.** *Going on:* a shuffled epoch of trivial samples in batches of 256, left after 25.6 % of it; a fresh process
for each measurement, in rounds. Without workers, the time runs from `load_state_dict` (torch: `iter`) to the first
batch, and memory is the process's peak meanwhile, beyond what it had. With 2 workers, started each time, it is what a
pass takes beyond one from the front of the same loader; medians of 5 in turns. The batch is compared with what an
epoch that was not left had there. At a billion samples none is gone through: the state is that of its first batch with
the counts of its millionth, and the batch is `ShuffledSampler`'s. Rivals have the size that they can manage.

*Asking:* `state_dict()` after each batch. *Every step:* batches a second with that and without, 2 workers, contenders
in alternating rounds, ratios within rounds. (StatefulDataLoader notes a state in each step, whether asked or not.)

**Result.** 2 cores (x86-64), Python 3.11, torch 2.13, torchdata 0.11. Going on without workers: 3 rounds beside a
load of 4 to 7 from other work; all else: 5 rounds on a machine that had nothing else to do.

| ms to go on (MB at most) | samples | without workers | 2 workers, beyond starting |
|---|---|---|---|
| aloader, seed=0 | 1 billion | 1.8, 1.3–5.4 (0.7) | -0.8, -2.2–4.0 |
| aloader, seed=0 | 5 million | 1.7, 1.6–1.7 (0.7) | -1.2, -2.2–0.1 |
| aloader, RandomSampler | 5 million | 141, 100–295 (43) | -2.7, -11–16 |
| torch + islice | 5 million | 912, 439–1,278 (244) | 737, 724–800 |
| StatefulDataLoader | 5 million | 2,175, 1,630–3,464 (442) | 894, 886–942 |

`state_dict()`: medians of 6 to 8 µs for data with indices, 21 µs for an iterable with a state; p99 12 to 45 µs, at
most 0.4 ms. At every step it is 0.2 % of the time for batches of 16 ms of work (rate 1.00, 0.99–1.01). For tiny
batches it is more than 1 %: 7 % of the consumer's time at 12,200 a second (rate 1.17, 1.02–1.26, which is noise), 13
% at 6,500 a second of an iterable with a state (0.92, 0.86–1.11). StatefulDataLoader, which notes a state at every
step anyway, gives 942 and 894 of them a second.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import numpy as np
import psutil
import torch

import aloader
from aloader.sampling import ShuffledSampler

BATCH = 256
BILLION = 1_000_000_000
SMALLER = 5_000_000  # samples, for whoever makes a list of them
LEFT_AT = 1_000_000 * BATCH / BILLION  # of the epoch
SECONDS = 3.0  # of a turn
TURNS = 5  # of starting workers, in one process
TORCHDATA = importlib.util.find_spec("torchdata") is not None
CONTENDERS = {
    "aloader, seed=0": BILLION,
    "aloader, seed=0, smaller": SMALLER,
    "aloader, RandomSampler": SMALLER,
    "torch + islice": SMALLER,
    "StatefulDataLoader": SMALLER,
}


class Slow:
    """Sample i is i, as of a range, after a millisecond that stands for reading and decoding it."""

    def __len__(self) -> int:
        return BILLION

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return index


class Stream(torch.utils.data.IterableDataset[int]):
    """Numbers from the front, with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        shard = torch.utils.data.get_worker_info()
        while True:
            self.at += 1
            yield self.at * shard.num_workers + shard.id if shard else self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def a_loader(name: str, dataset: Any, **options: Any) -> Any:
    if name.startswith("aloader"):
        return aloader.DataLoader(dataset, **options)
    if name.startswith("torch"):
        return torch.utils.data.DataLoader(dataset, **options)
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # called by its constructor
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, **options)


def shuffled(name: str, workers: int) -> Any:
    torch.manual_seed(0)
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": workers, "collate_fn": np.asarray}
    return a_loader(name, range(CONTENDERS[name]), **options, **({"seed": 0} if "seed=0" in name else {}))


def leave(name: str, workers: int, file: Path) -> dict[str, int]:
    """Write the state after so many batches, and the batch that comes next."""
    length, loader = CONTENDERS[name], shuffled(name, workers)
    batches = round(length * LEFT_AT) // BATCH
    iterator = iter(loader)
    state: Any = None
    if length == BILLION:
        next(iterator)
        state = loader.state_dict()
        state["batches"] = state["sampler"]["batches"] = batches
        state["sampler"]["samples"] = batches * BATCH
        sampler = ShuffledSampler(length, seed=0)
        sampler.load_state_dict(sampler.state_dict() | {"samples": batches * BATCH})
        following = list(islice(sampler, BATCH))
    else:
        for _ in islice(iterator, batches):
            pass
        state = None if name.startswith("torch") else loader.state_dict()
        following = next(iterator).tolist()
    torch.save((batches, state, following), file)
    return {"batches": batches}


def go_on(name: str, workers: int, file: Path) -> dict[str, float]:
    """Seconds and bytes to the first batch of an epoch that goes on; with workers, seconds more than from the front."""
    batches, state, following = torch.load(file, weights_only=False)
    loader = shuffled(name, workers)
    place = (state, 0 if state is not None else batches)
    if workers == 0:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
        before = psutil.Process().memory_info().rss
        resumed = [_first(loader, *place)]
        peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
        found = {"seconds": resumed[0][0], "bytes": peak - before}
    else:
        _first(loader)
        pairs = [(_first(loader), _first(loader, *place)) for _ in range(TURNS)]
        resumed = [pair[1] for pair in pairs]
        front = statistics.median(pair[0][0] for pair in pairs)
        found = {"seconds": statistics.median(seconds for seconds, _ in resumed) - front, "front": front}
    if any(batch != following for _, batch in resumed):
        raise AssertionError("another batch than the epoch had there")
    return found


def _first(loader: Any, state: Any = None, skip: int = 0) -> tuple[float, list[int]]:
    """Seconds to the first batch that is not skipped, and that batch."""
    torch.manual_seed(0)
    began = time.perf_counter()
    if state is not None:
        loader.load_state_dict(state)
    iterator = islice(loader, skip, None)  # kept: workers end with it
    batch = next(iterator)
    return time.perf_counter() - began, batch.tolist()


def measure_going_on(options: argparse.Namespace, folder: str) -> dict[str, list[dict[str, float]]]:
    names = [name for name in CONTENDERS if TORCHDATA or name != "StatefulDataLoader"]
    found: dict[str, list[dict[str, float]]] = {f"{name}|{workers}": [] for workers in (0, 2) for name in names}
    for number in range(options.rounds):
        for case, turns in found.items():
            name, _, workers = case.partition("|")
            harness.say(f"round {number + 1} of {options.rounds}: {name}, {workers} workers")
            arguments = [name, workers, str(Path(folder, case))]
            if number == 0:
                harness.probe(__file__, ["--leave", *arguments])
            turns.append(harness.probe(__file__, ["--go-on", *arguments]).said)
    harness.quiet()
    rows = []
    for case, turns in found.items():
        name, _, workers = case.partition("|")
        at = f"{round(CONTENDERS[name] * LEFT_AT) // BATCH:,}"
        spread = harness.Spread.of([turn["seconds"] * 1e3 for turn in turns])
        memory = f"{max(turn['bytes'] for turn in turns) / 1e6:,.1f}" if workers == "0" else ""
        front = f"{harness.median(turn['front'] for turn in turns) * 1e3:,.0f}" if workers != "0" else ""
        milliseconds = f"{spread.median:,.1f} ({spread.low:,.1f}–{spread.high:,.1f})"
        rows.append([name, f"{CONTENDERS[name]:,}", at, workers, milliseconds, front, memory])
    head = "going on", "samples", "at batch", "workers", "ms", "front, ms", "MB, at most"
    print(f"\n{harness.table(head, rows)}", flush=True)
    return found


def measure_asking(count: int) -> dict[str, list[float]]:
    """Microseconds, sorted."""
    cases: dict[str, dict[str, Any]] = {
        "map-style, no workers": {"shuffle": True, "seed": 0},
        "map-style, 2 workers": {"shuffle": True, "seed": 0, "num_workers": 2},
        "map-style, 2 persistent workers": {"shuffle": True, "num_workers": 2, "persistent_workers": True},
        "iterable with a state, 2 workers": {"num_workers": 2},
    }
    found, rows = {}, []
    for name, more in cases.items():
        harness.say(f"asking: {name}")
        dataset = Stream() if "iterable" in name else range(SMALLER)
        with aloader.DataLoader(dataset, batch_size=32, **more) as loader:
            times: list[float] = []
            for _ in islice(loader, count):
                began = time.perf_counter()
                loader.state_dict()
                times.append((time.perf_counter() - began) * 1e6)
        found[name] = sorted(times)
        rows.append([name, *(f"{found[name][int(count * part)]:,.0f}" for part in (0.5, 0.99)), f"{max(times):,.0f}"])
    harness.quiet()
    print(f"\n{harness.table(['state_dict(), µs', 'median', 'p99', 'most'], rows)}", flush=True)
    return found


class Saving:
    """A loader that is asked for its state after each batch."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.close = loader, getattr(loader, "close", lambda: None)
        self.spent: list[float] = []  # seconds of each time

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            began = time.perf_counter()
            self.loader.state_dict()
            self.spent.append(time.perf_counter() - began)
            yield batch


def measure_steps(options: argparse.Namespace) -> dict[str, dict[str, list[harness.Flow]]]:
    cases: dict[str, tuple[Callable[[], Any], int]] = {
        "32 numbers": (lambda: range(BILLION), 32),
        "32 numbers, iterable with a state": (Stream, 32),
        "16 samples of 1 ms": (Slow, 16),
    }
    found, rows = {}, []
    for case, (dataset, size) in cases.items():
        contenders: dict[str, harness.Contender] = {}
        saving: dict[str, Saving] = {}
        names = ("aloader", "StatefulDataLoader")[: 1 + TORCHDATA]
        for name in names:

            def make(name: str = name, dataset: Any = dataset, size: int = size) -> Any:
                return a_loader(name, dataset(), batch_size=size, num_workers=2)

            saving[name] = Saving(make())
            contenders[name] = harness.Blocking(make, lambda batch, _: batch.nbytes)
            contenders[f"{name}, state"] = harness.Blocking(lambda one=saving[name]: one, lambda batch, _: batch.nbytes)
        harness.say(case)
        found[case] = flows = harness.rounds(contenders, options.rounds, SECONDS, 20, harness.say)
        for name in names:
            pair = flows[name], flows[f"{name}, state"]
            rates = [harness.median(flow.batch_rate for flow in each) for each in pair]
            share = f"{statistics.median(saving[name].spent) * rates[1]:.2%}"
            ratio = str(harness.ratio(pair[1], pair[0]))
            rows.append([f"{case}: {name}", *(f"{rate:,.0f}" for rate in rates), ratio, share])
    harness.quiet()
    head = "batches a second", "no state", "at every step", "ratio", "in state_dict()"
    print(f"\n{harness.table(head, rows)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="a first look, not to be quoted")
    parser.add_argument("--json", metavar="FILE")
    for hidden in ("--leave", "--go-on"):
        parser.add_argument(hidden, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    torch.set_num_threads(1)
    if options.leave or options.go_on:
        name, workers, file = options.leave or options.go_on
        return print(json.dumps((leave if options.leave else go_on)(name, int(workers), Path(file))), flush=True)
    facts = harness.machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if not TORCHDATA:
        print("torchdata is not here: pip install --target DIR torchdata --no-deps, and PYTHONPATH=DIR")
    with tempfile.TemporaryDirectory() as folder:
        results: dict[str, Any] = {"machine": facts, "going on": measure_going_on(options, folder)}
    results["asking"] = measure_asking(200 if options.quick else 2_000)
    results["steps"] = {case: harness.as_json(flows) for case, flows in measure_steps(options).items()}
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
