"""Everything about the way to the GPU that only a GPU can answer, asked in one call of less than five minutes.

    python examples/gpu_questions.py                       all of them
    python examples/gpu_questions.py --only rates memory   some; --list names them

Prints a verdict and figures for each question and a table at the end, and writes `gpu_questions.json` into the folder
that the environment variable OUT names, after each answer. Without a GPU it says so. Exit status 1 if one is FAIL.
Needs aloader and psutil: `pip install -e . psutil`, or `PYTHONPATH=.` where their dependencies are there.

**Method.** Each question is a function, asked in a process of its own, with a limit of time: what goes wrong on the
device is for ever in the process that has seen it. That process is forked from one that has imported torch and has made
no context. Batches are *stamped*, every element with the batch's number, and compared on the device: a byte that
changed under a copy shows, and nothing waits for the device but the end. The device is kept *busy* by products of
matrices, as many as take the time that is asked for by its own clock. `gpu_means.py` beside it has all this.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from gpu_means import GIB, MIB, WORKERS, Answer, Busy, Wrong, accelerator, asked, mapped, seconds_of, stamped

from aloader import DataLoader
from aloader.channel.leaves import LEASE
from aloader.device.accelerators import LockRefusedError

HERE = Path(__file__).parent


# -- page-locked memory ------------------------------------------------------------------------------------------------


def pinned() -> Answer:
    """Does torch take a tensor in a page-locked arena for pinned, and copy nothing to pin it?"""
    device, memory = accelerator(), mapped(64 * MIB)
    memory.fill_(1)
    before = memory.is_pinned()
    device.lock(memory.data_ptr(), memory.nbytes)
    view = memory[MIB + 64 :][:MIB]
    during, same = view.is_pinned(), view.pin_memory().data_ptr() == view.data_ptr()
    device.unlock(memory.data_ptr())
    after = memory.is_pinned()
    good = (before, during, same, after) == (False, True, True, False)
    return Answer(good, f"before {before}, locked {during}, pin_memory() is itself {same}, unlocked {after}")


def locking() -> Answer:
    """How long does page-locking take, of pages that exist and of pages that do not? Promised: 0.4 s per GiB."""
    device, found = accelerator(), {"touched": [], "untouched": []}
    for _ in range(3):
        for name, times in found.items():
            memory = mapped(GIB)
            if name == "touched":
                memory.fill_(1)
            began = time.perf_counter()
            device.lock(memory.data_ptr(), memory.nbytes)
            times.append(time.perf_counter() - began)
            device.unlock(memory.data_ptr())
            del memory
    took = {name: statistics.median(times) for name, times in found.items()}
    return Answer(took["touched"] <= 0.4, ", ".join(f"{name} {each:.3f} s/GiB" for name, each in took.items()), took)


def rates() -> Answer:
    """Are copies from a page-locked arena as fast as from torch's pinned memory? Promised: 95 %."""
    nbytes, device = 256 * MIB, accelerator()
    memory = mapped(nbytes)
    memory.fill_(1)
    device.lock(memory.data_ptr(), nbytes)
    sources = {"arena": memory, "torch": torch.ones(nbytes, dtype=torch.uint8, pin_memory=True)}
    sources["pageable"] = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    found: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(15):
        for name, source in sources.items():
            found[name].append(nbytes / seconds_of(lambda: target.copy_(source, non_blocking=True)) / 1e9)  # noqa: B023
    gbs = {name: statistics.median(each) for name, each in found.items()}
    ratio = statistics.median(mine / theirs for mine, theirs in zip(found["arena"], found["torch"], strict=True))
    device.unlock(memory.data_ptr())
    text = ", ".join(f"{name} {each:.1f} GB/s" for name, each in gbs.items())
    return Answer(ratio >= 0.95, f"{text}; arena ÷ torch {ratio:.3f}", gbs | {"ratio": ratio})


