"""The bounds of one epoch, as the dispatcher is given them."""

from __future__ import annotations

from dataclasses import dataclass

from aloader import options


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """What one epoch may use. For samplers that must not be drawn ahead, `window` equals `narrow_window`."""

    slots: int  #: workers
    credit: int  #: tickets one of them may hold
    window: int  #: tickets drawn and not consumed, where batches are small
    narrow_window: int  #: the same where they are large, or of unknown size
    memory_limit: int  #: bytes reserved for tickets that are assigned and not consumed
    in_order: bool = True
    lean_bytes: int | None = None  #: reserved only as far as this, or `slots + 1` batches of the largest size; no bound
    wide_window_bytes: int = options.WIDE_WINDOW_BYTES
    first_allowance: int = options.FIRST_ALLOWANCE
    max_restarts: int = options.MAX_WORKER_RESTARTS  #: lost workers that are replaced
    lifetime: int = 0  #: tickets after which a worker is replaced; 0: it is not
    tolerant: bool = False  #: a ticket can do without a sample that ends workers
    first: int = 0  #: the number of the first ticket: an epoch may go on where another left off
    first_slot: int = 0  #: whose it is
    far_window: int = 0  #: drawn and not consumed where some are blocked by one that is late; 0: no more then either
    interchangeable: bool = False  #: tickets say nothing but "the next batch of yours": an iterable dataset

    def __post_init__(self) -> None:
        assert self.slots >= 1, "without slots nothing can be assigned"
        assert self.credit >= 1, "without credit nothing can be assigned"
        assert 0 <= self.first_slot < self.slots, "the first ticket is some slot's"
        assert 1 <= self.narrow_window <= self.window, "the narrow window is the smaller one, and not empty"
