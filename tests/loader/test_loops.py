"""Loops of other owners: loaders outlive them, move between them, and share them with whatever else runs there."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import threading
import weakref
from contextlib import aclosing

import anyio
import anyio.lowlevel
import pytest
import uvloop

from aloader import DataLoader, LoaderClosed

from .programs import Program
from .samples import AsyncNumbers, Numbers
from .streams import AsyncCounting

pytestmark = pytest.mark.usefixtures("uvloops_own_pipe", "nothing_left")

#: Dataset, workers, whether they are kept.
KINDS = [(Numbers, 0, False), (AsyncNumbers, 0, False), (Numbers, 2, True), (AsyncNumbers, 1, False)]

on_every_kind = pytest.mark.parametrize(
    ("dataset", "workers", "persistent"), KINDS, ids=lambda value: getattr(value, "__name__", str(value))
)


@pytest.fixture(scope="module")
def uvloops_own_pipe():
    """libuv opens a pipe with its first loop and keeps it: not what a test leaves."""
    uvloop.run(asyncio.sleep(0))


def make(dataset, workers, persistent, n=60):
    return DataLoader(dataset(n), batch_size=4, num_workers=workers, persistent_workers=persistent)


async def epoch(loader):
    return [int(i) async for batch in loader for i in batch]


async def twice(loader):
    return [await epoch(loader) for _ in range(2)]


async def begin(loader, count=3):
    """An iterator in the middle of its epoch, and what it has given."""
    batches = aiter(loader)
    return batches, [int(i) for _ in range(count) for i in await anext(batches)]


async def finish(batches):
    return [int(i) async for batch in batches for i in batch]


# -- one loop after another --------------------------------------------------------------------------------------------


@on_every_kind
def test_a_loader_moves_from_loop_to_loop(dataset, workers, persistent):
    loader, whole = make(dataset, workers, persistent), list(range(60))
    assert asyncio.run(epoch(loader)) == whole
    assert uvloop.run(epoch(loader)) == whole
    assert [int(i) for batch in loader for i in batch] == whole
    with asyncio.Runner() as runner:
        assert runner.run(epoch(loader)) == whole
        batches, first = runner.run(begin(loader))
        assert first + runner.run(finish(batches)) == whole  # the loop has stood still in between
        runner.run(begin(loader))  # dropped in the middle, while the loop does not run
        assert runner.run(epoch(loader)) == whole
        batches, _ = runner.run(begin(loader))
    assert asyncio.run(epoch(loader)) == whole  # the last loop was closed in the middle of an epoch
    loader.close()


@pytest.mark.parametrize(("dataset", "workers"), [(AsyncNumbers, 0), (Numbers, 1)])
def test_an_iterator_stays_with_its_loop_and_says_so(dataset, workers):
    loader = make(dataset, workers, False)
    batches, _ = asyncio.run(begin(loader))
    with pytest.raises(LoaderClosed, match="another event loop; iterate the loader again"):
        asyncio.run(finish(batches))
    loader.close()


class Waits(Numbers):
    """Sample 0 is given when it may be; says when it is asked for."""

    def __init__(self, n):
        super().__init__(n)
        self.asked, self.may = threading.Event(), threading.Event()

    def __getitem__(self, index):
        if index == 0:
            self.asked.set()
            assert self.may.wait(20)
        return index


def test_a_batch_that_was_waited_for_on_a_loop_that_is_gone_is_given_on_the_next():
    data = Waits(8)
    loader = DataLoader(data, batch_size=4)
    batches = None

    async def give_up():
        nonlocal batches
        batches = aiter(loader)
        waiting = asyncio.create_task(anext(batches))
        await asyncio.to_thread(data.asked.wait, 20)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(give_up())
    data.may.set()
    assert asyncio.run(asyncio.wait_for(finish(batches), 20)) == list(range(8))
    loader.close()


def test_without_a_loop_the_error_says_what_to_do():
    for workers in 0, 1:
        loader = DataLoader(Numbers(4), num_workers=workers)
        with pytest.raises(RuntimeError, match=r"no asyncio event loop is running here.*or plain `for`"):
            aiter(loader)
        loader.close()


# -- several at once ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@on_every_kind
async def test_a_loader_is_iterated_in_a_threads_loop_while_another_runs_here(dataset, workers, persistent):
    theirs = make(dataset, workers, persistent)
    ours = make(dataset, workers, persistent)
    async with ours:
        async with asyncio.TaskGroup() as tasks:
            there = tasks.create_task(asyncio.to_thread(lambda: [asyncio.run(epoch(theirs)) for _ in range(2)]))
            here = tasks.create_task(twice(ours))
        assert there.result() == here.result() == [list(range(60))] * 2
    await theirs.aclose()  # on a loop on which it has never been


@pytest.mark.asyncio
@pytest.mark.parametrize(("dataset", "workers"), [(Numbers, 0), (AsyncNumbers, 0), (Numbers, 2)])
async def test_epochs_of_one_loader_are_under_way_at_once(dataset, workers):
    async with make(dataset, workers, False) as loader:
        batches, first = await begin(loader)
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(epoch(loader)) for _ in range(3)]
        assert [task.result() for task in others] == [list(range(60))] * 3
        assert first + await finish(batches) == list(range(60))


@pytest.mark.asyncio
async def test_epochs_of_an_async_iterable_dataset_are_under_way_at_once():
    async with DataLoader(AsyncCounting(30), batch_size=4) as loader:
        batches, first = await begin(loader)
        assert await epoch(loader) == list(range(30))
        assert first + await finish(batches) == list(range(30))


# -- what is done to it there ------------------------------------------------------------------------------------------


@on_every_kind
def test_a_cancel_scope_of_anyio_ends_an_epoch_and_not_the_loader(dataset, workers, persistent):
    async def main():
        loader = make(dataset, workers, persistent)

        async def some(scope):
            async for _ in loader:
                scope.cancel()
                await anyio.lowlevel.checkpoint()  # where it is noticed

        for _ in range(2):
            async with anyio.create_task_group() as group:
                group.start_soon(some, group.cancel_scope)
            with anyio.CancelScope() as scope:
                await some(scope)
            assert scope.cancelled_caught
            assert await epoch(loader) == list(range(60))
        with anyio.CancelScope() as scope:
            async with loader:  # closing is cancelled at once, too
                await some(scope)
        assert loader.closed

    anyio.run(main)


@pytest.mark.asyncio
async def test_an_end_that_is_cancelled_leaves_nothing_on_the_loop():
    """What is closed later, and watched still, would be taken for the next socket of that number."""

    class Slow(Numbers):
        def __getitem__(self, index):
            if index == 4:
                signal.pause()  # not even a worker's end is quick
            return index

    async with DataLoader(Slow(40), num_workers=1) as loader:
        batches = aiter(loader)
        await anext(batches)
        crew = batches.run.crew
        assert crew._reports._duplicates
        ending = asyncio.create_task(batches.aclose())
        await asyncio.sleep(0)
        assert not ending.done()
        ending.cancel()
        await asyncio.wait([ending])
        assert ending.cancelled()
        assert not crew._reports._duplicates


def test_loops_that_have_been_closed_leave_no_thread_and_no_dataset():
    """A program may call `asyncio.run` for each epoch."""
    loader, crews = DataLoader(AsyncNumbers(8), batch_size=4), []

    async def main():
        async for _ in loader:
            crews.append(weakref.ref(loader._runtime._local))

    for _ in range(3):
        asyncio.run(main())
    gc.collect()
    assert len({crew() for crew in crews if crew() is not None}) == 1
    loader.close()


@pytest.mark.asyncio
@on_every_kind
async def test_timeouts_around_each_step_lose_no_batch(dataset, workers, persistent):
    async with make(dataset, workers, persistent, 400) as loader:
        batches, got, late = aiter(loader), [], 0
        while True:
            try:
                async with asyncio.timeout(0 if late % 2 else 0.0005):
                    got += (await anext(batches)).tolist()
                late += 1
            except TimeoutError:
                late += 1
            except StopAsyncIteration:
                break
    assert got == list(range(400))


async def passed_on(batches):
    async for batch in batches:
        yield batch


async def read_ahead(batches, count=3):
    """What libraries of stream operators do: a task of their own, and a queue."""
    queue: asyncio.Queue = asyncio.Queue(count)

    async def fill():
        async for batch in batches:
            await queue.put(batch)

    task = asyncio.create_task(fill())
    try:
        while not task.done() or not queue.empty():
            yield await queue.get()
    finally:
        task.cancel()


@pytest.mark.asyncio
@on_every_kind
async def test_a_wrapper_that_is_abandoned_in_the_middle_leaves_nothing(dataset, workers, persistent):
    async with make(dataset, workers, persistent, 400) as loader:
        for wrap in passed_on, read_ahead:
            async for _ in wrap(passed_on(loader)):
                break  # the generator is left to the loop, which closes it
            async with aclosing(wrap(loader)) as batches:
                async for _ in batches:
                    break
            assert await epoch(loader) == list(range(400))
    gc.collect()
    while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - tasks of others end by themselves
        await asyncio.sleep(0)


@pytest.mark.asyncio
@on_every_kind
async def test_a_new_epoch_begins_in_the_very_step_in_which_the_last_was_broken_off(dataset, workers, persistent):
    async with make(dataset, workers, persistent) as loader:
        for _ in range(3):
            async for _ in loader:
                break
        assert await epoch(loader) == list(range(60))


# -- loops that are different ------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@on_every_kind
def test_eager_tasks(dataset, workers, persistent):
    def eager():
        loop = asyncio.new_event_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        return loop

    async def main():
        async with make(dataset, workers, persistent) as loader:
            for wait in False, True:
                task = asyncio.create_task(epoch(loader))
                if wait:
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(epoch(loader)) for _ in range(1 if persistent else 3)]
            assert all(task.result() == list(range(60)) for task in running)

    with asyncio.Runner(loop_factory=eager) as runner:
        runner.run(main())


def test_the_debug_mode_of_asyncio_has_nothing_to_say_but_times(tmp_path):
    source = """
    import asyncio, logging, aloader
    from tests.loader.samples import AsyncNumbers, Numbers

    class Say(logging.Handler):
        def emit(self, record):
            if not record.getMessage().startswith("Executing"):  # slow steps: a matter of the machine
                print(record.getMessage())

    logging.getLogger("asyncio").addHandler(Say())

    async def main(dataset, workers, persistent):
        assert asyncio.get_running_loop().get_debug()
        loader = aloader.DataLoader(dataset(100), batch_size=4, num_workers=workers, persistent_workers=persistent)
        async with loader:
            for _ in range(2):
                assert len([batch async for batch in loader]) == 25
            async for _ in loader:
                break

    for kind in (Numbers, 0, False), (AsyncNumbers, 0, False), (Numbers, 2, True), (AsyncNumbers, 1, False):
        asyncio.run(main(*kind))
    print("done")
    """
    with Program(tmp_path, source, PYTHONASYNCIODEBUG="1", PYTHONDEVMODE="1") as program:
        ended = program.end()
    said = [line for line in ended.err.splitlines() if not line.startswith("Executing")]  # in a worker
    assert (ended.out, said) == ("done\n", [])


# -- notebooks ---------------------------------------------------------------------------------------------------------

DEFINITIONS = """
import asyncio, time, psutil
from aloader import DataLoader

