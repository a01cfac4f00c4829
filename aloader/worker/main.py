"""A worker process from its first message to its exit, however it was started."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import collate

from aloader import options
from aloader.channel import context, flags
from aloader.channel.job import Job, run_setup
from aloader.channel.link import Link
from aloader.channel.messages import Message, Ready, Start, Stop
from aloader.channel.status import STACKS_SIGNAL, TASKS_SIGNAL, Doing, StatusPage, adopt
from aloader.ranks import Ranks
from aloader.worker import concurrent, cuda, inline, last_words, seeds, tasks
from aloader.worker.bench import Bench, guarded
from aloader.worker.breakpoints import Breakpoints
from aloader.worker.heap import keep_what_is_freed
from aloader.worker.kinds import is_async

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop  # type: ignore[assignment]


def run(end: socket.socket, status: int, load: Callable[[], Job], *, carried: bool, settled: bytes = b"") -> None:
    """Serve the parent at the other side of `end` until it says stop or goes away.

    `load` gives the job. `carried`: this process is no fork of the parent's, so the context is taken over, unless it is
    `settled`: the one that was taken over before this process was forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.nice(options.WORKER_NICENESS)
    torch.set_num_threads(1)
    keep_what_is_freed()
    _name_thread("pt_data_worker")  # as profilers and `top -H` show torch's workers
    link, page = Link(end), adopt(status)
    last_words.keep(page)
    _answer_where_it_stands(page)
    os.register_at_fork(after_in_child=link.forked)  # a process of the user's must not keep the link open
    try:
        messages = _first_messages(link)
        start = messages.pop(0) if messages else Stop()
        if isinstance(start, Start):  # else it was a spare, which nobody has needed
            bench = Bench(link, page, start)
            bench.hear(messages)
            _work(bench, load, carried, settled)
    finally:
        link.close()


def _name_thread(name: str) -> None:
    call = getattr(torch.multiprocessing, "_set_thread_name", None)  # not before torch 2.5
    if call is not None:
        call(name)


def _work(bench: Bench, load: Callable[[], Job], carried: bool, settled: bytes) -> None:
    bench.broken = guarded(lambda: _set_up(bench, load, carried, settled))
    bench.page.write(Doing.IDLE)
    bench.link.send(Ready(os.getpid()))
    _serve(bench)
    bench.link.flush()


def _first_messages(link: Link) -> list[Message]:
    messages: list[Message] = []
    while not messages and not link.ended:
        link.wait()
        messages = link.receive()
    return messages


def _set_up(bench: Bench, load: Callable[[], Job], carried: bool, settled: bytes) -> None:
    start = bench.start
    Breakpoints(bench.page, start.slot).install()
    job = _taken_over(start, load, settled) if carried else load()
    if not carried and job.worker_setup is not None:
        run_setup(job.worker_setup)
    ranks = Ranks(start.rank, start.world_size)
    asked = seeds.become(start.slot, start.num_workers, start.base_seed, job.dataset, ranks=ranks)
    if start.iterable and start.num_workers > 1:
        bench.asked = asked
    if carried:
        adopt_main_classes()
        collate.default_collate_fn_map.update(job.collate_entries)
    if job.worker_init_fn is not None:
        job.worker_init_fn(start.slot)
    bench.begin_from(start.states)
    bench.take(job)


def _taken_over(start: Start, load: Callable[[], Job], settled: bytes) -> Job:
    """The job, in a process that looks like the parent."""
    if start.context == settled:
        cuda.refuse()
        job = load()
    else:
        context.apply(start.context)
        cuda.refuse()
        job = load()
        context.apply_after_loading(start.context)
    if start.flags:
        flags.follow(start.flags)
    return job


def _serve(bench: Bench) -> None:
    """Inline for ordinary datasets, on a loop for async ones and threads."""
    begun: inline.TurnsAsync | None = None
    if bench.broken is not None or not (bench.start.threads or is_async(bench.job.dataset)):
        try:
            inline.serve(bench)
            return
        except inline.TurnsAsync as turn:
            begun = turn
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        loop = runner.get_loop()
        if TASKS_SIGNAL is not None:
            loop.add_signal_handler(TASKS_SIGNAL, tasks.answer, loop, bench.page)
        runner.run(concurrent.serve(bench, begun))


def _answer_where_it_stands(page: StatusPage) -> None:
    """Dump all threads on a signal of the parent's, in C: also from a call that keeps the interpreter's lock."""
    if STACKS_SIGNAL is not None:
        faulthandler.register(STACKS_SIGNAL, file=page.fileno(), all_threads=True)
        page.can_be_signalled()


def adopt_main_classes() -> None:
    """Put the classes that were carried by value where their name says they are.

    An instance of a class of the user's script then pickles by reference, and comes back as the parent's own class.
    """
    from cloudpickle import cloudpickle

    main: Any = sys.modules["__main__"]
    for cls in list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS):
        if cls.__module__ == "__main__" and cls.__qualname__.isidentifier():
            setattr(main, cls.__name__, cls)
