"""What broke when somebody tried to break it: deaths in the middle of an epoch, and user code that behaves badly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import textwrap
import threading
import time
from functools import partial

import pytest
import torch

from aloader import DataLoader, WorkerLost, WorkerPool, options
from aloader.pool.template import TemplateStarter

from .dying import Fate, Mortal, restarts
from .programs import Program
from .samples import AsyncNumbers, Numbers, Whole, as_list

pytestmark = pytest.mark.usefixtures("nothing_left")


def run(loader):
    """What iterating gives: batches as lists, and errors in their places."""
    got, batches = [], iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return got
        except Exception as error:
            got.append(error)
        else:
            got.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)


# -- the template ------------------------------------------------------------------------------------------------------


class Crashing(Numbers):
    def __reduce__(self):
        return _crash, ()


def _crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_dataset_that_crashes_whoever_loads_it():
    with DataLoader(Crashing(6), batch_size=2, num_workers=2) as loader:
        for _ in range(2):
            with restarts() as told:
                got = run(loader)
            assert 3 <= len(told) <= 6, "what takes both workers along counts once"
            assert [type(error) for error in got] == [WorkerLost] * 3
            assert {error.signal for error in got} == {signal.SIGSEGV}


def test_iterators_at_once_see_the_data_of_their_own_beginning():
    data, batches = Whole(6), []
    with DataLoader(data, batch_size=2, num_workers=2) as loader:
        for data.epoch in range(3):
            batches.append(iter(loader))
        for _ in range(3):
            assert [next(b)[1].tolist() for b in batches] == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.cold  # what it leaves is nobody's, while another is started
@pytest.mark.parametrize(("which", "persistent"), [("first stage", False), ("second stage", True)])
def test_a_template_that_is_killed_is_replaced(which, persistent, children, tmp_path):
    others = children()  # such as a server that other tests use
    data = Mortal(Fate(tmp_path / "fate", once=(8,), how={8: "wait"}), 160)  # not before it is killed
    with DataLoader(data, batch_size=2, num_workers=2, persistent_workers=persistent) as loader:
        batches, got = iter(loader), []
        got += [next(batches).tolist() for _ in range(3)]
        (first,) = children() - others
        data.fate.await_one()
        (first if which == "first stage" else first.children()[0]).kill()
        with restarts() as told:
            got += run(batches)
        assert 1 <= len(told) <= 2
        assert all("with the process that workers are forked from" in text for text in told)
        assert got == run(loader) == [[i, i + 1] for i in range(0, 160, 2)]


@pytest.mark.asyncio
@pytest.mark.parametrize("make", [partial(DataLoader, Numbers(8), num_workers=1), partial(WorkerPool, 1)])
async def test_who_is_cancelled_while_the_template_starts_leaves_nothing(make, children, monkeypatch):
    """There is no `async with` yet that could end it; and whoever keeps the task keeps all that it knew."""
    opened, cancelled, others = threading.Event(), threading.Event(), children()

    def slow(starter, open=TemplateStarter.open):
        open(starter)
        opened.set()
        cancelled.wait(20)

    async def enter():
        async with make():
            pytest.fail("it was not cancelled")

    monkeypatch.setattr(TemplateStarter, "open", slow)
    task = asyncio.create_task(enter())
    await asyncio.to_thread(opened.wait)
    assert len(children() - others) == 1
    task.cancel()
    await asyncio.wait([task])
    cancelled.set()
    assert task.cancelled()
    assert children() == others


def test_who_interrupts_the_start_of_the_template_leaves_nothing(children, monkeypatch):
    def interrupted(starter, open=TemplateStarter.open):
        open(starter)
        assert len(children() - others) == 1
        raise KeyboardInterrupt

    others = children()
    monkeypatch.setattr(TemplateStarter, "open", interrupted)
    loader = DataLoader(Numbers(8), num_workers=1)
    with pytest.raises(KeyboardInterrupt), loader:
        pytest.fail("it was not interrupted")
    assert children() == others
    assert loader.closed


def test_a_program_that_dies_of_sigpipe_and_hears_of_no_children_survives_its_workers(tmp_path):
    """As tools of the command line set one, and threads that wait for signals the other: templates inherit both."""
    source = """
    import os, select, signal, aloader, torch

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])

    class Data:
        died = "FOLDER/died"
        def __len__(self): return 64
        def __getitem__(self, i):
            if i == 40 and not os.path.exists(self.died):
                open(self.died, "w").close()
                os._exit(3)
            return torch.full((20_000,), i)

    with aloader.DataLoader(Data(), batch_size=4, num_workers=2) as loader:
        batches = iter(loader)
        batch, count = next(batches), 1
        worker, gone = batches.run.crew.workers[0], select.poll()
        os.kill(worker.pid, signal.SIGKILL)
        gone.register(worker.link, 0)
        gone.poll()
        del batch  # of which a worker is told that has gone
        count += len(list(batches))
        print(count, loader.stats().workers_lost)
    """
    with Program(tmp_path, source.replace("FOLDER", str(tmp_path)), flags=("-W", "ignore")) as program:
        ended = program.end()
    assert (ended.code, ended.out) == (0, "16 2\n"), ended.err


def test_an_iterator_that_is_dropped_while_its_dataset_is_loaded_says_nothing(tmp_path):
    source = """
    import time, aloader

    class Slow:
        def __init__(self, n): self.n = n
        def __len__(self): return self.n
        def __getitem__(self, i): return i
        def __setstate__(self, state):
            time.sleep(0.1)  # sleep: stands for the work of loading
            self.__dict__ = state

    with aloader.DataLoader(Slow(4), num_workers=1) as loader:
        for loader.dataset.n in 4, 5, 6:
            iter(loader)
        print([int(i) for i in loader])
    """
    with Program(tmp_path, source) as program:
        ended = program.end()
    assert (ended.code, ended.out, ended.err) == (0, "[0, 1, 2, 3, 4, 5]\n", "")


def test_a_template_that_cannot_start_is_an_error_and_the_working_folder_is_not_searched(tmp_path):
    source = """
    import os, sys, warnings, aloader
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    for name in "signal", "json", "selectors":
        with open(f"{name}.py", "w") as file:
            file.write("raise SystemExit('not the standard library')")
    with aloader.DataLoader(range(3), num_workers=1) as loader:
        print([int(i) for i in loader])
    os.environ["PYTHONHOME"] = "/nowhere"
    with aloader.DataLoader(range(1), num_workers=1) as loader:
        warnings.simplefilter("ignore", aloader.WorkerWarning)
        try:
            next(iter(loader))
        except aloader.WorkerLost as error:
            print(error.signal, error.exit_code)
    """
    with Program(tmp_path, f"import os; os.chdir({str(tmp_path)!r})\n" + textwrap.dedent(source)) as program:
        ended = program.end()
    assert (ended.code, ended.out) == (0, "[0, 1, 2]\n0 1\n"), ended.err


@pytest.mark.parametrize("dies", [False, True])
def test_descriptors_that_run_out_are_an_error_and_no_hang(dies):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with DataLoader(Hungry(dies), num_workers=1, batch_size=1) as loader, restarts():
        batches, taken = iter(loader), []
        next(batches)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            errors = [error for error in run(batches) if isinstance(error, Exception)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for fd in taken:
                os.close(fd)
    assert errors
    assert all(isinstance(error, WorkerLost | OSError) for error in errors)
    assert any("oo many open files" in str(error) for error in errors)


class Hungry(Numbers):
    """Every sample is larger than the one before, and needs a segment of its own."""

    def __init__(self, dies):
        super().__init__(30)
        self.dies = dies

    def __getitem__(self, index):
        if self.dies and index == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(20_000 * 2 ** min(index, 8) if not self.dies else 1)


# -- batches that cannot be made again ---------------------------------------------------------------------------------


class Unreadable:
    """Can be pickled; unpickling it raises."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return _refuse, (self.kind,)


