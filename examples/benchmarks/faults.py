"""What does each loader do when something breaks?

    python examples/benchmarks/faults.py [--case killed …] [--loader aloader …] [--markdown] [--json FILE]
    python examples/benchmarks/fault_recovery.py         # how soon aloader goes on, and what it gets done meanwhile

**Method.** 400 samples of 2 ms in 100 batches, from 2 workers, by plain `for`, in order. In each of four cases one
thing breaks: a worker is *killed* from outside (SIGKILL) after 20 batches; one sample makes its worker *crash* (a read
at address 0 in C); one sample is *stuck* (it sleeps for ever); one is *corrupt* (it raises ValueError). The consumer
notes what comes, and asks for the next batch after an error too, up to five times in a row. Each loader in each case is
a program of its own (`fault_contenders`), watched from outside: if it says nothing for 10 s, it hangs, and is killed.
Against stuck samples each loader has what it knows: `timeout=2` (torch, torchdata, SPDL), `sample_timeout=1` (aloader),
nothing (Grain). *Left* are processes and files in /dev/shm two seconds after the program has gone.

Rivals that are not installed have a line that says so: `pip install torchdata grain spdl`.

**Result.** torch and torchdata raise and lose two batches when a worker is killed or crashes; Grain raises after
seconds, and what its other workers had is lost too; SPDL ends the epoch without an error, most of it lost, and leaves
corrupt samples out without a word. Grain and SPDL hang at a stuck sample. aloader loses nothing when a worker is
killed, and nothing but the bad sample's batch otherwise, which has the sample's number in its error; with
`on_error="skip"`, nothing. The table is in docs/reliability.md; `--markdown` prints it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import fault_contenders as contenders
import harness

#: Seconds without a word after which a program hangs; those that it may take to begin.
SILENCE = 10.0
TO_BEGIN = 90.0

#: Seconds that it may take to end when everything has come, and that what it leaves has to go then.
TO_END = 10.0
TO_GO = 2.0

TOKEN = "FAULTS_BENCHMARK_TOKEN"


@dataclass
class Outcome:
    """What was seen of one loader in one case."""

    loader: str
    case: str
    installed: bool = True
    events: list[dict[str, Any]] = field(default_factory=list)
    hangs: bool = False
    ends: bool = True  # the program, by itself
    died: str = ""  # of what, where that was raised outside of what asks for batches
    left: list[str] = field(default_factory=list)

    @property
    def batches(self) -> list[tuple[int, ...]]:
        return [tuple(event["indices"]) for event in self.events if event["event"] == "batch"]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "error"]

    @property
    def longest(self) -> float:
        """Seconds that the consumer waited at most for something to happen, after the first batch."""
        moments = [event["at"] for event in self.events]
        return max((after - before for before, after in itertools.pairwise(moments)), default=0.0)

    def lost(self) -> int:
        """Good samples that never came."""
        bad = {contenders.BAD} if self.case != "killed" else set()
        came = {index for batch in self.batches for index in batch}
        return len(set(range(contenders.SAMPLES)) - came - bad)

    def doubled(self) -> int:
        """Batches that came more than once. With "skip", a sample takes another's place: only whole ones count."""
        return sum(count - 1 for count in Counter(self.batches).values())

    def in_order(self) -> bool:
        return self.batches == sorted(self.batches)


def run(case: str, loader: str) -> Outcome:
    """One program."""
    outcome = Outcome(loader, case)
    _, module = contenders.LOADERS[loader]
    if importlib.util.find_spec(module) is None:
        outcome.installed = False
        return outcome
    token, shared = uuid.uuid4().hex, _shared()
    with tempfile.TemporaryFile("w+") as complaints:
        _watch(_begin(case, loader, token, complaints), outcome, complaints)
    outcome.left = _left(token, shared)
    for pid in _marked(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return outcome


def _begin(case: str, loader: str, token: str, complaints: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, contenders.__file__, case, loader],
        stdout=subprocess.PIPE,
        stderr=complaints,
        stdin=subprocess.DEVNULL,
        env=os.environ | {TOKEN: token},
        start_new_session=True,
    )


def _watch(process: subprocess.Popen[bytes], outcome: Outcome, complaints: IO[str]) -> None:
    """Until it has ended, or was killed because it does not."""
    try:
        _listen(process, outcome)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if outcome.hangs else TO_END)
        outcome.ends = process.poll() is not None
        outcome.died = _last_words(complaints) if process.poll() and not outcome.hangs else ""
    finally:
        process.kill()
        process.wait()