def refused() -> Answer:
    """After a refused lock: is the driver's pending error gone, and do batches come all the same, with one warning?"""
    import resource

    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
    device, memory = accelerator(), mapped(64 * MIB)
    memory.fill_(1)
    try:
        device.lock(memory.data_ptr(), memory.nbytes)
        limited = False
    except LockRefusedError:
        limited = True
    try:  # no memory of this process, or locked already: refused in any case
        device.lock(*(4096, 4096) if limited else (memory.data_ptr(), memory.nbytes))
        raised = "nothing"
    except LockRefusedError as error:
        raised = str(error)
    total = float(torch.ones(1000, device="cuda").sum())  # a pending error would be raised here
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wrong = _consume(stamped(200, 4 * MIB, device="cuda"), Wrong())
    about = [str(each.message) for each in said if "page-locked" in str(each.message)]
    good = raised != "nothing" and total == 1000 and not wrong and len(about) <= 1 and bool(about) == limited
    text = f"RLIMIT_MEMLOCK {'refuses' if limited else 'is not looked at'}; raised after it: {raised}"
    return Answer(good, f"{text}; {len(about)} warnings, {wrong} elements wrong", {"limited": limited, "said": about})


# -- are they the right bytes? -----------------------------------------------------------------------------------------


def _consume(loader: DataLoader[Any], wrong: Wrong) -> int:
    with loader:
        for number, batch in enumerate(loader):
            wrong.look(batch, number)
    return int(wrong)


def stamps() -> Answer:
    """10,000 batches by `device="cuda"`, dropped at once or kept, looked at behind other work: all right?"""
    busy, wrong, kept, seen, began = Busy(), Wrong(), {}, 0, time.perf_counter()
    with stamped(10_000, MIB, device="cuda") as loader:
        for number, batch in enumerate(loader):
            if number % 3 == 0:
                busy(0.0005)
            wrong.look(batch, number)
            if number % 100 == 0:
                kept[number] = batch
                locked = loader.stats().locked_bytes
            seen += 1
    for number, batch in kept.items():
        wrong.look(batch, number)
    text = f"{int(wrong)} elements wrong in {seen:,} batches, {time.perf_counter() - began:.1f} s"
    good = not int(wrong) and seen == 10_000 and locked > 0
    return Answer(good, f"{text}, {locked / MIB:.0f} MiB locked", {"locked": locked})


def _moved(batches: Iterator[torch.Tensor], busy: Busy) -> Iterator[torch.Tensor]:
    """On the current stream, behind a full queue: the copy begins long after the host's batch was dropped."""
    for number, batch in enumerate(batches):
        if number % 50 == 0:
            busy(0.05)
        yield batch.to("cuda", non_blocking=True)


def _beside(batches: Iterator[torch.Tensor], busy: Busy) -> Iterator[torch.Tensor]:
    """On a stream of the user's own."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    for number, batch in enumerate(batches):
        with torch.cuda.stream(side):
            if number % 50 == 0:
                busy(0.05)
            there = batch.to("cuda", non_blocking=True)
        current.wait_stream(side)
        there.record_stream(current)
        yield there


def _one_ahead(batches: Iterator[torch.Tensor], busy: Busy) -> Iterator[torch.Tensor]:
    """As training programs with a prefetcher do: the next one is copied before this one is given out."""
    before = None
    for there in _beside(batches, busy):
        if before is not None:
            yield before
        before = there
    if before is not None:
        yield before


def user_copies() -> Answer:
    """`pin_memory=True`, and the program copies as it likes and drops the host's batch at once: all right?"""
    busy, found = Busy(), {}
    for way in (_moved, _beside, _one_ahead):
        wrong = Wrong()
        with stamped(2000, MIB, pin_memory=True) as loader:
            for number, batch in enumerate(way(iter(loader), busy)):
                wrong.look(batch, number)
        found[way.__name__.strip("_")] = int(wrong)
    return Answer(not any(found.values()), f"elements wrong: {found}", found)