def _refuse(kind):
    raise kind("not here")


class GivesUnreadable(Numbers):
    kinds = (ValueError, StopIteration, StopAsyncIteration, asyncio.CancelledError)

    def __getitem__(self, index):
        return Unreadable(self.kinds[index]) if index < len(self.kinds) else index


def test_a_batch_that_cannot_be_unpickled_fails_at_its_place():
    with DataLoader(GivesUnreadable(6), num_workers=1, batch_size=1, collate_fn=as_list) as loader:
        got = run(loader)
        assert [type(outcome) for outcome in got] == [ValueError, *[RuntimeError] * 3, list, list]
        assert "batch 0" in got[0].__notes__[0]
        assert "batch 2 raised StopAsyncIteration" in str(got[2])
        assert asyncio.run(_run_async(loader))[4:] == [[4], [5]]


async def _run_async(loader):
    got, batches = [], aiter(loader)
    while True:
        try:
            got.append(await anext(batches))
        except StopAsyncIteration:
            return got
        except Exception as error:
            got.append(error)


# -- async datasets ----------------------------------------------------------------------------------------------------

#: Ten times what a close waits at most for what is stuck.
CLOSED = 10 * options.CLOSE_GRACE


class Entering(AsyncNumbers):
    """Opening or closing it goes wrong."""

    def __init__(self, how):
        super().__init__(4)
        self.how = how

    async def __aenter__(self):
        if self.how == "hangs":
            await asyncio.Event().wait()
        if self.how == "is cancelled":
            raise asyncio.CancelledError("in __aenter__")

    async def __aexit__(self, *exc):
        await asyncio.Event().wait()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_is_cancelled_while_it_opens_is_an_error(workers):
    with DataLoader(Entering("is cancelled"), batch_size=2, num_workers=workers) as loader:
        got = run(loader)
    assert [type(error) for error in got] == [RuntimeError] * 2
    assert "CancelledError" in str(got[0])


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_a_dataset_that_never_opens():
    loader = DataLoader(Entering("hangs"), batch_size=2, timeout=0.05)
    with pytest.raises(RuntimeError, match="timed out"):
        await anext(aiter(loader))
    began = time.monotonic()
    await loader.aclose()
    assert time.monotonic() - began < CLOSED


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_a_dataset_that_never_closes():
    loader = DataLoader(Entering("opens"), batch_size=2)
    assert [batch.tolist() async for batch in loader] == [[0, 1], [2, 3]]
    began = time.monotonic()
    await loader.aclose()
    assert time.monotonic() - began < CLOSED


def test_plain_for_does_not_wait_for_a_dataset_that_never_closes():
    loader = DataLoader(Entering("opens"), batch_size=2)
    began, batches = time.monotonic(), iter(loader)
    next(batches)
    loader.close()
    assert time.monotonic() - began < CLOSED


def test_plain_for_does_not_wait_for_a_dataset_that_never_opens():
    loader = DataLoader(Entering("hangs"), batch_size=2, timeout=0.05)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iter(loader))
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < CLOSED


class Cancelling(AsyncNumbers):
    async def __getitem__(self, index):
        if index == 2:
            raise asyncio.CancelledError("a sample's own")
        return index


def _stops(samples):
    if 5 in samples:
        raise StopIteration("in collate_fn")
    return samples


def test_without_workers_no_error_of_the_users_ends_epoch_or_task():
    got = run(DataLoader(Cancelling(8), batch_size=2, collate_fn=_stops))
    assert [type(outcome) for outcome in got] == [list, RuntimeError, RuntimeError, list]
    assert "sample 2" in str(got[1])
