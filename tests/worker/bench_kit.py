"""A worker's server in this process: its bench at one end of a socket pair, and a parent's link at the other.

An inline server runs in a thread of the test, a concurrent one as a task of it: there is no process, so what a worker
says and when can be seen message by message.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils import collate

from aloader import options
from aloader.channel.faults import unpack_fault
from aloader.channel.job import Job
from aloader.channel.leases import Mappings
from aloader.channel.link import Link, pair
from aloader.channel.messages import Batch, Failure, Message, NewSegment, Retire, Start, Stop, Ticket, Unmapped
from aloader.channel.payload import unpack
from aloader.channel.status import StatusPage
from aloader.worker.bench import Bench

#: Seconds after which a test that waits for a message fails.
PATIENCE = 5.0


class Parent:
    """What the parent sees of one worker. `said` has everything that has arrived."""

    def __init__(self, link: Link, page: StatusPage) -> None:
        self.link = link
        self.page = page
        self.mappings = Mappings(link.release)
        self.said: list[Message] = []
        self._taken = 0

    def tell(self, *messages: Message) -> None:
        """Say something to the worker."""
        for message in messages:
            self.link.send(message)
        assert self.link.flush()

    def ask(self, *indices: Any, epoch: int = 0, first: int = 0, allowance: int = options.GIB) -> None:
        """Give it a ticket for each of these."""
        self.tell(*(Ticket(0, epoch, first + n, what, allowance) for n, what in enumerate(indices)))

    def receive(self) -> None:
        """Take in what has arrived."""
        for message in self.link.receive(everything=True):
            if isinstance(message, NewSegment):
                self.mappings.add(*message)
            elif isinstance(message, Retire):
                self.mappings.retire(message.segment).close()
                self.tell(Unmapped(message.segment))
            else:
                self.said.append(message)

    def next(self) -> Message:
        """The next thing that it says, memory apart. Waits in this thread."""
        while len(self.said) == self._taken:
            assert self.link.wait(PATIENCE), "the worker says nothing"
            self.receive()
            assert not self.link.ended or len(self.said) > self._taken, "the worker has hung up"
        self._taken += 1
        return self.said[self._taken - 1]

    async def anext(self) -> Message:
        """The same on a loop."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.link.fileno(), readable.set)
        try:
            async with asyncio.timeout(PATIENCE):
                while len(self.said) == self._taken:
                    await readable.wait()
                    readable.clear()
                    self.receive()
        finally:
            loop.remove_reader(self.link.fileno())
        self._taken += 1
        return self.said[self._taken - 1]

    def open(self, message: Message) -> Any:
        """The batch in a message; raises the error in it."""
        if isinstance(message, Failure):
            raise unpack_fault(message.fault)
        assert isinstance(message, Batch), message
        body = message.body if isinstance(message.body, bytes) else self.mappings.lease(message.body)
        return unpack(body, [self.mappings.lease(place) for place in message.leaves])


@contextmanager
def bench_of(
    dataset: Any,
    collate_fn: Callable[[Any], Any] = default_collate,
    *,
    concurrency: int = 8,
    threads: bool = False,
    batched: bool = True,
) -> Iterator[tuple[Bench, Parent]]:
    """A bench with this job, and its parent. Torch's collate table is as it was afterwards."""
    table = dict(collate.default_collate_fn_map)
    mine, theirs = pair()
    page, fd = StatusPage.create()
    parent = Parent(Link(mine), page)
    bench = Bench(Link(theirs), StatusPage(fd), Start(0, 3, 0, 4, 0, concurrency, threads, batched, b""))
    os.close(fd)
    bench.take(Job(dataset, collate_fn, None, {}))
    try:
        yield bench, parent
    finally:
        bench.link.close()
        parent.link.close()
        for memory in parent.mappings.close():
            memory.close()
        bench.page.close()
        page.close()
        collate.default_collate_fn_map.clear()
        collate.default_collate_fn_map.update(table)


@contextmanager
def in_a_thread(serve: Callable[[], None], parent: Parent) -> Iterator[list[BaseException]]:
    """Run an inline server beside the test, which ends with it. What it raised is in the list."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            serve()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        parent.tell(Stop())
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it did not stop"