def arena_views() -> Answer:
    """`pin_memory="arena"`, and each batch is kept until its copy is done: pinned views (mostly), and all right?"""
    wrong, under_way, pins, views = Wrong(), deque(), 0, 0
    with stamped(2000, MIB, pin_memory="arena") as loader:
        for number, batch in enumerate(loader):
            pins += batch.is_pinned()
            views += hasattr(batch.untyped_storage(), LEASE)
            wrong.look(batch.to("cuda", non_blocking=True), number)
            event = torch.cuda.Event()
            event.record()
            under_way.append((event, batch))
            while under_way and under_way[0][0].query():
                under_way.popleft()
        torch.cuda.synchronize()
    good = not int(wrong) and pins == number + 1 == 2000 and views > 1000  # what is not locked yet is copied
    return Answer(good, f"{int(wrong)} elements wrong, {pins} of {number + 1} pinned, {views} views of an arena")


LARGE = 5 * GIB // 4


def large_leaf() -> Answer:
    """A leaf of 1.25 GiB, page-locked and copied in pieces: all right?"""
    wrong, locked, began = Wrong(), 0, time.perf_counter()
    with stamped(8, LARGE, device="cuda", num_workers=1, memory_limit="12GiB") as loader:
        for number, batch in enumerate(loader):
            wrong.look(batch, number)
            locked = max(locked, loader.stats().locked_bytes)
            torch.cuda.synchronize()
    text = f"{int(wrong)} elements wrong in {number + 1} batches, {locked / GIB:.2f} GiB locked"
    return Answer(not int(wrong) and locked >= LARGE, f"{text}, {time.perf_counter() - began:.1f} s")


def large_view() -> Answer:
    """The same leaf by `pin_memory="arena"`, locked as a whole and copied by the program in one call: all right?"""
    wrong, views = Wrong(), 0
    with stamped(8, LARGE, pin_memory="arena", num_workers=1, memory_limit="12GiB") as loader:
        for number, batch in enumerate(loader):
            wrong.look(batch.to("cuda", non_blocking=True), number)
            views += hasattr(batch.untyped_storage(), LEASE)
            torch.cuda.synchronize()
    return Answer(not int(wrong) and views > 0, f"{int(wrong)} elements wrong in {number + 1} batches, {views} views")


def borders() -> Answer:
    """Does a single copy that crosses from one locked range into the next fail, so that pieces are needed?"""
    device, memory = accelerator(), mapped(64 * MIB)
    memory.fill_(1)
    for half in (memory[: 32 * MIB], memory[32 * MIB :]):
        device.lock(half.data_ptr(), half.nbytes)
    over = memory[16 * MIB : 48 * MIB]
    wrong = int((device.copy(over) != 1).sum())
    try:
        alone = f"gives {int((over.to('cuda', non_blocking=True) != 1).sum())} wrong elements"
    except RuntimeError as error:
        alone = f"fails: {str(error).splitlines()[0]}"
    return Answer(not wrong, f"{wrong} elements wrong of the accelerator's copy; one by the program {alone}")


def transform() -> Answer:
    """`device_transform` with random numbers: the same bytes twice, on another stream than the program's?"""
    import device_transform as example

    streams = set()

    class Watched(example.Augment):
        def __call__(self, batch: Any) -> Any:
            streams.add(torch.cuda.current_stream().cuda_stream)
            return super().__call__(batch)

    augment = Watched("cuda")
    runs = [example.digest(example.Scenes(), "cuda", augment, None, workers) for workers in (2, 0)]
    aside = torch.cuda.current_stream().cuda_stream not in streams
    return Answer(runs[0] == runs[1] and aside, f"{runs[0]} and {runs[1]}, aside {aside}")


