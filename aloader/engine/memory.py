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

    Where batches are large, a lean budget keeps peak memory down: `lean_bytes`, or what `lean_batches` of the largest
    batch so far take, if that is more; never more than the limit.
    """

    __slots__ = ("_lean_batches", "_lean_bytes", "_most", "allowance", "limit", "reserved", "waiting")

    def __init__(self, limit: int, allowance: int, lean_bytes: int | None = None, lean_batches: int = 0) -> None:
        self._most = limit
        self._lean_bytes = limit if lean_bytes is None else lean_bytes
        self._lean_batches = lean_batches
        self.limit = min(limit, self._lean_bytes)
        self.allowance = allowance  # what a ticket is given with its assignment: the latest batch's size
        self.reserved = 0
        self.waiting: list[int] = []

    def learn(self, nbytes: int) -> None:
        """A batch takes `nbytes`."""
        lean = nbytes * self._lean_batches + nbytes // 2  # half a batch for tickets of unknown size
        if self.limit < self._most and lean > self.limit:
            self.limit = min(self._most, lean)

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
