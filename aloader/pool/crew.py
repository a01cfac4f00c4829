"""The workers of one iterator: processes, links and memory by slot. Acts and listens; decides nothing.

A crew is driven from outside: a `Watcher` says when a descriptor is readable, and what the workers say goes to a
`Listener`. While nobody iterates (persistent workers between epochs) it is detached, and what arrives waits.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from aloader import options
from aloader.channel.messages import (
    Batch,
    Call,
    EpochOver,
    Failure,
    Message,
    Need,
    NewSegment,
    Nothing,
    Notice,
    RanDry,
    Ready,
    Retire,
    Stop,
    Unmapped,
)
from aloader.channel.roles import Listener, PageKeeper, Watcher, Who
from aloader.pool.launching import Launcher
from aloader.pool.links import Links
from aloader.pool.oom import OomWatch
from aloader.pool.reports import Reports
from aloader.pool.seats import Seats
from aloader.pool.starter import Exit, Loaded, Starter
from aloader.pool.threads import dispose
from aloader.pool.workers import Arrived, Worker, close_all


class Host(Protocol):
    """What a crew needs of its pool, which other crews use at the same time."""

    @property
    def starter(self) -> Starter: ...
    @property
    def seats(self) -> Seats: ...
    def insist(self, crew: Crew) -> None: ...
    def new_key(self, crew: Crew) -> int: ...
    def read_reports(self) -> None: ...


class Crew:
    """See the top of this file."""

    def __init__(self, host: Host, who: Who) -> None:
        self.who = who
        self.workers: dict[int, Worker] = {}  # by slot
        self.latest: dict[int, Worker] = {}  # the same, and not forgotten when they have gone
        self.ended = False
        self.listener: Listener | None = None
        self._host = host
        self.pages: PageKeeper | None = None  # who page-locks the memory of workers that are started from now on
        self.launcher = Launcher(host, who, self)
        self._by_key: dict[int, Worker] = {}  # also those that are ending
        self.oom = OomWatch()
        self.when_gone: Callable[[], object] | None = None  # called when a process has gone
        self._watcher: Watcher | None = None
        self._links = Links(self.read)
        self._reports = Reports(host.read_reports)
        weakref.finalize(self, close_all, self._by_key)

    # -- starting and ending ---------------------------------------------------------------------------------------

    def use(self, loaded: Loaded, flags: bytes = b"") -> None:
        """Start workers with this job, and these flags of the parent's modules."""
        self.launcher.use(loaded, flags)

    def launch(self, slot: int, generation: int) -> None:
        """Start a worker, as soon as the pool has a seat for it. It says that it is ready by itself."""
        if self._host.seats.take(self, slot, generation):
            try:
                self.launch_now(slot, generation)
            except BaseException:
                self._host.seats.give_back()
                raise

    def launch_now(self, slot: int, generation: int) -> None:
        """Start a worker in a seat that it has."""
        worker = self.launcher.launch(slot, generation)
        self.workers[slot] = self.latest[slot] = self._by_key[worker.key] = worker
        if self._watcher is not None:
            self._links.watch(self._watcher, worker)
            self._watch_starter()
        self.flush()

    def prepare(self, most: int) -> None:
        """Have a process ready that will be wanted soon, unless so many are. (On a shared pool it would take somebody's
        seat; and where workers are not forked from a template, as long as it takes to start one.)"""
        if self._host.seats.count is None and self._host.starter.carries:
            with contextlib.suppress(OSError):  # then it is started when it is wanted
                worker = self.launcher.prepare(most)
                if worker is not None:
                    self._by_key[worker.key] = worker
                    self._watch_starter()

    def replace(self, slot: int, generation: int) -> None:
        """Let the slot's process go, which has nothing to do, and have another one go on."""
        worker = self.workers.pop(slot)
        self._end(worker, options.CLOSE_GRACE)
        self.launch(slot, generation)

    def kill(self, slot: int) -> bool:
        """Kill the process of a slot: that it has gone will be reported. False if there is none."""
        worker = self.workers.get(slot)
        if worker is None:
            return False
        worker.requested = True
        self._host.starter.end(worker.key, 0.0)
        return True

    def end(self, grace: float = options.CLOSE_GRACE) -> None:
        """Tell every worker to stop, and have those killed that do not within `grace` seconds. Waits for nobody."""
        self._host.seats.forget(self)
        self.ended = True
        if self.pages is not None:
            self.pages.close()
        for worker in list(self.workers.values()):
            self._end(worker, grace)
        self.workers.clear()
        for spare in self.launcher.take_spares():
            self._end(spare, grace)
        self.launcher.drop()

    def _end(self, worker: Worker, grace: float) -> None:
        worker.ending = True
        with contextlib.suppress(OSError):
            worker.link.send(Stop())
            worker.link.flush()
        self._let_go(worker)
        self._host.starter.end(worker.key, grace)

    def _let_go(self, worker: Worker) -> None:
        """Nothing more is read from it or said to it."""
        if self._watcher is not None and not worker.link.closed:
            self._links.unwatch(self._watcher, worker)
        worker.link.close()
        dispose(worker.mappings.close())
        worker.page.close()

    @property
    def idle(self) -> bool:
        """Whether none of its processes has anything to do, nor is on its way in or out."""
        if any(worker.ending or not worker.pid for worker in self._by_key.values()):
            return False
        return self.listener is None or self.listener.idle

    @property
    def unseated(self) -> bool:
        """Whether a slot waits for a process of a shared pool."""
        return self._host.seats.waits(self)

    def insist(self) -> None:
        """Somebody waits for what only a slot without a process can make."""
        self._host.insist(self)

    def give_up(self) -> None:
        """The pool is being closed: let the consumer know."""
        if self.listener is not None:
            self.listener.close()
        if self._watcher is not None:
            self._watcher.wake()

    @property
    def ready(self) -> bool:
        """Whether any worker has said that it is ready."""
        return any(worker.pid for worker in self.workers.values())

    @property
    def undisturbed(self) -> float:
        """Seconds since the user was last in a worker's debugger: 0 while somebody is, infinity if nobody ever was."""
        left = max((worker.page.debugger_left for worker in self.workers.values()), default=0.0)
        return max(0.0, time.monotonic() - left) if left else math.inf

    @property
    def alive(self) -> int:
        """Processes of this crew that have not been reported gone."""
        return len(self._by_key)

    def end_with_pool(self) -> None:
        """Its processes are ended with the pool: that is meant."""
        for worker in self._by_key.values():
            worker.ending = True

    def forked(self) -> None:
        """In a fork of the user's program: close what was inherited, without a word to anybody."""
        self._watcher = None
        for worker in self._by_key.values():
            worker.ending = True
            worker.link.forked()
        self.workers.clear()

    # -- listening -------------------------------------------------------------------------------------------------

    def attach(self, watcher: Watcher, listener: Listener) -> None:
        """Be driven by `watcher` from now on, and tell `listener`."""
        self.detach()
        self._watcher, self.listener = watcher, listener
        for worker in self.workers.values():
            self._links.watch(self._watcher, worker)
        self._watch_starter()

    def detach(self, listener: Listener | None = None) -> None:
        """Nobody drives or listens any more; with a `listener`, if it is still that one."""
        if listener is not None and listener is not self.listener:
            return
        if self._watcher is not None:
            for worker in self.workers.values():
                self._links.unwatch(self._watcher, worker)
            self._reports.unwatch(self._watcher)
        self._watcher = self.listener = None

    def _watch_starter(self) -> None:
        if self._watcher is not None:
            self._reports.watch(self._watcher, self._host.starter)

    def read_all(self) -> None:
        """Take in whatever has arrived, without waiting: one system call where nothing has."""
        self._links.read()

    def read(self, worker: Worker, *, everything: bool = False) -> None:
        """Take in what a worker has said."""
        if worker.link.closed:
            return
        messages: deque[Message] = deque()
        try:
            messages = deque(worker.link.receive(everything=everything))
            while messages and not worker.link.closed:  # after its last batch it may be let go, whatever it says then
                self._on_message(worker, messages.popleft())
        except OSError as error:  # no descriptor, no memory left for what it has sent: it is of no use any more
            worker.fault = error.with_traceback(None)  # its frames know the crew, which would never be dropped
            worker.link.ended = True
        except BaseException:  # a signal's handler: what this message has been to the epoch is not known
            worker.link.give_up()
            raise
        finally:
            for message in messages:
                if isinstance(message, NewSegment):
                    os.close(message.fd)
        if worker.link.ended and not everything and not worker.link.closed:
            if self._watcher is not None:
                self._links.unwatch(self._watcher, worker)
            self._host.starter.end(worker.key, 0.0)  # it has hung up: if it is not dead yet, nobody can use it
        self.flush()

    def _on_message(self, worker: Worker, message: Message) -> None:
        listener = self.listener
        if isinstance(message, Batch | Failure | RanDry | Nothing):
            worker.answered = message.epoch, message.seq
        match message:
            case NewSegment(number, nbytes, fd):
                worker.mappings.add(number, nbytes, fd)
            case Retire(segment):
                memory = worker.mappings.retire(segment)
                dispose([memory], lambda: worker.link.send(Unmapped(segment)))
            case Ready(pid):
                worker.pid = pid
                if listener is not None:
                    listener.on_ready(worker)
            case Batch() if listener is not None and message.epoch == listener.number:
                arrived = Arrived(worker.mappings, message)
                seconds = message.fetch_seconds, message.collate_seconds
                listener.on_batch(worker, message.seq, arrived.nbytes, arrived, seconds)
            case Batch():
                worker.give_back(message)
            case Failure() if listener is not None and message.epoch == listener.number:
                listener.on_failure(worker, message.seq, message.fault)
            case Need() if listener is not None and message.epoch == listener.number:
                listener.on_need(worker, message.seq, message.nbytes)
            case RanDry() if listener is not None and message.epoch == listener.number:
                listener.on_dry(worker, message.seq, message.mark)
            case Nothing() if listener is not None and message.epoch == listener.number:
                listener.on_nothing(worker, message.seq, message.mark, message.left_out)
            case Notice(text):
                if listener is not None:
                    listener.on_notice(text)
            case Failure() | Need() | RanDry() | Nothing():
                pass  # of an epoch that nobody looks at any more
            case _:
                raise AssertionError(f"a worker said {message!r}")

    def on_exit(self, exit: Exit) -> None:
        """One of this crew's processes has gone."""
        worker = self._by_key.pop(exit.key)
        worker.exit = exit
        if self.when_gone is not None:
            self.when_gone()
        if worker.ending:
            return
        if self.launcher.forget(worker):
            self._let_go(worker)
            return
        self.read(worker, everything=True)  # the report may overtake its last words
        if worker.link.closed:
            return  # they were all that it had to say: another one has its place by now
        self.launcher.states[worker.slot] = worker.noted
        if self.workers.get(worker.slot) is worker:
            del self.workers[worker.slot]
        if self.listener is not None:
            self.listener.on_lost(worker, exit)
        self._let_go(worker)
        self.flush()

    def after_reports(self) -> None:
        """Processes have come or gone."""
        self._watch_starter()

    # -- talking ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what waits to be written; where a socket is full, go on when there is room."""
        for worker in self.workers.values():
            if not worker.link.pending and not worker.waits_to_write:
                continue
            full = not worker.link.flush()
            if full != worker.waits_to_write and self._watcher is not None:
                self._watcher.writing(worker.link.fileno(), self.flush if full else None)
                worker.waits_to_write = full

    def broadcast(self, call: bytes) -> None:
        """Have every worker make a call, and those that are started later with the same pickle of the dataset."""
        message = Call(self.who.dataset, call)
        self.launcher.call(message)
        for worker in self.workers.values():
            worker.link.send(message)
        self.flush()

    def epoch_over(self, epoch: int) -> None:
        """Tell the workers that nobody looks at this epoch any more. Who waits for a seat is asked for by the next."""
        self._host.seats.forget(self)
        for worker in self.workers.values():
            worker.link.send(EpochOver(self.who.dataset, epoch))
        self.flush()