def graphs() -> Answer:
    """A captured graph that is fed from the loader by `static.copy_(batch)`: all right?"""
    wrong, static = Wrong(), torch.zeros(MIB // 4, dtype=torch.int32, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        static + 1
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        more = static + 1
    with stamped(500, MIB, device="cuda") as loader:
        for number, batch in enumerate(loader):
            if number == 250:  # another one, in the midst of it all
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    more = static + 1
            static.copy_(batch)
            graph.replay()
            wrong.look(more, number + 1)
    return Answer(not int(wrong), f"{int(wrong)} elements wrong in {number + 1} replays")


# -- who waits, and what is held ---------------------------------------------------------------------------------------


def waiting() -> Answer:
    """While the device is busy for half a second: do the batches that are copied ahead come without waiting?"""
    busy, ahead = Busy(), 2
    with stamped(100, 16 * MIB, device="cuda", device_prefetch=ahead) as loader:
        batches = iter(loader)
        for _ in range(30):
            batch = next(batches)
            time.sleep(0.01)
        torch.cuda.synchronize()
        batch = next(batches)
        busy(0.5)
        times = []
        for _ in range(ahead + 1):
            began = time.perf_counter()
            batch = next(batches)
            times.append((time.perf_counter() - began) * 1e3)
        del batch
    shown = ", ".join(f"{each:.1f}" for each in times)
    return Answer(max(times[:ahead]) < 20, f"ms for the next {ahead + 1} batches: {shown}", {"ms": times})


def memory() -> Answer:
    """Does the device hold no more than device_prefetch + 1 batches of a program that drops them?"""
    nbytes, busy, found = 64 * MIB, Busy(), {}
    for ahead in (1, 2, 4):
        with stamped(40, nbytes, device="cuda", device_prefetch=ahead) as loader:
            wrong = Wrong()
            for number, batch in enumerate(loader):
                if number == 5:
                    del batch
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                    continue
                busy(0.005)
                wrong.count += batch[0]
            peak = torch.cuda.memory_stats()["active_bytes.all.peak"]
            del batch
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what is recorded on other streams counts until the allocator looks
        found[ahead] = (peak - torch.cuda.memory_stats()["active_bytes.all.current"]) / nbytes
    good = all(most <= ahead + 1 + 0.1 for ahead, most in found.items())
    text = ", ".join(f"device_prefetch={ahead}: {most:.2f}" for ahead, most in found.items())
    return Answer(good, f"batches at most, {text}", {str(ahead): most for ahead, most in found.items()})


def _device_files(pid: int) -> set[str]:
    """Of the driver, that a process has open: they are opened with the first context."""
    found = set()
    with contextlib.suppress(OSError):  # it has just gone
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(link)
                found |= {name} if name.startswith("/dev/nvidia") else set()
    return found


def _used() -> list[int]:
    """MiB used of each GPU, as the driver counts, without a context."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def contexts() -> Answer:
    """Is there no context in workers, nor on a GPU that was not asked for?"""
    count = torch.cuda.device_count()
    before = _used() if count > 1 else []
    with stamped(200, MIB, device=f"cuda:{count - 1}", num_workers=2) as loader:
        for number, _ in enumerate(loader):
            if number == 150:
                mine, below = _device_files(os.getpid()), psutil.Process().children(recursive=True)
                theirs = {name for process in below for name in _device_files(process.pid)}
                break  # copies are under way, which a thread waits for
    for thread in threading.enumerate():
        if thread.name.startswith("aloader-copies"):
            thread.join(10)
    after = _used() if count > 1 else []
    grown = [now - then for now, then in zip(after, before, strict=True)]
    text = f"{len(below)} processes below, which hold {sorted(theirs) or 'nothing of the driver'}"
    text += f"; MiB more on each GPU: {grown}" if grown else "; there is no other GPU"
    return Answer(bool(mine) and not theirs and sum(more >= 64 for more in grown) <= 1, text)


def lag() -> Answer:
    """While the context is made and arenas of several GiB are page-locked: how late does the event loop wake?"""
    late: list[float] = []
    started = 0  # so many before the first batch came

    async def sleeper() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append((time.perf_counter() - began - 0.001) * 1e3)

    async def main() -> None:
        nonlocal started
        watch = asyncio.create_task(sleeper())
        arguments: dict[str, Any] = {"num_workers": 4, "memory_limit": "16GiB", "device": "cuda"}
        async with stamped(40, 256 * MIB, **arguments) as loader:
            async for _ in loader:  # no kernel of ours: the first one is loaded, while the loop stands still
                started = started or len(late)
        watch.cancel()

    asyncio.run(main())
    start, flow = max(late[:started]), max(late[started:])
    figures = {"p99": sorted(late)[int(0.99 * len(late))], "start": start, "flow": flow}
    text = "ms late: p99 {p99:.1f}, at most {start:.1f} until the first batch, {flow:.1f} then".format(**figures)
    return Answer(max(start, flow) <= 50, text, figures)


def idle() -> Answer:
    """Is the device idle no longer than with the best that torch's loader can be made to do?"""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "found.json"
        command = [sys.executable, str(HERE / "benchmarks" / "device.py"), "--quick", "--json", str(written)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        found = json.loads(written.read_text())["idle"]
    shares = {name: statistics.median(each) for name, each in found.items()}
    best = min(share for name, share in shares.items() if name.startswith("torch"))
    text = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return Answer(shares["aloader device="] <= best + 0.01, text, shares)


#: For all together; and with fewer left, nothing more is asked.
SECONDS, LEAST = 285.0, 10.0

#: With the seconds that each may have.
QUESTIONS: dict[Callable[[], Answer], float] = {
    pinned: 20, locking: 30, rates: 20, refused: 30, stamps: 45, user_copies: 45, arena_views: 30, large_leaf: 40,
    large_view: 40, borders: 20, transform: 30, graphs: 20, waiting: 20, memory: 30, contexts: 20, lag: 40, idle: 100,
}  # fmt: skip


def card() -> str:
    """The name of the first GPU, "" without one."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {question.__name__: question for question in QUESTIONS}
    parser.add_argument("--only", nargs="+", choices=names, default=list(names), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="the questions")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:12} {question.__doc__}" for name, question in names.items()))
        return 0
    end = time.perf_counter() + SECONDS
    name = asked(card, 60)
    if isinstance(name, Answer):
        print(f"the accelerator cannot be used: {name.text}")
        return 1
    if not name:
        print("no accelerator here")
        return 0
    print(f"{name}, torch {torch.__version__}, {WORKERS} workers", flush=True)
    found: dict[str, dict[str, Any]] = {}
    for each in options.only:
        began = time.perf_counter()
        answer = answered(names[each], end - began)
        found[each] = {"verdict": answer.verdict, "text": answer.text, "figures": answer.figures}
        found[each]["seconds"] = round(time.perf_counter() - began, 1)
        print(f"{answer.verdict:6} {each}: {answer.text}", flush=True)
        keep({"card": name, "torch": torch.__version__, "cuda": torch.version.cuda, "answers": found})
    print()
    for each, row in found.items():
        print(f"{each:12} {row['verdict']:6} {row['seconds']:5.1f} s  {row['text'][:90]}")
    return int(any(row["verdict"] == "FAIL" for row in found.values()))


def answered(question: Callable[[], Answer], left: float) -> Answer:
    """The answer, if there are so many seconds left for it and all that follow."""
    if left < LEAST:
        return Answer(None, "not asked: no time was left")
    return asked(question, min(QUESTIONS[question], left))


def keep(whole: dict[str, Any]) -> None:
    """Write down what is known by now: the next question may be the end of this program."""
    if folder := os.environ.get("OUT"):
        (Path(folder) / "gpu_questions.json").write_text(json.dumps(whole, indent=1))


if __name__ == "__main__":
    sys.exit(main())
