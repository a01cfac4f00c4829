"""The server for ordinary datasets: one ticket after the other, no event loop, no thread, no task.

It runs outside any event loop on purpose: a dataset whose `__getitem__` calls `asyncio.run` works in torch's loader.
If an awaitable comes back all the same, the rest is handed to the concurrent server.
"""

from __future__ import annotations

import time
from typing import Any

from aloader.channel.messages import Ticket
from aloader.channel.status import Doing
from aloader.worker.awaitables import has_awaitables
from aloader.worker.bench import Bench, Clock
from aloader.worker.faulty import Losses
from aloader.worker.generators import Seeding


class TurnsAsync(Exception):  # noqa: N818
    """The dataset returned awaitables: `ticket` has begun, and `fetched` is what is left of it."""

    def __init__(
        self, ticket: Ticket, fetched: Any, seeding: Seeding | None = None, losses: Losses | None = None
    ) -> None:
        super().__init__()
        self.ticket = ticket
        self.fetched = fetched
        self.seeding = seeding
        self.losses = losses


def serve(bench: Bench) -> None:
    """Work until told to stop. Raises `TurnsAsync`."""
    while True:
        bench.receive()
        while not bench.tickets and not bench.stopped:
            bench.page.write(Doing.IDLE)
            bench.link.flush()
            bench.link.wait()
            bench.receive()
        if bench.stopped:
            return
        _work(bench, bench.tickets.popleft())
        bench.link.flush()


def _work(bench: Bench, ticket: Ticket) -> None:
    try:
        if bench.broken is not None:
            raise bench.broken
        bench.obey()
        clock = Clock(time.perf_counter())
        bench.page.write(Doing.FETCHING, ticket.epoch, ticket.seq)
        seeding = bench.seeding(ticket)
        losses = bench.losses(ticket, seeding)
        samples = bench.fetch(ticket, clock, seeding, losses)
        if has_awaitables(samples):
            raise TurnsAsync(ticket, samples, seeding, losses)
        if losses is not None:
            samples = losses.settled(samples, clock.mark)
        clock.fetched = time.perf_counter()
        need = bench.need_before(samples)
        if need > ticket.allowance and not _wait_for_memory(bench, ticket, need):
            return
        if need:
            bench.receive()  # leases that have ended since: their memory is used again, and no new one touched
        collated = bench.collate(ticket, samples, need, seeding)
        try:
            more = collated.missing + need
            if more > max(ticket.allowance, need) and not _wait_for_memory(bench, ticket, more):
                return
            _note(bench, ticket)
            bench.send(ticket, collated, clock, losses)
        finally:
            bench.drop(collated)
    except TurnsAsync:
        raise
    except BaseException as error:
        _note(bench, ticket)
        bench.fail(ticket, error)


def _note(bench: Bench, ticket: Ticket) -> None:
    """Note where the generators are. There is room for two such notes: the answers to all tickets before must be on
    their way, or a parent that has read little of them would find none that it knows."""
    states = bench.drawn(ticket)
    if states is None:
        return
    while bench.link.pending and not bench.stopped:
        bench.link.wait()
        bench.receive()
        bench.link.flush()
    bench.page.note(ticket.epoch, ticket.seq, states.packed())


def _wait_for_memory(bench: Bench, ticket: Ticket, nbytes: int) -> bool:
    """Wait for the grant. False if nobody wants the batch any more."""
    bench.ask(ticket, nbytes)
    bench.link.flush()
    while not bench.granted(ticket):
        bench.link.wait()
        bench.receive()
        bench.link.flush()
    return not bench.stopped and ticket.epoch > bench.epoch_over
