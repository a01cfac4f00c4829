"""What every test may use: `nothing_left`, which fails a test that leaves anything behind. No single package's helpers.

pytestmark = pytest.mark.usefixtures("nothing_left")
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import math
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.warm import Warmth

#: Seconds that things have to go, once the test's body is over.
GRACE = 2.0

#: Every process started in a test inherits it: so one that has left the family tree is found too.
TOKEN = "ALOADER_TEST_TOKEN"


#: Modules whose `subprocess` starts interpreters that import torch: theirs are forked from one that has.
WARM = (
    "aloader.pool.launch",
    "tests.channel.test_context",
    "tests.examples.test_object_store",
    "tests.integrations.test_absent",
    "tests.loader.test_debugging",
    "tests.storage.wrappers.test_cache_shared",
)
#: The same; and what they start may have one child more, from which the templates of its loaders are forked.
PROGRAMS = (
    "tests.loader.programs",
    "tests.loader.terminals",
    "tests.ranks",
)
WARMTH = pytest.StashKey[Warmth]()

#: When further cases of a test are left out: with `--minutes`, on the monotonic clock.
END = pytest.StashKey[float]()

#: Whether another case of the same test comes before it. (What lies here itself is about all files, one a case.)
FURTHER = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold", action="store_true", help="start every interpreter for real: see tests/warm.py")
    late = "after so many minutes only one case is run of each test: a slow machine is done in time, too"
    parser.addoption("--minutes", type=float, default=math.inf, help=late)


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C works in the programs that tests start, also where a shell has begun all this in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[WARMTH] = Warmth("torch", "aloader", "aloader.worker.template")
    config.stash[END] = time.monotonic() + 60 * config.getoption("--minutes")


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[WARMTH].close()


def pytest_collection_finish(session: pytest.Session) -> None:
    warmth = session.config.stash[WARMTH]
    for names, module in ((WARM, warmth.subprocess), (PROGRAMS, warmth.programs)):
        for name in {*names} & {*sys.modules}:
            sys.modules[name].subprocess = module  # type: ignore[attr-defined]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[END] and item.stash.get(FURTHER, False):
        pytest.skip("further cases of a test, and the minutes are over")
    item.config.stash[WARMTH].cold = item.config.getoption("--cold") or item.get_closest_marker("cold") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests are skipped where there is no GPU. torch is imported only if there are any."""
    seen: set[str] = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        item.stash[FURTHER] = name in seen and item.path.parent != Path(__file__).parent
        seen.add(name)
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def warmth(request: pytest.FixtureRequest) -> Warmth:
    """What forks warm interpreters for these tests."""
    return request.config.stash[WARMTH]


@pytest.fixture
def children(warmth: Warmth) -> Callable[[], set[psutil.Process]]:
    """The processes that this one has started, but for the keepers, which come and go."""
    return lambda: {child for child in psutil.Process().children() if child.pid not in warmth.processes()}


@pytest.fixture
def nothing_left(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fails if processes, descriptors, tasks, threads, or files in /dev/shm or the temp folder outlive the test.

    The temp folder is the test's own while it runs, so that nobody else's files are counted.
    """
    temp = tmp_path_factory.mktemp("temp")
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    monkeypatch.setenv("TMPDIR", str(temp))
    token = uuid.uuid4().hex
    monkeypatch.setenv(TOKEN, token)
    tasks_left: list[str] = []
    _watch_tasks(request.node, tasks_left)
    look = functools.partial(_everything, temp, token, request.config.stash[WARMTH])
    before = look()
    yield
    left = _wait_until_gone(lambda: look() - before)
    if tasks_left or left:
        pytest.fail("left behind:\n  " + "\n  ".join(sorted(left) + tasks_left), pytrace=False)


def _wait_until_gone(remaining: Callable[[], set[str]]) -> set[str]:
    """What was there at first and still is after `GRACE` seconds: what others begin meanwhile is not ours."""
    left = remaining()
    deadline = time.monotonic() + GRACE
    while left and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
        left &= remaining()
    return left


def _everything(temp: Path, token: str, warmth: Warmth) -> set[str]:
    # multiprocessing's named semaphores are torch's loader's, in other programs of this machine: ours makes none
    shared = {file for file in _files(Path("/dev/shm")) if "/sem.mp-" not in file}
    others = _threads() | shared | _files(temp)
    return _processes(token, warmth.processes()) | _descriptors(warmth.descriptors()) | others


def _processes(token: str, kept: set[int]) -> set[str]:
    """Descendants but those, and processes of this test that were given to another parent."""
    found = {child.pid: child for child in psutil.Process().children(recursive=True) if child.pid not in kept}
    mark = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                found.setdefault(int(entry.parent.name), psutil.Process(int(entry.parent.name)))
        except (OSError, psutil.NoSuchProcess):
            pass  # gone, or somebody else's
    return {_describe(process) for process in found.values()}


def _describe(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline())[:100] or process.name()
        return f"process {process.pid}: {command}"
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return f"process {process.pid}: a zombie, not waited for"


def _descriptors(kept: set[int]) -> set[str]:
    found = set()
    for number in {*os.listdir("/proc/self/fd")} - {str(number) for number in kept}:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the one that lists them
        found.add(f"descriptor {number}: {target}")
    return found


def _threads() -> set[str]:
    return {f"thread {thread.ident}: {thread.name}" for thread in threading.enumerate()}


def _files(folder: Path) -> set[str]:
    return {f"file {folder / name}" for name in os.listdir(folder)} if folder.is_dir() else set()


def _watch_tasks(item: pytest.Item, left: list[str]) -> None:
    """Wraps a coroutine test: tasks must have gone while its loop still runs, since closing the loop cancels them."""
    test = getattr(item, "obj", None)
    if not inspect.iscoroutinefunction(test):
        return

    @functools.wraps(test)
    async def watched(*args: object, **kwargs: object) -> None:
        before = asyncio.all_tasks()
        await test(*args, **kwargs)
        deadline = time.monotonic() + GRACE
        while (remaining := asyncio.all_tasks() - before) and time.monotonic() < deadline:
            gc.collect()
            await asyncio.sleep(0.02)
        left.extend(f"task {task.get_name()}: {task.get_coro()!r}" for task in remaining)

    item.obj = watched  # type: ignore[attr-defined]