def _listen(process: subprocess.Popen[bytes], outcome: Outcome) -> None:
    """Until it has said that it is over, or nothing for too long."""
    assert process.stdout is not None
    begun = b""
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while ready.select(SILENCE if outcome.events else TO_BEGIN):
            said = os.read(process.stdout.fileno(), 1 << 16)
            if not said:
                return
            *lines, begun = (begun + said).split(b"\n")
            outcome.events += [json.loads(line) for line in lines if line.startswith(b"{")]
            if outcome.events and outcome.events[-1]["event"] == "end":
                return
    outcome.hangs = True


def _last_words(complaints: IO[str]) -> str:
    """The last line of a traceback."""
    complaints.seek(0)
    lines = [line for line in complaints.read().splitlines() if re.match(r"\w+(\.\w+)*: ", line)]
    return lines[-1] if lines else "nothing that it said"


def _left(token: str, shared: set[str]) -> list[str]:
    """What is left when it has had time to go."""
    deadline = time.monotonic() + TO_GO
    while True:
        left = ["a process" for _ in _marked(token)] + [f"/dev/shm/{name}" for name in _shared() - shared]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _shared() -> set[str]:
    return set(os.listdir("/dev/shm"))


def _marked(token: str) -> list[int]:
    found, mark = [], f"{TOKEN}={token}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes() and (entry / "stat").read_text().rpartition(")")[2][1] != "Z":
                found.append(int(entry.name))
    return found


# -- in words ----------------------------------------------------------------------------------------------------------


def in_words(outcome: Outcome, quote: bool = True) -> str:
    """One cell of the table."""
    if not outcome.installed:
        return "not installed"
    parts = [_what_came(outcome, quote)]
    if outcome.events:
        lost, doubled = outcome.lost(), outcome.doubled()
        parts.append(f"{lost} of {contenders.SAMPLES} samples lost" if lost else "nothing lost")
        parts += [f"{doubled} batches twice"] if doubled else []
        parts += [] if outcome.in_order() else ["out of order"]
    if not outcome.ends and not outcome.hangs:
        parts.append("the program does not end")
    if outcome.left:
        processes = sum(what == "a process" for what in outcome.left)
        files = len(outcome.left) - processes
        named = [f"{processes} processes"] * (processes > 0) + [f"{files} files in /dev/shm"] * (files > 0)
        parts.append(f"left when it is killed: {', '.join(named)}" if outcome.hangs else f"left: {', '.join(named)}")
    return "; ".join(parts)


def _what_came(outcome: Outcome, quote: bool) -> str:
    """Errors, silence, or neither."""
    if outcome.hangs:
        told = f" after {_named(outcome.errors[0], quote)}" if outcome.errors else ""
        return f"**hangs**{told} (no word for {SILENCE:.0f} s)"
    if outcome.died:
        died = f"`{outcome.died[:90]}`" if quote else outcome.died[:90]
        return f"**the program dies** of {died}, raised by a signal handler wherever it was"
    if not outcome.errors:
        return f"goes on after {outcome.longest:.2f} s" if outcome.lost() == 0 else "ends, **without an error**"
    count = len(outcome.errors)
    more = f", {count} times" if count > 1 else ""
    return f"{_named(outcome.errors[0], quote)}{more} (known after {outcome.longest:.2f} s)"


def _named(error: dict[str, Any], quote: bool) -> str:
    text = error["text"].partition("\n")[0].partition(". ")[0]
    return f"`{error['type']}: {text[:90]}`" if quote else f"{error['type']}: {text[:90]}"


def markdown(outcomes: list[Outcome]) -> str:
    """Cases down, loaders across would be too wide: a table of loaders for each case."""
    lines = []
    for case in dict.fromkeys(outcome.case for outcome in outcomes):
        lines += [f"| {TITLES[case]} | |", "|---|---|"]
        lines += [f"| {outcome.loader} | {in_words(outcome)} |" for outcome in outcomes if outcome.case == case]
        lines.append("")
    return "\n".join(lines).rstrip()


TITLES = {
    "killed": "A worker is killed (SIGKILL)",
    "crash": "A sample crashes its worker (SIGSEGV)",
    "stuck": "A sample never comes",
    "corrupt": "A sample raises ValueError",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", nargs="+", choices=contenders.CASES, default=list(contenders.CASES))
    parser.add_argument("--loader", nargs="+", choices=list(contenders.LOADERS), default=list(contenders.LOADERS))
    parser.add_argument("--markdown", action="store_true", help="the tables of docs/reliability.md")
    parser.add_argument("--json", metavar="FILE", help="every event")
    options = parser.parse_args()
    outcomes = []
    for case in options.case:
        for loader in options.loader:
            harness.say(f"{case}: {loader}")
            outcomes.append(run(case, loader))
            if not options.markdown:
                print(f"{case}: {loader}: {in_words(outcomes[-1], quote=False)}", flush=True)
    harness.quiet()
    if options.markdown:
        print(markdown(outcomes))
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))


if __name__ == "__main__":
    main()
