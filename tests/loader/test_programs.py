"""Whole programs: how they start, and that they leave nothing, however they end."""

from __future__ import annotations

import os
import signal
import time

import pytest

from .programs import Program

HEAD = """
import asyncio, os, sys, time, signal
import torch
from aloader import DataLoader

print("script", __name__)

class Data:
    def __init__(self, n=40, how=None):
        self.n, self.how = n, how
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        if self.how and i == 6:
            self.how()
        return torch.full((20_000,), float(i)), i
"""

# Ten times the promise: 0.2 s after a kill, 1 s for a close.
KILLED, CLOSED = 2.0, 10.0


def program(tmp_path, body, **env):
    return Program(tmp_path, HEAD + body, **env)


def test_no_main_guard_is_needed_and_the_script_runs_once(tmp_path):
    body = """
from collections import namedtuple
class Batch:
    def __init__(self, samples): self.indices = [i for _, i in samples]
Pair = namedtuple("Pair", "a b")
for batch in DataLoader(Data(), batch_size=4, num_workers=2, collate_fn=Batch):
    assert type(batch) is Batch, type(batch)
for pair in DataLoader(Data(), batch_size=4, num_workers=2, collate_fn=lambda s: Pair(s[0][0], len(s))):
    assert type(pair) is Pair
print("done", batch.indices)
"""
    with program(tmp_path, body) as running:
        ended = running.end()
        assert ended.out.splitlines() == ["script __main__", "done [36, 37, 38, 39]"], ended
        assert ended.err == ""
        assert running.left(CLOSED) == []


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("for", "pass"),
        ("async for", "pass"),
        ("async for", "sys.exit(3)"),
        ("for", "raise KeyError('user')"),
        ("for", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)"),
        ("for", "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"),
        ("async for", "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"),
    ],
)
def test_a_program_that_closes_nothing_leaves_nothing(tmp_path, kind, ending):
    loop = """
loader = DataLoader(Data(4000), batch_size=4, num_workers=2)
kept = []
for k, batch in enumerate(loader):
    kept.append(batch)
    if k == 5:
        print("flows")
        ENDING
        break
"""
    async_loop = """
async def main():
    loader = DataLoader(Data(4000), batch_size=4, num_workers=2, persistent_workers=True)
    k = 0
    async for batch in loader:
        k += 1
        if k == 5:
            print("flows")
            ENDING
            break
asyncio.run(main())
"""
    body = (loop if kind == "for" else async_loop).replace("ENDING", ending)
    with program(tmp_path, body) as running:
        ended = running.end()
        assert "flows" in ended.out, ended
        if ending == "pass":
            assert (ended.code, ended.err) == (0, "")
        assert "Warning" not in ended.err, ended.err
        assert running.left(CLOSED) == []


def test_a_signal_to_the_programs_process_group_is_the_programs_to_handle(tmp_path):
    """As torchrun sends it: whoever saves his work then may need a batch more."""
    body = """
signal.signal(signal.SIGTERM, lambda *_: print("asked to end"))
loader, seen = DataLoader(Data(200, lambda: time.sleep(0.001)), batch_size=4, num_workers=2), []
for x, y in loader:
    seen += y.tolist()
    if len(seen) == 40:
        os.killpg(0, signal.SIGTERM)
print(sorted(seen) == list(range(200)), loader.stats().workers_lost)
"""
    with program(tmp_path, body) as running:
        assert running.end().out.splitlines() == ["script __main__", "asked to end", "True 0"]


@pytest.mark.parametrize(
    ("stuck", "persistent"),
    [("None", False), ("None", True), ("lambda: time.sleep(60)", False), ("hold_the_gil", True)],
)
def test_kill_9_of_the_parent_takes_everything_along(tmp_path, stuck, persistent):
    body = f"""
import ctypes
def hold_the_gil():
    ctypes.pythonapi.sleep(60)
loader = DataLoader(Data(4000, {stuck}), batch_size=2, num_workers=2, persistent_workers={persistent})
for k, batch in enumerate(loader):
    if k == 2:
        print("flows")
        time.sleep(60)
"""
    with program(tmp_path, body) as running:
        running.line()
        assert running.line() == "flows"
        assert len(running.pids()) >= 5
        os.kill(running.process.pid, signal.SIGKILL)
        assert running.left(KILLED) == []


def test_a_kill_while_workers_start_leaves_nothing(tmp_path):
    with program(tmp_path, 'print("now"); list(DataLoader(Data(), num_workers=2))') as running:
        running.line()
        assert running.line() == "now"
        while len(running.pids()) < 2:
            os.sched_yield()
        os.kill(running.process.pid, signal.SIGKILL)
        assert running.left(KILLED) == []


