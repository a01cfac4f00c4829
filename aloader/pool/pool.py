"""`WorkerPool`: owns the template (or a multiprocessing context) and every process that comes from it.

The processes of one iterator are a `Crew`. A loader makes a pool of its own. Nothing starts in the constructor.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import select
import sys
import threading
import time
import warnings
import weakref
from multiprocessing.context import BaseContext
from typing import Any

from aloader import options
from aloader.channel import flags
from aloader.channel.job import Carried, Job
from aloader.channel.leases import Mappings
from aloader.channel.leaves import OnlyInheritedError
from aloader.channel.roles import Who
from aloader.errors import IN_A_FORK, LoaderClosed
from aloader.pool import advice
from aloader.pool.crew import Crew
from aloader.pool.forks import tell_of_forks
from aloader.pool.seats import Seats
from aloader.pool.starter import ContextStarter, Loaded, Starter
from aloader.pool.template import TemplateStarter
from aloader.pool.threads import in_thread

NO_WORKERS = (
    "worker processes are not available on Windows (the channel needs AF_UNIX socket pairs that pass descriptors): use "
    "num_workers=0, which overlaps an async dataset's I/O all the same"
)


class Installed:
    """What a loader's workers are started with at present: kept to see whether the next epoch's is the same."""

    def __init__(self) -> None:
        self.carried: Carried | None = None
        self.loaded: Loaded | None = None
        self._ended = False

    def end(self) -> None:
        """The loader has been closed, and whoever keeps an error of that time keeps this: let the stage go."""
        self._ended = True
        if self.loaded is not None:
            self.loaded.users.discard(self)

    def use(self, carried: Carried, loaded: Loaded) -> None:
        """Workers are started with this from now on. The thread that prepares an epoch may come after the end."""
        if self.loaded is not None:
            self.loaded.users.discard(self)
        self.carried, self.loaded = carried, loaded
        loaded.users.add(self)
        if self._ended:
            self.end()


class WorkerPool:
    """Up to `num_workers` worker processes at once, which several loaders share; and what these are forked from.

    Give it to loaders as `pool=`: their workers come from one template, and wait for their turn when all seats are
    taken. A loader without `pool=` has a pool of its own. Nothing starts in the constructor, or before it is needed.

    Use it in one process, from one thread (or event loop) at a time. `async with` or `with` end its processes at a
    certain point, and let datasets leave their `async with` first. More than `num_workers` are started only where every
    process that is there waits for a consumer of its own, and a consumer waits for one that is not.
    """

    def __init__(self, num_workers: int, *, multiprocessing_context: BaseContext | str | None = None) -> None:
        if not self.available():
            raise RuntimeError(NO_WORKERS)
        if num_workers < 1:
            raise ValueError(f"num_workers of a pool should be a positive integer, but got num_workers={num_workers!r}")
        self.num_workers = num_workers
        self.seats = Seats(num_workers)
        self.loaders: weakref.WeakSet[Any] = weakref.WeakSet()  # which share it
        context = multiprocessing_context
        self._context = multiprocessing.get_context(context) if isinstance(context, str) else context
        self._starter: Starter | None = None
        self._installing = threading.Lock()
        self._keys = itertools.count()
        self._owners: dict[int, Crew] = {}  # of every process that has not been reported gone
        self._crews: weakref.WeakSet[Crew] = weakref.WeakSet()
        self._advised = False
        self._closed = False
        self._pid = os.getpid()
        self._end: weakref.finalize[[Starter, int], WorkerPool] | None = None

    @staticmethod
    def available() -> bool:
        """Whether worker processes can be had on this platform."""
        return sys.platform != "win32"

    def __reduce__(self) -> Any:
        raise TypeError("a WorkerPool belongs to its process and cannot be pickled: make one there")

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._starter is not None else "not started"
        return f"<WorkerPool of {self.num_workers}, {state}, {sum(c.alive for c in self._crews)} processes>"

    # -- starting: each step can be taken on the loop or, where it says so, in a thread -----------------------------

    def pickle(self, job: Job, context: bytes) -> Carried | None:
        """The job as it will be carried; None where a context takes it as it is. In the caller's thread."""
        self._check_open()
        if not self._start().carries:
            return None
        began = time.perf_counter()
        try:
            carried = Carried(job, context, flags.snapshot())
        except OnlyInheritedError as error:
            if not self._fork_instead():
                raise
            warnings.warn(
                f"{error} Until then, the workers of this loader are forks of this program, as torch's are: "
                "what it has of threads, event loops and locks may trouble them.",
                RuntimeWarning,
                stacklevel=4,
            )
            return None
        found = [*advice.on_weight(job, carried, time.perf_counter() - began)]
        found += [] if self._advised else advice.on_what_stays_here(job)
        self._advised = True
        for text in found:
            warnings.warn(text, UserWarning, stacklevel=4)
        return carried

    def _fork_instead(self) -> bool:
        """Start workers as forks of this process from now on. False where that is not this pool's to decide."""
        if self.seats.count is not None or self._owners or not sys.platform.startswith("linux"):
            return False
        if self._end is not None:
            threading.Thread(target=self._end, name="aloader-bury").start()  # it waits for the template to go
        self._starter = self._end = None
        self._context = multiprocessing.get_context("fork")
        return True

    def open(self) -> None:
        """Start the template. Takes milliseconds: in a thread."""
        self._start().open()

    def install(self, crew: Crew, job: Job, carried: Carried | None, installed: Installed) -> None:
        """Make the workers that this crew launches have this job. Copies or compares it: in a thread."""
        if carried is None:
            crew.use(self._start().load(job, None))
            return
        with self._installing:  # what another iterator compares itself with must not be let go meanwhile
            if installed.carried is not None and installed.loaded is not None and carried.same_as(installed.carried):
                crew.use(installed.loaded, flags.changes(installed.carried.flags, carried.flags))
                return
            carried.write()
            carried.forget()
            loaded = self._start().load(job, carried)
            installed.use(carried, loaded)
            crew.use(loaded)

    def crew(self, who: Who) -> Crew:
        """Workers for one iterator, none of them launched yet."""
        self._check_open()
        crew = Crew(self, who)
        self._crews.add(crew)
        return crew

    # -- what crews need -------------------------------------------------------------------------------------------

    @property
    def starter(self) -> Starter:
        """Where processes come from."""
        return self._start()

    def new_key(self, crew: Crew) -> int:
        """The key of a process that `crew` is about to start."""
        key = next(self._keys)
        self._owners[key] = crew
        return key

    def insist(self, crew: Crew) -> None:
        """Somebody waits for a slot of this crew that has no process."""
        seated = [one for one in self._crews if one.alive]
        for one in seated:
            one.read_all()  # the loop of a plain `for` does not read while it waits for somebody else
        self.seats.insist(crew, seated)

    def read_reports(self) -> None:
        """Take in which processes have gone, and tell the crews that they belonged to."""
        for exit in self._start().reports():
            crew = self._owners.pop(exit.key, None)
            if crew is not None:
                crew.on_exit(exit)
                self.seats.give_back()
        for crew in list(self._crews):
            crew.after_reports()

    # -- ending ----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` has been called, or this is a fork of the process that the pool belongs to."""
        return self._closed

    @property
    def elsewhere(self) -> bool:
        """Whether this is a fork of the process that the pool was made in."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """End every process and wait for it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for crew in list(self._crews):
            crew.end()
        self._wait_gone()
        self.drop()

    def drop(self) -> None:
        """End every process at once: nobody will use them any more."""
        self._closed = True
        for crew in list(self._crews):
            crew.end_with_pool()
            crew.detach()
        self._owners.clear()
        if self._end is not None:
            self._end()

    def _wait_gone(self) -> None:
        """Give the workers time to leave their datasets' `async with`."""
        if self._starter is None:
            return
        poll = select.poll()
        for fd in self._starter.watched().values():
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + 2 * options.CLOSE_GRACE
        while any(crew.alive for crew in self._crews) and time.monotonic() < deadline:
            poll.poll(20)
            self.read_reports()

    async def aclose(self) -> None:
        """As `close`, on the loop that its loaders are iterated on: whoever waits for a batch gets `LoaderClosed`."""
        for crew in list(self._crews):
            crew.give_up()
            crew.end()
            crew.detach()
        await in_thread(self.close)

    async def __aenter__(self) -> WorkerPool:
        self._check_open()
        try:
            await in_thread(self.open)
        except BaseException:  # cancelled, say: nobody else would end what has been started
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __enter__(self) -> WorkerPool:
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------------------

    def _start(self) -> Starter:
        if self._starter is None:
            self._starter = self._make_starter()
            self._end = weakref.finalize(self, _close_starter, self._starter, os.getpid())
            tell_of_forks(weakref.ref(self))
        return self._starter

    def _make_starter(self) -> Starter:
        if self._context is not None:
            return ContextStarter(self._context)
        if not sys.platform.startswith("linux"):
            return ContextStarter(multiprocessing.get_context("spawn"))
        return TemplateStarter()

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosed(IN_A_FORK if self.elsewhere else "this pool has been closed; make a new one")

    def mappings(self) -> list[Mappings]:
        """Of all workers that there are."""
        return [worker.mappings for crew in list(self._crews) for worker in list(crew._by_key.values())]

    def forked(self) -> None:
        """In a fork of the user's program: everything here belongs to the parent."""
        self._closed = True
        for crew in list(self._crews):
            crew.forked()
        if self._end is not None:
            self._end.detach()
        if self._starter is not None:  # also one that another thread was just closing
            self._starter.forked()


def _close_starter(starter: Starter, pid: int) -> None:
    if os.getpid() == pid:
        starter.close()
