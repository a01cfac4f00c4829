"""The byte budget of what workers collate and what waits for the user: sums and a queue, no policy.

Bytes are *reserved* for a ticket when it is assigned (its allowance), raised when its worker asks, corrected when its
batch arrives, and released when that is consumed, discarded or failed. Tickets for which there is not enough wait here;
they are served lowest seq first, and nobody overtakes: what a later batch takes, an earlier one would wait for.
"""

from __future__ import annotations

from heapq import heappush

from aloader.engine.slots import Ticket


class Memory:
    """What is reserved of `limit`, and the seqs that wait for more (a heap).

    A seq in `waiting` whose ticket `wants` nothing any more is stale, and dropped when it comes up.
    """

    __slots__ = ("allowance", "limit", "reserved", "waiting")

    def __init__(self, limit: int, allowance: int) -> None:
        self.limit = limit
        self.allowance = allowance  # what a ticket is given with its assignment: the latest batch's size
        self.reserved = 0
        self.waiting: list[int] = []

    def fits(self, ticket: Ticket, nbytes: int) -> bool:
        return self.reserved - ticket.reserved + nbytes <= self.limit

    def reserve(self, ticket: Ticket, nbytes: int) -> None:
        """Let `ticket` have `nbytes` in all, whether they fit or not."""
        self.reserved += nbytes - ticket.reserved
        ticket.reserved = nbytes

    def wanted(self, ticket: Ticket) -> int:
        """What a waiting ticket waits for: to be assigned, the allowance of today; for its worker, what that asked."""
        assert ticket.wants is not None
        return self.allowance if ticket.slot is None else ticket.wants

    def ask(self, ticket: Ticket, nbytes: int) -> bool:
        """Reserve `nbytes` in all for `ticket` if they fit and nobody waits; else let it wait."""
        if not self.waiting and self.fits(ticket, nbytes):
            self.reserve(ticket, nbytes)
            return True
        ticket.wants = nbytes
        heappush(self.waiting, ticket.seq)
        return False
