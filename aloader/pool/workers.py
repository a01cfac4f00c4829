"""One worker process as the parent knows it, what comes from it, and what it has served. Nothing waits here."""

from __future__ import annotations

import time
from typing import Any

from aloader.channel.leases import Mappings
from aloader.channel.link import Link
from aloader.channel.messages import Batch
from aloader.channel.payload import unpack
from aloader.channel.status import StatusPage
from aloader.errors import SampleTimeout
from aloader.pool.inquiry import PageInquiry
from aloader.pool.starter import Exit


class Arrived:
    """A batch in shared memory, not unpickled yet. Dropping it ends its leases."""

    __slots__ = ("body", "left_out", "mark", "nbytes", "owners")

    def __init__(self, mappings: Mappings, message: Batch) -> None:
        lease = mappings.lease
        batch = message.epoch, message.seq, time.monotonic()
        self.owners = [lease(place, batch) for place in message.leaves]
        self.nbytes = sum(place.nbytes for place in message.leaves)
        self.body: Any = message.body
        if not isinstance(message.body, bytes):
            self.body = lease(message.body, batch)
            self.nbytes += message.body.nbytes
        self.mark = message.mark
        self.left_out = message.left_out

    def unpack(self) -> Any:
        """The batch, its large leaves on the memory that the worker wrote."""
        batch = unpack(self.body, self.owners)
        self.body, self.owners = b"", []  # not before: if that was interrupted, it is called again
        return batch


class Worker:
    """One process: its place, its link, and its memory as seen from here."""

    def __init__(self, slot: int, generation: int, key: int, link: Link, page: StatusPage) -> None:
        self.slot = slot
        self.generation = generation
        self.key = key
        self.link = link
        self.page = page
        self.mappings = Mappings(link.release)
        self.pid = 0  # known when it is ready
        self.ending = False
        self.exit: Exit | None = None  # how it went, once that is reported
        self.fault: OSError | None = None  # why nothing more can be read from it
        self.stuck: SampleTimeout | None = None  # why it is killed, if it is for that
        self.requested = False  # the user wants another one in its place
        self.served = 0  # tickets that it has been given
        self.waits_to_write = False
        self.states = b""  # of its generators, when it was started; none: as they are seeded
        self.answered = -1, -1  # epoch and seq of the last ticket

    @property
    def noted(self) -> bytes:
        """The states of its generators after the last ticket that it has answered."""
        return self.page.noted(*self.answered) or self.states

    def inquire(self, epoch: int, seq: int) -> PageInquiry:
        """Ask where it stands with a ticket."""
        return PageInquiry(self.page, epoch, seq)

    def give_back(self, message: Batch) -> None:
        """Nobody wants this batch: its memory is the worker's again."""
        for place in message.leaves:
            self.mappings.give_back(place)
        if not isinstance(message.body, bytes):
            self.mappings.give_back(message.body)


def close_all(workers: dict[int, Worker]) -> None:
    """Their crew has been dropped, or the program ends: nothing is said to them, the starter ends them."""
    for worker in workers.values():
        worker.link.close()
        worker.mappings.close()