@pytest.mark.parametrize("gil", [False, True])
def test_ctrl_c_with_a_stuck_worker_ends_the_program_at_once(tmp_path, gil):
    body = f"""
import ctypes
def stuck():
    ctypes.pythonapi.sleep(60) if {gil} else time.sleep(60)
async def main():
    async with DataLoader(Data(40, stuck), batch_size=2, num_workers=2) as loader:
        async for x, y in loader:
            print(int(y[0]))
asyncio.run(main())
"""
    with program(tmp_path, body) as running:
        running.line()
        assert [running.line() for _ in range(3)] == ["0", "2", "4"]
        began = time.monotonic()
        os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        ended = running.end()
        assert time.monotonic() - began < CLOSED
        assert ended.code != 0
        assert "KeyboardInterrupt" in ended.err
        assert ended.err.count("Traceback") <= 2, ended.err
        assert running.left(KILLED) == []


def test_a_fork_of_the_users_program_neither_uses_nor_harms_the_loader(tmp_path):
    body = """
from aloader import LoaderClosed
loader = DataLoader(Data(400), batch_size=4, num_workers=2, persistent_workers=True)
batches = iter(loader)
kept = [next(batches) for _ in range(5)]
pid = os.fork()
if pid == 0:
    try:
        next(batches)
    except LoaderClosed:
        kept.clear()
        time.sleep(0.2)
        os._exit(7)
    os._exit(1)
rest = [int(y[0]) for x, y in batches]
assert rest == list(range(20, 400, 4)), rest
print("child", os.waitpid(pid, 0)[1] >> 8)
for x, y in kept:
    assert (x == y[:, None]).all()
"""
    with program(tmp_path, body, flags=()) as running:
        ended = running.end()
        assert "child 7" in ended.out, ended
        assert running.left(CLOSED) == []


