"""What does it cost to go on in the midst of an epoch, and to be able to: in time, in memory, and at every step?

    python examples/benchmarks/resume.py [--quick] [--rounds 5] [--json FILE]

torchdata's `StatefulDataLoader` is compared where it is found: `pip install --target DIR torchdata --no-deps`, and
`PYTHONPATH=DIR`.

**Method.** *Going on:* a shuffled epoch of trivial samples in batches of 256, left after 25.6 % of it. Each measurement
is made in a fresh process, and contenders alternate. Without workers, the time runs from `load_state_dict` (for torch:
from `iter`) to the first batch, and memory is the process's peak during that, beyond what it had before. With 2
workers, what starting them takes is taken off: the same loader, whose workers are started anew, goes on and begins at
the front in turns, and the difference of medians is what is reported. The first batch is compared with the one that an
epoch which was not left gave there. At a billion samples that epoch is not gone through: the state is one taken after
its first batch, with its counts set to the millionth, and the batch is compared with what `ShuffledSampler` has there.
Rivals are measured at a size that they can manage, which is printed; nothing is extrapolated.

*Asking:* the time of `state_dict()` after each batch. *Every step:* batches a second with `state_dict()` after each
batch and without, 2 workers, in rounds that alternate between all contenders; the ratio is within rounds.

**Result.** RESULT
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
FAR = 1_000_000  # batches
SMALLER = 5_000_000  # samples, for whoever makes a list of them
LEFT_AT = FAR * BATCH / BILLION  # of the epoch
TURNS = 5  # of starting workers, in one process
TORCHDATA = importlib.util.find_spec("torchdata") is not None
CONTENDERS = {
    "aloader, seed=0": BILLION,
    "aloader, seed=0, smaller": SMALLER,
    "aloader, RandomSampler": SMALLER,
    "torch + islice": SMALLER,
    "StatefulDataLoader": SMALLER,
}


class Numbers:
    """Sample i is i; with `seconds`, after a wait that stands for reading and decoding it."""

    def __init__(self, length: int, seconds: float = 0) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if self.seconds:
            time.sleep(self.seconds)
        return index


class Stream(torch.utils.data.IterableDataset[int]):
    """The same from the front, with a state."""

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


def loader_of(name: str) -> Callable[..., Any]:
    if name.startswith("aloader"):
        return aloader.DataLoader
    if name.startswith("torch"):
        return torch.utils.data.DataLoader
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # called by its constructor
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader


# -- one contender in a process of its own: an epoch that is left, and one that goes on --------------------------------


def a_loader(name: str, workers: int) -> Any:
    torch.manual_seed(0)
    seed = {"seed": 0} if "seed=0" in name else {}
    return loader_of(name)(
        Numbers(CONTENDERS[name]), batch_size=BATCH, shuffle=True, num_workers=workers, collate_fn=np.asarray, **seed
    )


def leave(name: str, workers: int, file: Path) -> None:
    """Write the state after so many batches, and the batch that comes next."""
    length, loader = CONTENDERS[name], a_loader(name, workers)
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


def go_on(name: str, workers: int, file: Path) -> dict[str, float]:
    """Seconds and bytes to the first batch of an epoch that goes on, and seconds to one from the front."""
    batches, state, following = torch.load(file, weights_only=False)
    loader = a_loader(name, workers)
    if workers == 0:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
        before = psutil.Process().memory_info().rss
        return {"seconds": _resumed(loader, batches, state, following), "bytes": _peak() - before}
    with loader if hasattr(loader, "close") else warnings.catch_warnings():
        _from_the_front(loader)
        times = [(_from_the_front(loader), _resumed(loader, batches, state, following)) for _ in range(TURNS)]
    front, resumed = (statistics.median(each) for each in zip(*times, strict=True))
    return {"seconds": resumed - front, "front": front}


def _resumed(loader: Any, batches: int, state: Any, following: list[int]) -> float:
    torch.manual_seed(0)
    began = time.perf_counter()
    if state is not None:
        loader.load_state_dict(state)
    iterator = iter(loader)
    batch = next(iterator if state is not None else islice(iterator, batches, None))
    seconds = time.perf_counter() - began
    if batch.tolist() != following:
        raise AssertionError("another batch than the epoch had there")
    return seconds


def _from_the_front(loader: Any) -> float:
    began = time.perf_counter()
    next(iter(loader))
    return time.perf_counter() - began


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


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
    return found


def report_going_on(found: dict[str, list[dict[str, float]]]) -> str:
    rows = []
    for case, turns in found.items():
        name, _, workers = case.partition("|")
        length = CONTENDERS[name]
        spread = harness.Spread.of([turn["seconds"] * 1e3 for turn in turns])
        memory = f"{max(turn['bytes'] for turn in turns) / 1e6:,.1f}" if workers == "0" else ""
        front = f"{harness.median(turn['front'] for turn in turns) * 1e3:,.0f}" if workers != "0" else ""
        milliseconds = f"{spread.median:,.1f} ({spread.low:,.1f}–{spread.high:,.1f})"
        rows.append(
            [name, f"{length:,}", f"{round(length * LEFT_AT) // BATCH:,}", workers, milliseconds, front, memory]
        )
    return harness.table(["going on", "samples", "at batch", "workers", "ms", "front, ms", "MB, at most"], rows)


# -- what asking costs -------------------------------------------------------------------------------------------------


def measure_asking(count: int) -> dict[str, list[float]]:
    """Microseconds, sorted."""
    cases: dict[str, dict[str, Any]] = {
        "map-style, no workers": {"shuffle": True, "seed": 0},
        "map-style, 2 workers": {"shuffle": True, "seed": 0, "num_workers": 2},
        "map-style, 2 persistent workers": {"shuffle": True, "num_workers": 2, "persistent_workers": True},
        "iterable with a state, 2 workers": {"num_workers": 2},
    }
    found = {}
    for name, more in cases.items():
        harness.say(f"asking: {name}")
        dataset = Stream() if "iterable" in name else Numbers(SMALLER)
        with aloader.DataLoader(dataset, batch_size=32, **more) as loader:
            found[name] = []
            for _ in islice(loader, count):
                began = time.perf_counter()
                loader.state_dict()
                found[name].append((time.perf_counter() - began) * 1e6)
        found[name].sort()
    harness.quiet()
    return found


def report_asking(found: dict[str, list[float]]) -> str:
    rows = []
    for name, times in found.items():
        p99 = times[int(len(times) * 0.99)]
        rows.append([name, f"{statistics.median(times):,.0f}", f"{p99:,.0f}", f"{times[-1]:,.0f}"])
    return harness.table(["state_dict(), µs", "median", "p99", "most"], rows)


# -- throughput with a state at every step -----------------------------------------------------------------------------


class Saving:
    """A loader that is asked for its state after each batch."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.loader.state_dict()
            yield batch

    def close(self) -> None:
        if hasattr(self.loader, "close"):
            self.loader.close()


