"""How fast do samples come out of an object store, and what do they cost?

    python examples/benchmarks/object_store.py [--quick] [--latency standard] [--size 102400] [--workers 1 2 4 8]
        [--order shuffled sequential] [--contender NAME ...] [--plots FOLDER] [--json FILE]

Everything takes about three hours; `--quick` one minute. The rivals that are not installed are left out.

**Method.** A `FaultServer` in a process of its own answers all contenders: with the latencies of S3 as they were
measured, 55 MiB/s for a connection, a round trip more for a new one, and without faults. Its objects are made from
their names, so that there are as many as one likes, and the consumer checks head, tail and order of all it gets, and
touches every page. A sample is an object's bytes as a tensor; torch's collation stacks them. All contenders of a
comparison have the same objects in the same endless order, are open at once, and take turns. Before a turn begins, the
server is waited for until nobody asks it anything; what a loader holds in advance is consumed before the clock starts.

- *aloader*: `ObjectDataset` on the URL, `async for`, everything at its default but for a `memory_limit` of 1 GiB
- *aloader, hedged*: on `open_store(url, hedge=True)`
- *torch + boto3*: `get_object` in `__getitem__`
- *torch + 32 threads*: boto3 in 32 threads for each worker, in `__getitems__`
- *litdata*: `StreamingRawDataset` in torch's loader, as it comes, with `obstore` if that is installed
- *s3torchconnector*: `S3MapDataset` in torch's loader
- *bare client*: as many processes without a loader, each with as many requests in flight as aloader's workers have, on
  the same store class; the bytes are counted and dropped

The ideal, *in flight ÷ latency*, is the number of requests that aloader may have in flight, divided by the mean time of
an answer that the server has seen in aloader's turns. CPU is that of all processes but the server's. *Extra requests*
are those that the server has counted beyond one for each sample.

Machines differ, and this one's cores are shared between server and client: ratios count, rates do not.

**Result.** 2 cores (x86-64) for server and clients, otherwise quiet; Python 3.11, torch 2.13, boto3 1.43, litdata
0.2.76, s3torchconnector 1.5; 100 KiB, batches of 64, shuffled; 3 rounds of 3 or 4 s: median (least–greatest).

| objects/s | body, 2 workers | body, 8 workers | standard, 2 | with stalls, 2 |
|---|---|---|---|---|
| aloader | 3,506 (3,457–3,538) | 5,865 (5,089–6,730) | 3,016 (2,640–3,284) | 516 (281–910) |
| aloader, hedged | 3,384 (3,362–3,384) | 5,043 (4,946–5,325) | 3,259 (3,252–3,389) | 3,295 (3,149–3,367) |
| torch + boto3 | 52 (51–56) | 212 (207–215) | | |
| torch + 32 threads | 634 (585–669) | 1,199 (955–1,230) | | |
| litdata | 859 (843–874) | 2,935 (2,670–3,065) | 286 (275–405) | 74 (69–99) |
| s3torchconnector | 57 (54–59) | 223 (213–320) | | |
| bare client | 3,595 (3,449–3,618) | 6,871 (6,805–7,124) | | |
| in flight ÷ latency | 3,704 | 7,359 | 3,411 | 3,286 |

CPU seconds for 1,000 objects with 2 workers (body): aloader 0.21, hedged 0.29, bare client 0.14, litdata 0.71, 32
threads 1.89, boto3 2.89, s3torchconnector 1.09. Hedging sent 4 to 5 % more requests. With 8 workers everybody wants
more CPU than two cores have: aloader reaches 0.85 of the bare client.

An earlier version, on a busy machine: with objects of 8 MiB it was as fast as the bare client and 3.4 times as fast as
litdata, and with S3 Express's latencies (2.5 ms) litdata was 1.5 times as fast. This, 4 KiB, 1 and 4 workers, and
samples in order have not been measured since.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import harness
import torch
from object_contenders import AHEAD, MIB, NEEDS, Cell, contenders, size_of

from aloader.options import CONCURRENCY, share_of
from aloader.testing import Faults, FaultServer, Latency, Synthetic

BANDWIDTH = 55.0 * MIB
LATENCIES = ["standard body", "standard", "standard stalls", "express"]

#: A batch that comes within so many seconds was ready. So many are consumed at most to find one that was not.
READY = 0.001
MOST_READY = 400


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    """What one turn gave. Objects by second, CPU seconds of the client by 1,000 objects, requests by object."""

    rate: float
    cpu: float
    requests: float
    latency: float  # the mean that the server has seen
    waits: list[float] = field(repr=False)


class Measured:
    """A contender, with the server's view of it."""

    def __init__(self, name: str, inner: harness.Contender, cell: Cell, server: FaultServer) -> None:
        self._held = cell.workers * AHEAD.get(name, 2)
        self._inner, self._cell, self._server = inner, cell, server
        self.first = 0.0
        self.turns: list[Turn] = []

    def open(self) -> None:
        began = time.perf_counter()
        self._inner.open()
        self._inner.turn(0.0, 0)
        self.first = time.perf_counter() - began

    def turn(self, seconds: float, warm_up: int) -> harness.Flow:
        self._wait_for_silence()
        self._consume_what_is_ready()
        server_cpu = harness.cpu_seconds(self._server.pid)
        self._server.served(afresh=True)
        flow = self._inner.turn(seconds, 0)
        served = self._server.served()
        cpu = flow.cpu - (harness.cpu_seconds(self._server.pid) - server_cpu)
        objects = flow.batches * self._cell.batch_size
        self.turns.append(
            Turn(
                objects / flow.seconds,
                cpu / objects * 1000,
                served.requests["GET"] / objects,
                served.busy / max(1, served.answered),
                list(flow.waits),
            )
        )
        return flow

    def close(self) -> None:
        self._inner.close()

    def _consume_what_is_ready(self) -> None:
        """The batches that it has in advance, and more until one has to be waited for."""
        for taken in range(MOST_READY):
            waits = self._inner.turn(0.0, 0).waits
            if not waits or (waits[0] > READY and taken >= self._held):
                return

    def _wait_for_silence(self) -> None:
        """Until nobody asks for anything: the one before has filled its buffers."""
        while (seen := self._server.served()).in_flight or seen.answered != self._server.served().answered:
            time.sleep(0.05)


