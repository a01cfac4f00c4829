"""Many scenarios, and what was survived:

    python -m tests.chaos --seeds 0:500 --minutes 10 -j 2
    python -m tests.chaos --seed 137 -v

Each job is a process that runs its share of the seeds one after the other. One that hangs, or dies, is missed: its seed
has failed, and another process goes on with the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from .nursery import Nursery
from .run import Ground, Outcome, run
from .scenario import scenario


@dataclass
class Job:
    """One process and the seeds that it has been given."""

    seeds: list[int]
    pid: int = 0
    said: int = -1  # descriptor
    begun: bytes = b""  # a line that has not come to its end


@dataclass
class Report:
    """What has come so far."""

    verbose: bool
    survived: int = 0
    without: int = 0  # scenarios with strikes, of which none has hit
    failed: list[int] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, tuple[float, int]] = field(default_factory=dict)
    longest: tuple[float, int] = (0.0, 0)

    def add(self, outcome: Outcome) -> None:
        self.numbers.update(outcome.numbers)
        self.longest = max(self.longest, (outcome.seconds, outcome.seed))
        for what, seconds in outcome.slowest.items():
            self.slowest[what] = max(self.slowest.get(what, (0.0, 0)), (seconds, outcome.seed))
        chosen = scenario(outcome.seed)
        hit = sum(outcome.numbers.get(name, 0) for name in _HITS)
        if chosen.strikes and not hit:
            self.without += 1
        if outcome.survived:
            self.survived += 1
        else:
            self.failed.append(outcome.seed)
            print(f"seed {outcome.seed} failed. Again: python -m tests.chaos --seed {outcome.seed} -v")
            print("".join(f"    {text}\n" for text in outcome.complaints[:8]), end="", flush=True)
        if self.verbose:
            mark = "" if hit or not (chosen.strikes or chosen.parent) else "; nothing was hit"
            shown = ", ".join(f"{value:,.0f} {name}" for name, value in outcome.numbers.items() if value)
            print(f"seed {outcome.seed}: {chosen.kind}, {chosen.workers} workers, {chosen.habit}, "
                  f"{outcome.seconds:.1f} s: {shown or 'nothing came'}{mark}", flush=True)  # fmt: skip

    def close(self, seconds: float) -> int:
        print(f"{self.survived} scenarios survived in {seconds:.0f} s, {len(self.failed)} failed")
        for name, value in self.numbers.items():
            print(f"  {value:>15,.0f} {name}")
        print(f"  {self.without:>15} scenarios in which no strike hit anything (their loaders had come to their ends)")
        for what, (slow, seed) in self.slowest.items():
            print(f"  {slow:>13.3f} s at most {what} (seed {seed})")
        print(f"  {self.longest[0]:>13.1f} s took the longest scenario (seed {self.longest[1]})")
        if self.failed:
            print("failed: " + " ".join(map(str, sorted(self.failed))))
        return bool(self.failed)


_HITS = ("workers killed", "templates killed", "workers stopped", "programs killed")


def _work(seeds: list[int], tells: int) -> NoReturn:
    code = 1
    try:
        nursery = Nursery()
        ground = Ground(excluded=[nursery.pid])
        with os.fdopen(tells, "w") as said:
            for seed in seeds:
                chosen = scenario(seed)
                outcome = nursery.run(seed) if chosen.parent else run(chosen, ground)
                print(json.dumps(outcome.as_dict()), file=said, flush=True)
        ground.close()
        nursery.close()
        code = 0
    except BaseException:
        traceback.print_exc()  # nobody else would: the process does not come to its end as others do
        raise
    finally:
        sys.stderr.flush()
        os._exit(code)


def outcomes(seeds: list[int], jobs: int, until: float) -> Iterator[Outcome]:
    """Of every seed, as they come, until there is no more time."""
    with selectors.DefaultSelector() as ready:
        for number in range(jobs):
            _go_on(Job(seeds[number::jobs]), ready)
        while ready.get_map() and time.monotonic() < until:
            for key, _ in ready.select(1.0):
                job: Job = key.data
                said = os.read(job.said, 1 << 16)
                *lines, job.begun = (job.begun + said).split(b"\n")
                for line in lines:
                    outcome = Outcome(**json.loads(line))
                    job.seeds.remove(outcome.seed)
                    yield outcome
                if said:
                    continue
                _end(job, ready)
                if job.seeds:
                    yield Outcome(job.seeds.pop(0), ["its process hung, or died: see above"])
                _go_on(job, ready)
        for key in list(ready.get_map().values()):
            os.kill(key.data.pid, signal.SIGTERM)
            _end(key.data, ready)


def _go_on(job: Job, ready: selectors.BaseSelector) -> None:
    """Fork a process for what is left of a job's seeds."""
    if not job.seeds:
        return
    job.said, tells = os.pipe()
    job.pid = os.fork()
    if not job.pid:
        os.close(job.said)
        _work(job.seeds, tells)
    os.close(tells)
    ready.register(job.said, selectors.EVENT_READ, job)


def _end(job: Job, ready: selectors.BaseSelector) -> None:
    ready.unregister(job.said)
    os.close(job.said)
    os.waitpid(job.pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="0:500", metavar="FROM:TO")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes side by side (2)")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every seed")
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    seeds = [options.seed] if options.seed is not None else list(range(int(first), int(last)))
    if options.seed is not None:
        print(scenario(options.seed))
    report, began = Report(options.verbose), time.monotonic()
    for outcome in outcomes(seeds, options.jobs, began + 60 * options.minutes):
        report.add(outcome)
    return report.close(time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