def test_a_living_fork_of_the_user_does_not_keep_workers_of_a_killed_parent(tmp_path):
    body = """
loader = DataLoader(Data(4000), batch_size=4, num_workers=2)
batches = iter(loader)
next(batches)
if os.fork() == 0:
    time.sleep(20)
    os._exit(0)
print("forked", flush=True)
time.sleep(60)
"""
    with program(tmp_path, body, flags=()) as running:
        running.line()
        assert running.line() == "forked"
        os.kill(running.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + KILLED
        while len(running.pids()) > 1 and time.monotonic() < deadline:
            os.sched_yield()
        assert len(running.pids()) == 1, "only the user's own child may live on"


def test_a_loader_at_module_level_of_a_module_that_workers_import_starts_nothing_there(tmp_path):
    (tmp_path / "shop.py").write_text(
        "import os\nfrom aloader import DataLoader\n"
        "class Data:\n    def __len__(self): return 8\n    def __getitem__(self, i): return i\n"
        "loader = DataLoader(Data(), num_workers=2)\nprint('imported', flush=True)\n"
    )
    body = """
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import shop
print([int(x) for x in shop.loader])
"""
    with program(tmp_path, body) as running:
        ended = running.end()
        assert ended.out.splitlines() == ["script __main__", "imported", "imported", str(list(range(8)))], ended
        assert running.left(CLOSED) == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_contexts_are_honoured(tmp_path, method):
    body = f"""
if __name__ == "__main__":
    options = dict(num_workers=2, persistent_workers=True, multiprocessing_context="{method}")
    loader = DataLoader(Data(), batch_size=4, **options)
    print([int(y[0]) for x, y in loader])
    next(iter(loader))  # nobody closes it
"""
    with program(tmp_path, body, flags=()) as running:
        ended = running.end()
        assert ended.code == 0, ended
        lines = [line for line in ended.out.splitlines() if line.startswith("[")]
        assert lines == [str(list(range(0, 40, 4)))], ended
        assert running.left(CLOSED) == []


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_multiprocessing_cannot_pickle_is_named(tmp_path, method):
    body = f"""
import multiprocessing
from aloader import DataLoader

class Odd(Data):
    def __init__(self):
        super().__init__()
        self.lock = multiprocessing.get_context("{method}").Lock()  # may be given to a process that is started
        self.options = {{"transform": lambda x: x}}

if __name__ == "__main__":
    loader = DataLoader(Odd(), num_workers=1, multiprocessing_context="{method}")

    async def run():
        async for _ in loader:
            pass

    for go in (lambda: list(loader), lambda: asyncio.run(run())):
        try:
            go()
        except TypeError as error:
            print(error)
"""
    with program(tmp_path, body, flags=()) as running:
        ended = running.end()
        one, other = ended.out.splitlines()[1:]
        assert one == other, ended
        assert one.startswith("dataset.options['transform']: function cannot be pickled by multiprocessing's"), ended
        assert "leave multiprocessing_context= out" in one
        assert [what for what in running.left(CLOSED) if "/sem." not in what] == []  # other programs' locks, perhaps


def test_loops_of_every_kind(tmp_path):
    body = """
import threading, uvloop
loader = DataLoader(Data(), batch_size=4, num_workers=2, persistent_workers=True)  # made before any loop exists

async def main():
    got = [int(y[0]) async for x, y in loader]
    assert got == list(range(0, 40, 4)), got

asyncio.run(main())
asyncio.run(main())  # another loop, the same workers
uvloop.run(main())
thread = threading.Thread(target=lambda: asyncio.run(main()))
thread.start()
thread.join()

async def notebook():
    class Cell(Data):
        pass
    for batch in DataLoader(Cell(), batch_size=4, num_workers=1, collate_fn=lambda s: [i for _, i in s]):
        break
    async for batch in DataLoader(Cell(), batch_size=4, num_workers=1, collate_fn=lambda s: [i for _, i in s]):
        break
    print(batch)
asyncio.run(notebook())
"""
    with program(tmp_path, body) as running:
        ended = running.end()
        assert ended.out.splitlines()[-1] == "[0, 1, 2, 3]", ended
        assert ended.err == ""
        assert running.left(CLOSED) == []


def test_a_worker_takes_over_the_parents_surroundings(tmp_path):
    body = """
import logging, warnings
class Look:
    def __len__(self): return 1
    def __getitem__(self, i):
        return [os.environ.get("MARK"), os.getcwd(), sys.argv[1:], oct(os.umask(0o22)), logging.getLogger("x").level,
                torch.get_default_dtype(), torch.get_num_threads(), len(os.sched_getaffinity(0)), sys.path[-1],
                os.environ.get("OMP_NUM_THREADS")]
os.environ["MARK"] = "yes"
os.chdir("/")
sys.argv.append("argument")
os.umask(0o27)
logging.getLogger("x").setLevel(7)
torch.set_default_dtype(torch.float64)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.path.append("/nowhere")
print(*next(iter(DataLoader(Look(), num_workers=1, collate_fn=lambda s: s[0]))))
"""
    with program(tmp_path, body, flags=()) as running:
        ended = running.end()
        assert ended.out.splitlines()[1] == "yes / ['argument'] 0o27 7 torch.float64 1 1 /nowhere 1", ended


def test_descriptors_do_not_grow_with_batches(tmp_path):
    body = """
class Many(Data):
    def __getitem__(self, i):
        return {f"k{n}": torch.full((20_000,), float(i)) for n in range(10)}
with DataLoader(Many(600), batch_size=2, num_workers=2, persistent_workers=True) as loader:
    counts = []
    for k, batch in enumerate(loader):
        counts.append(len(os.listdir("/proc/self/fd")))
    print(max(counts[150:]) <= max(counts[:150]) + 5, max(counts) < 60)
"""
    with program(tmp_path, body) as running:
        ended = running.end()
        assert ended.out.splitlines()[1] == "True True", ended


def test_an_async_dataset_without_workers_may_be_dropped_anywhere(tmp_path):
    body = """
class Async(Data):
    async def __aenter__(self):
        print("in")
        return self
    async def __aexit__(self, *exc):
        print("out")
    async def __getitem__(self, i):
        await asyncio.sleep(0.001)
        return i

async def main(drop):
    loader = DataLoader(Async(400), batch_size=2)
    async for batch in loader:
        break
    if drop:
        del loader
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

asyncio.run(main(False))
asyncio.run(main(True))
for batch in DataLoader(Async(400), batch_size=2):
    break
"""
    with program(tmp_path, body) as running:
        ended = running.end()
        assert ended.err == ""
        assert ended.out.split()[2:8] == ["in", "out", "in", "out", "in", "out"][: len(ended.out.split()[2:8])], ended
        assert ended.out.split().count("in") == 3
        assert running.left(CLOSED) == []


@pytest.mark.parametrize("method", ["fork", None])
def test_a_fork_after_the_loader_was_closed_loses_no_descriptor(tmp_path, method):
    body = f"""
import gc
gc.disable()  # what has been closed is still there when the program forks
loader = DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context={method!r})
list(loader)
loader.close()
files = [open(os.devnull) for _ in range(60)]  # these take the numbers that were given up
pid = os.fork()
if pid == 0:
    try:
        for file in files:
            os.fstat(file.fileno())
        os._exit(0)
    finally:
        os._exit(1)
print("child", os.waitpid(pid, 0)[1])
"""
    with program(tmp_path, body, flags=()) as running:
        ended = running.end()
        assert ended.out.splitlines()[-1] == "child 0", ended
