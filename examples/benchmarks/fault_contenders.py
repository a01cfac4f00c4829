"""The loaders that `faults` compares, and the program in which each of them meets a fault. Run by it, not by hand.

A program iterates one loader over the same samples, and says what it sees, a line of JSON for each event, as it
happens: so whoever watches knows how far it came, also when nothing comes any more. It goes on after an error, as a
program might that has been told of one bad batch, until there is an end, or errors only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

from torch.utils.data import Dataset

SAMPLES = 400
BATCH_SIZE = 4
WORKERS = 2
WORK = 0.002  # seconds that a sample takes

#: The sample that is bad, and after how many batches a worker is killed from outside.
BAD = 161
KILL_AFTER = 20

#: Seconds: what loaders are told that may be waited for one batch or sample, where they can be told.
PATIENCE = 2.0

#: Errors in a row after which a program gives up.
MOST_ERRORS = 5

CASES = ("killed", "crash", "stuck", "corrupt")


class Samples(Dataset[tuple[int, int]]):
    """A sample is its index and the process that made it; one of them is bad, in the way of the case."""

    def __init__(self, case: str = "") -> None:
        self.case = case

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int]:
        time.sleep(WORK)
        if index == BAD:
            misbehave(self.case)
        return index, os.getpid()


def misbehave(case: str) -> None:
    """What is wrong with the bad sample."""
    if case == "crash":
        ctypes.string_at(0)
    elif case == "stuck":
        time.sleep(10_000)
    elif case == "corrupt":
        raise ValueError(f"sample {BAD} cannot be decoded")


# -- the loaders -------------------------------------------------------------------------------------------------------


def torch_loader(dataset: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, BATCH_SIZE, num_workers=WORKERS, timeout=_patience(dataset))


def stateful_loader(dataset: Any) -> Iterable[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, BATCH_SIZE, num_workers=WORKERS, timeout=_patience(dataset))


def grain_loader(dataset: Any) -> Iterable[Any]:
    import grain.python as grain

    sampler = grain.IndexSampler(len(dataset), grain.NoSharding(), shuffle=False, num_epochs=1)
    batched = [grain.Batch(BATCH_SIZE)]
    return grain.DataLoader(data_source=dataset, sampler=sampler, operations=batched, worker_count=WORKERS)


def spdl_loader(dataset: Any) -> Iterable[Any]:
    from spdl.dataloader import get_pytorch_dataloader

    patience = _patience(dataset) or None
    return get_pytorch_dataloader(dataset, BATCH_SIZE, num_workers=WORKERS, in_order=True, timeout=patience)


def aloader_loader(dataset: Any, **more: Any) -> Iterable[Any]:
    from aloader import DataLoader

    if dataset.case == "stuck":
        more["sample_timeout"] = PATIENCE / 2
    return DataLoader(dataset, BATCH_SIZE, num_workers=WORKERS, **more)


def skipping_loader(dataset: Any) -> Iterable[Any]:
    return aloader_loader(dataset, on_error="skip")


def _patience(dataset: Any) -> float:
    return PATIENCE if dataset.case == "stuck" else 0


#: By name; the module without which there is none.
LOADERS = {
    "torch": (torch_loader, "torch"),
    "torchdata": (stateful_loader, "torchdata"),
    "Grain": (grain_loader, "grain"),
    "SPDL": (spdl_loader, "spdl"),
    "aloader": (aloader_loader, "aloader"),
    'aloader, on_error="skip"': (skipping_loader, "aloader"),
}


# -- the program -------------------------------------------------------------------------------------------------------


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **more}), flush=True)


def iterate(loader: Iterable[Any], case: str) -> None:
    """To the end, or to what is none."""
    batches, errors, number = iter(loader), 0, 0
    while errors < MOST_ERRORS:
        try:
            indices, pids = next(batches)
        except StopIteration:
            say("end")
            return
        except Exception as error:
            errors += 1
            say("error", type=type(error).__name__, text=str(error))
            continue
        errors, number = 0, number + 1
        say("batch", indices=[int(index) for index in indices])
        if case == "killed" and number == KILL_AFTER:
            os.kill(int(pids[0]), signal.SIGKILL)
            say("killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("loader", choices=LOADERS)
    options = parser.parse_args()
    make, _ = LOADERS[options.loader]
    iterate(make(Samples(options.case)), options.case)


if __name__ == "__main__":
    # Workers of some loaders import the program again, and want the dataset where its pickle says.
    from fault_contenders import main as begin

    sys.exit(begin())
