"""Forks of the user's program while loaders are live: they disturb nothing, hold up nothing, and are told what to do.

One program for many of them, since importing torch is what takes time.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from aloader.pool.launch import launch

from .programs import Program

PROGRAM = """
import asyncio, os, signal, sys, threading, time
import torch
from aloader import DataLoader, LoaderClosed, WorkerPool

class Data:
    def __init__(self, n=40): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return torch.full((20_000,), float(i))
class Async(Data):
    async def __getitem__(self, i): return i

def in_child(act):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a child that hangs is killed
        act()
        sys.exit(7)
    return os.waitpid(pid, 0)[1]

def closed(act):
    try:
        act()
    except LoaderClosed as error:
        assert "make a loader of its own here" in str(error), error
    else:
        os._exit(1)

# -- a fork in another thread, in the very moment in which the template is started: torch's loader may be doing that

inside, forked, living = threading.Event(), threading.Event(), []

def fork():
    inside.wait()
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    living.append(pid)
    forked.set()

def look(frame, event, arg):
    if event == "c_call" and getattr(arg, "__name__", "") in ("fork_exec", "posix_spawn") and not inside.is_set():
        inside.set()
        print("forked in the middle of it:", forked.wait(0.1))

threading.Thread(target=fork).start()
pool = WorkerPool(2)
loader = DataLoader(Data(4000), batch_size=4, num_workers=1, pool=pool)
began = time.monotonic()
sys.setprofile(look)
loader.__enter__()
sys.setprofile(None)
print("held up:", time.monotonic() - began > 10)
forked.wait()
batches = iter(loader)
next(batches)

# -- forks in the middle of epochs

light, plain = DataLoader(Async(), batch_size=4), DataLoader(Data(), batch_size=4)
async def epoch(loader):
    return len([batch async for batch in loader])
asyncio.run(epoch(plain))  # its thread runs

def child():
    closed(lambda: next(batches))
    closed(lambda: iter(loader))
    closed(lambda: next(there))
    assert asyncio.run(epoch(plain)) == len(list(plain)) == 10  # in a thread of its own, and in none
    assert len(list(DataLoader(Async(), batch_size=4))) == 10
    with DataLoader(Data(), batch_size=4, num_workers=1) as own:
        assert len(list(own)) == 10

with light:  # which the child leaves, too
    there = iter(light)
    next(there)
    print("its own:", in_child(child) >> 8)
    print("error:", in_child(lambda: 1 / 0) >> 8)
    print("at once:", in_child(lambda: os._exit(3)) >> 8)
    print("rest:", len(list(there)))
next(batches)

# -- a fork looks at a batch for as long as it likes: nobody writes there, and then the memory is used again

one = DataLoader(Data(4000), batch_size=4, num_workers=1)
others = iter(one)
batch = next(others)
ready, go_on = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(go_on)
    os.read(ready, 1)
    os._exit(len(set(batch[:, 0].tolist()) & {0.0, 1.0, 2.0, 3.0}))
worker = others.run.crew.workers[0]
del batch
for _ in range(40):
    next(others)
withheld = len(worker.mappings._withheld)
os.close(go_on)
os.close(ready)
seen = os.waitpid(pid, 0)[1] >> 8
next(others)
print("in the fork:", seen, "of 4, withheld:", withheld, "then", len(worker.mappings._withheld))
one.close()

# -- in the middle of `async for`

async def main():
    loader = DataLoader(Data(), batch_size=4, num_workers=1, pool=pool)
    batches = aiter(loader)
    await anext(batches)
    pid = os.fork()
    if pid == 0:
        try:
            await anext(batches)
        except LoaderClosed:
            os._exit(5)
        os._exit(1)
    print("async:", os.waitpid(pid, 0)[1] >> 8, 1 + len([batch async for batch in batches]))

asyncio.run(main())

# -- a loop that is closed in the middle of an epoch

async def begin():
    batches = aiter(light)
    return await anext(batches), batches
light = DataLoader(Async(4000), batch_size=4)
loop = asyncio.new_event_loop()
kept = loop.run_until_complete(begin())
loop.close()
light.close()
print("closed")

# -- the fork of the beginning lives on, and does not hide that the template has died

os.kill(pool._starter._process.pid, signal.SIGKILL)
while not loader.stats().workers_lost:
    next(batches)
print("alive:", os.waitpid(living[0], os.WNOHANG) == (0, 0))
os.kill(living[0], signal.SIGKILL)
"""

SAID = """\
forked in the middle of it: False
held up: False
its own: 7
error: 1
at once: 3
rest: 9
in the fork: 4 of 4, withheld: 1 then 0
async: 5 10
closed
alive: True
"""


@pytest.mark.slow
@pytest.mark.cold  # a fork in the middle of starting a template is held up, and there it would be another start
def test_forks_of_every_kind_disturb_nothing(tmp_path: Path) -> None:
    with Program(tmp_path, PROGRAM, flags=()) as program:
        ended = program.end(100)
        assert ended.out == SAID, ended.err
        assert "ZeroDivisionError" in ended.err  # the child's own
        assert ended.err.count("Traceback") == 1, ended.err
        assert program.left(10) == []


@pytest.mark.usefixtures("nothing_left")
def test_a_template_dies_with_the_program_before_it_has_run_a_line() -> None:
    process, control, life_end = launch()
    os.kill(process.pid, signal.SIGSTOP)  # whatever it has not done by now, it does not do
    os.close(life_end)
    assert process.wait(10) == -signal.SIGKILL
    control.close()