def faults_of(name: str) -> Faults:
    """Latencies by name; "standard body" is the log-normal distribution alone, without the one request in a hundred
    that is ten times slower, and "standard stalls" has, besides, one in a thousand that stands still for 2 to 10 s."""
    preset, _, kind = name.partition(" ")
    latency = Latency.preset(preset)
    if kind == "body":
        latency = replace(latency, slow=0.0)
    return Faults(
        latency=latency,
        stalled=0.001 if kind == "stalls" else 0.0,
        bandwidth=BANDWIDTH if preset != "none" else 0.0,
    )


def measure(cell: Cell, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    objects = Synthetic(cell.count, cell.nbytes)
    with FaultServer(objects, faults_of(cell.latency)) as server:
        os.environ.update(server.environment())
        inner = contenders(cell, server, objects, options.contender)
        measured = {name: Measured(name, each, cell, server) for name, each in inner.items()}
        harness.rounds(dict(measured), options.rounds, options.seconds, 0, lambda text: harness.say(f"{cell}: {text}"))
    harness.quiet()
    return {name: summary(each) for name, each in measured.items()}


def summary(measured: Measured) -> dict[str, Any]:
    waits = sorted(itertools.chain.from_iterable(turn.waits for turn in measured.turns))
    at = {part: waits[int(part * (len(waits) - 1))] if waits else None for part in (0.5, 0.99)}
    return {
        "rates": [turn.rate for turn in measured.turns],
        "cpu": [turn.cpu for turn in measured.turns],
        "extra": harness.median(turn.requests - 1 for turn in measured.turns),
        "latency": harness.median(turn.latency for turn in measured.turns),
        "wait p50": at[0.5],
        "wait p99": at[0.99],
        "first": measured.first,
    }


# -- reporting ---------------------------------------------------------------------------------------------------------


def ideal(cell: Cell, found: dict[str, dict[str, Any]]) -> float:
    """Requests in flight of aloader divided by the latency that its server had, or that of whoever comes first."""
    latency = found.get("aloader", next(iter(found.values())))["latency"]
    return share_of(CONCURRENCY, cell.workers) * cell.workers / max(latency, 1e-9)


def report(cell: Cell, found: dict[str, dict[str, Any]]) -> str:
    head = [str(cell), "objects/s", "of aloader's", "CPU s/1,000", "batch p50, ms", "p99", "extra requests", "first, s"]
    rows = []
    for name, row in found.items():
        rate, cpu = harness.Spread.of(row["rates"]), harness.Spread.of(row["cpu"])
        base = found.get("aloader", row)["rates"]
        share = harness.Spread.of([mine / theirs for mine, theirs in zip(row["rates"], base, strict=True)])
        waits = [f"{row[each] * 1e3:,.1f}" if row[each] is not None else "" for each in ("wait p50", "wait p99")]
        speed = f"{rate.median:,.0f} ({rate.low:,.0f}–{rate.high:,.0f})"
        rest = [f"{row['extra']:+.1%}", f"{row['first']:.2f}"]
        rows.append([name, speed, str(share), f"{cpu.median:.2f}", *waits, *rest])
    rows.append(["in flight ÷ latency", f"{ideal(cell, found):,.0f}", "", "", "", "", "", ""])
    return harness.table(head, rows)


def plot(results: list[dict[str, Any]], folder: Path) -> None:
    """For each latency and order, objects/s and CPU over workers: a column for each size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
    for each in results:
        cell = each["cell"]
        groups.setdefault((cell["latency"], cell["order"]), {}).setdefault(cell["nbytes"], []).append(each)
    for (latency, order), sizes in groups.items():
        figure, grid = pyplot.subplots(2, len(sizes), figsize=(5 * len(sizes), 8), squeeze=False)
        for (nbytes, mine), (upper, lower) in zip(sorted(sizes.items()), grid.T, strict=True):
            draw(upper, mine, "rates", f"{size_of(nbytes)}: objects/s")
            best = [(each["cell"]["workers"], ideal(Cell(**each["cell"]), each["found"])) for each in mine]
            upper.plot(*zip(*best, strict=True), color="gray", linestyle="--", label="in flight ÷ latency")
            draw(lower, mine, "cpu", f"{size_of(nbytes)}: client CPU s per 1,000 objects")
        grid[0][0].legend()
        figure.suptitle(f"Latency of “{latency}”, {order}")
        figure.tight_layout()
        figure.savefig(folder / f"object_store-{latency.replace(' ', '-')}-{order}.png", dpi=120)
        pyplot.close(figure)


def draw(axes: Any, results: list[dict[str, Any]], what: str, title: str) -> None:
    """One line for each contender."""
    workers = [each["cell"]["workers"] for each in results]
    for name in results[0]["found"]:
        axes.plot(workers, [harness.median(each["found"][name][what]) for each in results], marker="o", label=name)
    axes.set(title=title, xlabel="workers", xscale="log", yscale="log")
    axes.set_xticks(workers, [f"{number}" for number in workers], minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)


# -- the whole ---------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--latency", nargs="+", help="see `faults_of`; as it is: " + ", ".join(LATENCIES))
    parser.add_argument("--size", nargs="+", type=int, help="bytes of an object (4 KiB, 100 KiB, 8 MiB)")
    parser.add_argument("--order", nargs="+", choices=["shuffled", "sequential"], default=["shuffled", "sequential"])
    parser.add_argument("--workers", nargs="+", type=int)
    parser.add_argument("--contender", nargs="+", choices=list(NEEDS), default=list(NEEDS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each turn")
    parser.add_argument("--quick", action="store_true", help="a first look at one case, not to be quoted")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plots", metavar="FOLDER", help="PNGs by matplotlib")
    options = parser.parse_args()
    quick = options.quick
    options.latency = options.latency or (["standard"] if quick else LATENCIES)
    options.size = options.size or ([100 << 10] if quick else [4 << 10, 100 << 10, 8 << 20])
    options.order = ["shuffled"] if quick else options.order
    options.workers = options.workers or ([2] if quick else [1, 2, 4, 8])
    options.rounds = options.rounds or (1 if quick else 5)
    options.seconds = options.seconds or (2.0 if quick else 4.0)
    return options


def installed(names: list[str]) -> list[str]:
    """Those that can be measured here; of the others it is said what they need."""
    there = []
    for name in names:
        module, package = NEEDS[name]
        if importlib.util.find_spec(module) is None:
            print(f'{name} is left out: pip install "{package}"')
        else:
            there.append(name)
    return there


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*worker processes in total.*")
    facts = harness.machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{options.rounds} rounds of {options.seconds} s; medians; ratios within a round: median (least–greatest)")
    options.contender = installed(options.contender)
    results = []
    for values in itertools.product(options.latency, options.size, options.order, options.workers):
        cell = Cell(*values)
        found = measure(cell, options)
        print(f"\n{report(cell, found)}", flush=True)
        results.append({"cell": asdict(cell), "found": found})
        if options.json:
            Path(options.json).write_text(json.dumps({"machine": facts, "results": results}, indent=1))
    if options.plots:
        plot(results, Path(options.plots))


if __name__ == "__main__":
    sys.exit(main())
