"""The requests for `serve_and_evaluate.py --measure`: how long do they take while an evaluation is under way?

The server is a process of its own. Requests are sent at a fixed rate, whether or not earlier ones have been answered,
so that one who waits does not keep others from being counted. The conditions take turns within each round, and another
one begins each time: *nothing* besides the requests; an evaluation whose data come from *aloader*; from *torch*, by a
plain `for` in the same coroutine; from *torch in a thread*. Ratios are to *nothing* in the same round.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
from sklearn.datasets import load_digits

CONDITIONS = ("nothing", "aloader", "torch", "torch in a thread")
ENDLESS = 10_000  # variants: more than there is time for


class Turn(NamedTuple):
    """What came of one condition in one round. Milliseconds; samples per second."""

    p50: float
    p99: float
    worst: float
    rate: float


@contextmanager
def server() -> Iterator[str]:
    """The server's URL."""
    command = [sys.executable, str(Path(__file__).with_name("serve_and_evaluate.py")), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def send(client: httpx.AsyncClient, seconds: float, rate: int) -> list[float]:
    """Requests at a fixed rate; how long each of them took, in seconds."""
    pixels = load_digits().images.reshape(-1, 64).tolist()
    taken: list[float] = []

    async def request(number: int) -> None:
        began = time.perf_counter()
        answer = await client.post("/score", json={"pixels": pixels[number % len(pixels)]})
        taken.append(time.perf_counter() - began)
        answer.raise_for_status()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            tasks.create_task(request(number))
    return taken


@asynccontextmanager
async def evaluating(client: httpx.AsyncClient, loader: str) -> AsyncIterator[str]:
    """An evaluation that has begun to count, and is cancelled in the end."""
    key = (await client.post("/evaluations", json={"variants": ENDLESS, "loader": loader})).json()["id"]
    try:
        while not await counted(client, key):  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.05)
        yield key
    finally:
        await client.delete(f"/evaluations/{key}")


async def counted(client: httpx.AsyncClient, key: str) -> int:
    report = (await client.get(f"/evaluations/{key}")).json()
    if report["state"] != "running":
        raise RuntimeError(f"the evaluation is {report['state']}: {report['error']}")
    return int(report["samples"])


async def turn(client: httpx.AsyncClient, condition: str, seconds: float, rate: int) -> Turn:
    if condition == "nothing":
        await send(client, 0.5, rate)
        return summary(await send(client, seconds, rate), 0.0)
    async with evaluating(client, condition) as key:
        await send(client, 0.5, rate)
        before, began = await counted(client, key), time.perf_counter()
        taken = await send(client, seconds, rate)
        return summary(taken, (await counted(client, key) - before) / (time.perf_counter() - began))


def summary(taken: list[float], rate: float) -> Turn:
    values = np.array(taken) * 1e3
    return Turn(float(np.median(values)), float(np.percentile(values, 99)), float(values.max()), rate)


async def all_turns(url: str, rounds: int, seconds: float, rate: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {condition: [] for condition in CONDITIONS}
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        for number in range(rounds):
            first = number % len(CONDITIONS)
            for condition in CONDITIONS[first:] + CONDITIONS[:first]:
                turns[condition].append(await turn(client, condition, seconds, rate))
                print(f"round {number + 1} of {rounds}: {condition}", file=sys.stderr, flush=True)
    return turns


def spread(values: list[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(turns: dict[str, list[Turn]]) -> Iterator[str]:
    yield f"{'beside':18} {'p50, ms':>20} {'p99, ms':>22} {'p99, ratio':>22} {'samples/s':>11}"
    for condition, mine in turns.items():
        ratios = [turn.p99 / base.p99 for turn, base in zip(mine, turns["nothing"], strict=True)]
        columns = [spread([turn.p50 for turn in mine]), spread([turn.p99 for turn in mine]), spread(ratios)]
        rate = f"{statistics.median(turn.rate for turn in mine):,.0f}" if mine[0].rate else "-"
        yield f"{condition:18} {columns[0]:>20} {columns[1]:>22} {columns[2]:>22} {rate:>11}"


def measure(rounds: int, seconds: float, rate: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is ended, too
    with server() as url:
        turns = asyncio.run(all_turns(url, rounds, seconds, rate))
    print(f"\n{rate} requests/s, {rounds} rounds of {seconds:g} s; median (lowest–highest) of the rounds\n")
    print("\n".join(table(turns)))