def measure_steps(options: argparse.Namespace) -> dict[str, dict[str, list[harness.Flow]]]:
    cases: dict[str, tuple[Callable[[], Any], int]] = {
        "32 numbers": (lambda: Numbers(BILLION), 32),
        "32 numbers, iterable with a state": (Stream, 32),
        "16 samples of 1 ms": (lambda: Numbers(BILLION, 0.001), 16),
    }
    found = {}
    for case, (dataset, size) in cases.items():
        contenders: dict[str, harness.Contender] = {}
        for name in ("aloader", "StatefulDataLoader")[: 1 + TORCHDATA]:

            def make(name: str = name, dataset: Any = dataset, size: int = size) -> Any:
                return loader_of(name)(dataset(), batch_size=size, num_workers=2)

            contenders[name] = harness.Blocking(make, lambda batch, _: batch.nbytes)
            contenders[f"{name}, state"] = harness.Blocking(lambda make=make: Saving(make()), lambda b, _: b.nbytes)
        harness.say(case)
        found[case] = harness.rounds(contenders, options.rounds, options.seconds, 20, harness.say)
    harness.quiet()
    return found


def report_steps(found: dict[str, dict[str, list[harness.Flow]]]) -> str:
    rows = []
    for case, flows in found.items():
        for name in [name for name in flows if not name.endswith("state")]:
            saving = flows[f"{name}, state"]
            rates = [harness.median(flow.batch_rate for flow in each) for each in (flows[name], saving)]
            ratio = str(harness.ratio(saving, flows[name]))
            rows.append([f"{case}: {name}", *(f"{rate:,.0f}" for rate in rates), ratio])
    return harness.table(["batches a second", "no state", "at every step", "ratio"], rows)


# -- the whole ---------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each turn (3; quick: 0.5)")
    parser.add_argument("--quick", action="store_true", help="a first look, not to be quoted")
    parser.add_argument("--json", metavar="FILE")
    for hidden in ("--leave", "--go-on"):
        parser.add_argument(hidden, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.seconds = options.seconds or (0.5 if options.quick else 3)
    return options


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if options.leave or options.go_on:
        name, workers, file = options.leave or options.go_on
        said = (leave if options.leave else go_on)(name, int(workers), Path(file))
        return print(json.dumps(said or {}), flush=True)
    facts = harness.machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if not TORCHDATA:
        print("torchdata is not here: pip install --target DIR torchdata --no-deps, and PYTHONPATH=DIR")
    with tempfile.TemporaryDirectory() as folder:
        going_on = measure_going_on(options, folder)
    print(f"\n{report_going_on(going_on)}", flush=True)
    asking = measure_asking(200 if options.quick else 2_000)
    print(f"\n{report_asking(asking)}", flush=True)
    steps = measure_steps(options)
    print(f"\n{report_steps(steps)}")
    if options.json:
        results = {"machine": facts, "going on": going_on, "asking": asking}
        results["steps"] = {case: harness.as_json(flows) for case, flows in steps.items()}
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
