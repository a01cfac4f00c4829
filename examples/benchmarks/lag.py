"""How late does a task on the user's event loop wake, while a loader on the same loop delivers batches?

    python examples/benchmarks/lag.py [--quick] [--rounds 5] [--seconds 5] [--json FILE]

**Method.** A task sleeps one millisecond, over and over, and notes how late it wakes. Beside it, each in a process of
its own and in rounds that alternate:

- *idle*: nothing. What the machine and asyncio's timer do by themselves;
- *paced*: batches of 38 MB (64×3×224×224 float32) from 2 workers, read and checked, at about 1 GB/s;
- *greedy*: as fast as they come, by a consumer that awaits nothing but the loader;
- *torch in a thread*: what asyncio programs do today, `await asyncio.to_thread(next, iterator)`, paced;
- *… without*, after each of them: as many processes, which copy memory and use as much CPU as all that was not in the
  main process, at the priority of aloader's workers; and a consumer that checks as often a batch that it already has.
  So much of the lag is left when the loader is taken away and the load is not.

Then a whole life, from before construction to after `aclose()`: 10 million indices, shuffled, 500 MB of numpy in the
dataset, two epochs with new workers each, and for a while batches that grow to 40 MB. Its worst lag is given by phase.

**Result.** 2 cores (x86-64), Python 3.11, torch 2.13, nothing else running. Lag in ms:

- *paced*: p99 1.04, and 1.46 *without*: beside the same load on the CPU the loader itself adds nothing that shows;
- *greedy*: p99 1.32, and 3.23 *without*;
- the whole life: p99 1.47, at most 6.8.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
import transport

import aloader

NAP = 0.001
WORKERS = 2
BATCH_SIZE = 64
PACE = 1e9 / (BATCH_SIZE * 3 * 224 * 224 * 4)  # batches per second that make 1 GB/s
NICENESS = 5

check = transport.check_floats(BATCH_SIZE)


class Sleeper:
    """Notes by how much it wakes late, and the phase in which it fell asleep."""

    def __init__(self) -> None:
        self.phase = "before"
        self._lags: list[tuple[str, float]] = []

    async def __aenter__(self) -> Sleeper:
        self._task = asyncio.create_task(self._sleep())
        await asyncio.sleep(0)
        return self

    async def _sleep(self) -> None:
        while True:
            phase, began = self.phase, time.perf_counter()
            await asyncio.sleep(NAP)
            self._lags.append((phase, time.perf_counter() - began - NAP))

    async def enter(self, phase: str) -> None:
        """From here on it is another phase: what is noted for the one before is complete, and the new one has begun."""
        await asyncio.sleep(2 * NAP)
        self.phase = phase
        await asyncio.sleep(2 * NAP)

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.sleep(2 * NAP)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def lags(self) -> dict[str, float]:
        """In milliseconds."""
        values = np.array([lag for _, lag in self._lags]) * 1e3
        return {"p50": float(np.median(values)), "p99": float(np.percentile(values, 99)), "max": float(values.max())}

    def worst(self) -> dict[str, float]:
        worst: dict[str, float] = {}
        for phase, lag in self._lags:
            worst[phase] = max(worst.get(phase, 0.0), lag * 1e3)
        return worst


# -- the flow ----------------------------------------------------------------------------------------------------------


def loader(kind: Any = aloader.DataLoader) -> Any:
    dataset = transport.Images(torch.float32)
    return kind(dataset, batch_size=BATCH_SIZE, num_workers=WORKERS, persistent_workers=True)


async def from_aloader() -> AsyncIterator[Any]:
    async with loader() as batches:
        async for batch in batches:
            yield batch


async def from_torch() -> AsyncIterator[Any]:
    iterator = iter(loader(torch.utils.data.DataLoader))
    while True:
        yield await asyncio.to_thread(next, iterator)


async def from_nowhere() -> AsyncIterator[Any]:
    """The first batch of the data, again and again, without waiting."""
    batch = transport.Images(torch.float32).data[:BATCH_SIZE].clone()
    while True:
        yield batch


@contextlib.contextmanager
def burners(cores: float) -> Iterator[None]:
    """As many processes as there were workers, which together use that much CPU for copying."""
    command = [sys.executable, __file__, "--burn", str(min(1.0, cores / WORKERS))]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(WORKERS)]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def burn(share: float) -> None:
    os.nice(NICENESS)
    parts = transport.Images(torch.float32).data.split(BATCH_SIZE)
    buffer = parts[0].clone()
    print("ready", flush=True)
    number, began, cpu = 0, time.perf_counter(), time.process_time()
    while True:
        buffer.copy_(parts[number % len(parts)])
        number += 1
        ahead = (time.process_time() - cpu) / share - (time.perf_counter() - began)
        time.sleep(max(0.0, ahead))
        if ahead < 0:  # held up by others: what was missed is not made up for
            began, cpu = time.perf_counter(), time.process_time()


async def flow(batches: AsyncIterator[Any], seconds: float, pace: float, resident: bool) -> dict[str, float]:
    """The lag beside `pace` batches a second (0: as many as come), once they flow."""
    for number in range(transport.WARM_UP):
        check(await anext(batches), 0 if resident else number)
    number, cpu, cpu_here = transport.WARM_UP, harness.cpu_seconds(), time.process_time()
    async with Sleeper() as sleeper:
        began = time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            check(await anext(batches), 0 if resident else number)
            number += 1
            if pace:
                await asyncio.sleep(max(0.0, began + (number - transport.WARM_UP) / pace - time.perf_counter()))
    rate = (number - transport.WARM_UP) / (now - began)
    cpu, cpu_here = (harness.cpu_seconds() - cpu) / seconds, (time.process_time() - cpu_here) / seconds
    await batches.aclose()  # type: ignore[attr-defined]
    return sleeper.lags() | {"rate": rate, "cores_here": cpu_here, "cores_elsewhere": cpu - cpu_here}


async def idle(seconds: float) -> dict[str, float]:
    async with Sleeper() as sleeper:
        await asyncio.sleep(seconds)
    return sleeper.lags()


def be_a_probe(options: argparse.Namespace) -> None:
    seconds = options.seconds
    match options.probe:
        case "idle":
            found = asyncio.run(idle(seconds))
        case "paced":
            found = asyncio.run(flow(from_aloader(), seconds, PACE, resident=False))
        case "greedy":
            found = asyncio.run(flow(from_aloader(), seconds, 0, resident=False))
        case "torch in a thread":
            found = asyncio.run(flow(from_torch(), seconds, PACE, resident=False))
        case "without":
            with burners(options.cores):
                found = asyncio.run(flow(from_nowhere(), seconds, options.rate, resident=True))
        case "life":
            found = asyncio.run(life(options.indices))
    print(json.dumps(found), flush=True)


# -- a whole life ------------------------------------------------------------------------------------------------------


class Rows:
    """Rows of 50 bytes, each beginning with its number. After a while, batches are large for a while."""

    SIZE = 50
    LARGE = range(200, 210)

    def __init__(self, count: int) -> None:
        self.rows = np.zeros((count, self.SIZE), np.uint8)
        self.rows[:, :4] = np.arange(count, dtype=np.int32).view(np.uint8).reshape(-1, 4)
        self.batches = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        self.batches += 1
        extra = 40_000_000 if self.batches in self.LARGE else 0
        return {"rows": torch.from_numpy(self.rows[indices]), "extra": torch.ones(extra, dtype=torch.uint8)}


def as_it_is(batch: Any) -> Any:
    return batch


async def life(indices: int) -> dict[str, Any]:
    dataset = Rows(indices)
    async with Sleeper() as sleeper:
        await sleeper.enter("before")
        await asyncio.sleep(0.5)
        await sleeper.enter("construction")
        batches = aloader.DataLoader(dataset, 1024, shuffle=True, num_workers=WORKERS, collate_fn=as_it_is)
        for epoch in ("first", "second"):
            total = count = 0
            await sleeper.enter(f"{epoch} epoch, to its first batch")
            async for batch in batches:
                sleeper.phase = f"{epoch} epoch"
                numbers = batch["rows"][:, :4].contiguous().view(torch.int32)
                total, count = total + int(numbers.sum()), count + len(numbers)
            if (count, total) != (indices, indices * (indices - 1) // 2):
                raise AssertionError(f"{epoch} epoch: {count} samples, of {indices}")
            await sleeper.enter(f"{epoch} epoch, after its end")
            await asyncio.sleep(0.2)
        await sleeper.enter("close")
        await batches.aclose()
        await sleeper.enter("after")
        await asyncio.sleep(0.2)
    return {"lags": sleeper.lags(), "worst": sleeper.worst()}


# -- the whole ---------------------------------------------------------------------------------------------------------


def measure_flows(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"idle": []}
    for number in range(options.rounds):

        def measure(name: str, *arguments: str, title: str = "", number: int = number) -> dict[str, float]:
            harness.say(f"round {number + 1} of {options.rounds}: {title or name}")
            said = harness.probe(__file__, ["--probe", name, "--seconds", str(options.seconds), *arguments]).said
            found.setdefault(title or name, []).append(said)
            return said

        measure("idle")
        for name in ("torch in a thread", "paced", "greedy"):
            load = measure(name)
            rate, cores = str(load["rate"]), str(load["cores_elsewhere"])
            measure("without", "--rate", rate, "--cores", cores, title=f"{name}: without")
    harness.quiet()
    return found


def flow_table(found: dict[str, list[dict[str, float]]]) -> str:
    def cells(turns: Sequence[dict[str, float]]) -> Iterator[str]:
        for key in ("p50", "p99", "max"):
            yield f"{harness.median(turn[key] for turn in turns):.2f}"
        yield f"{max(turn['max'] for turn in turns):.2f}"
        for key in ("rate", "cores_here", "cores_elsewhere"):
            yield f"{harness.median(turn[key] for turn in turns):.2f}" if key in turns[0] else ""

    head = ["lag in ms", "p50", "p99", "max", "worst max", "batches/s", "cores here", "elsewhere"]
    return harness.table(head, [[name, *cells(turns)] for name, turns in found.items()])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="length of a turn")
    parser.add_argument("--indices", type=int, help="length of the dataset of the whole life")
    parser.add_argument("--quick", action="store_true", help="a first look, not to be quoted")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    for hidden in ("--rate", "--cores", "--burn"):
        parser.add_argument(hidden, type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 5.0)
    options.indices = options.indices or (1_000_000 if options.quick else 10_000_000)
    return options


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if options.burn:
        return burn(options.burn)
    if options.probe:
        return be_a_probe(options)
    facts = harness.machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    results: dict[str, Any] = {"machine": facts, "flows": measure_flows(options)}
    print(flow_table(results["flows"]), flush=True)
    harness.say("a whole life")
    results["life"] = harness.probe(__file__, ["--probe", "life", "--indices", str(options.indices)]).said
    harness.quiet()
    lags = results["life"]["lags"]
    print(f"\na whole life, lag in ms: p50 {lags['p50']:.2f}, p99 {lags['p99']:.2f}, max {lags['max']:.2f}")
    print(harness.table(["phase", "max"], [[key, f"{value:.2f}"] for key, value in results["life"]["worst"].items()]))
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