class Cell:
    def __init__(self, function):
        self.function = function
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        return self.function(index)

class Async(Cell):
    async def __getitem__(self, index):
        await asyncio.sleep(0)
        return self.function(index)

def made(kind, workers):
    return DataLoader(kind(lambda i: 2 * i), batch_size=4, num_workers=workers, collate_fn=lambda s: s)
"""

STOPPED = """
async for batch in loader:
    print("flows")
    while True:
        await asyncio.sleep(0.01)  # the kernel looks at its stop button when something happens on its loop
"""

STOPPED_PLAIN = """
for batch in loader:
    print("flows")
    time.sleep(60)
"""

CELLS = [
    ("for batch in loader: break\nprint(batch)", "[0, 2, 4, 6]\n"),
    ("async for batch in loader: break\nprint(batch)", "[0, 2, 4, 6]\n"),
    (STOPPED, "flows\nCancelledError"),
    ("print([b async for b in loader][-1])", "[7992, 7994, 7996, 7998]\n"),
    (STOPPED_PLAIN, "flows\nKeyboardInterrupt"),
    ("print([b for b in loader][-1])", "[7992, 7994, 7996, 7998]\n"),
    ("await loader.aclose()\nprint(psutil.Process().children(recursive=True))", "[]\n"),
]


@pytest.mark.slow
def test_a_notebook(tmp_path):
    """Its classes and lambdas, both kinds of `for`, cells that are stopped and run again."""
    source = """
    import json, pathlib, sys, tempfile
    from tests.loader.notebook import Notebook
    from tests.loader.test_loops import CELLS, DEFINITIONS

    with tempfile.TemporaryDirectory() as folder, Notebook(pathlib.Path(folder)) as notebook:
        assert notebook.run(DEFINITIONS) == ""
        for kind, workers in ("Cell", 0), ("Async", 0), ("Cell", 2):
            assert notebook.run(f"loader = made({kind}, {workers})") == ""
            print(json.dumps([notebook.run(cell, interrupt_at="flows") for cell, _ in CELLS]))
    """
    with Program(tmp_path, source, flags=()) as program:
        ended = program.end(100)
        assert [json.loads(line) for line in ended.out.splitlines()] == [[said for _, said in CELLS]] * 3, ended.err
        assert program.left(10) == []
