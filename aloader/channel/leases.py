"""A worker's arena as the parent sees it: mapped once, and one lease for every leaf that anybody still looks at.

The owner of a leaf is an array made **directly on the mapping** (numpy collapses `.base`: a slice of a slice would not
keep the middle one alive), and a weak reference to it tells when the last view, slice, `.numpy()` or autograd node
that used it has died. That happens in any thread and in the middle of any code, so the callback only hands over.
"""

from __future__ import annotations

import mmap
import os
import select
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from aloader.channel import shared
from aloader.channel.arena import Place
from aloader.channel.roles import PageKeeper


class Fork:
    """A fork of the user's program, which has the batches that there were: no byte of them may change while it lives.

    end: of a pipe whose other end the fork has, and all its forks; -1 where there was none to be had. A program that is
    executed in it has neither.
    """

    def __init__(self, end: int) -> None:
        self._end = end
        self._gone = False
        #: Once: the number may be another's afterwards.
        self.close = weakref.finalize(self, os.close, end) if end >= 0 else tuple

    @property
    def lives(self) -> bool:
        """Whether it, or one of its own, is still there."""
        if not self._gone and self._end >= 0:
            poll = select.poll()
            poll.register(self._end, 0)
            self._gone = bool(poll.poll(0))
        return not self._gone


class Lease(weakref.ref[np.ndarray]):
    """A weak reference to the owner that knows which block it holds, and whose: the epoch and seq of the batch, and
    when that arrived (the monotonic clock). `forks`: of this program, that have it too."""

    __slots__ = ("batch", "forks", "place")
    place: Place
    batch: tuple[int, int, float]
    forks: tuple[Fork, ...]


class Kept(mmap.mmap):
    """A mapping whose keeper is told before it goes, whoever lets it go: closed, or dropped with its last view.

    Closing it may take long. A weak reference would tell too late: an mmap unmaps its memory before it clears those.
    """

    keeper: PageKeeper | None = None

    def close(self) -> None:
        """Unmap it; BufferError if somebody still looks at it."""
        if self.keeper is not None and not self.closed:
            self.keeper.unmapping(self)
        super().close()

    def __del__(self) -> None:
        if self.keeper is not None and not self.closed:
            self.keeper.dropped(self)


class Mappings:
    """The segments of one worker process, and the leases on them.

    `release(segment, offset)` is called from any thread when a lease has ended, and must not block. `pages` hears of
    segments that are mapped from now on.
    """

    def __init__(self, release: Callable[[int, int], None], pages: PageKeeper | None = None) -> None:
        self.pages = pages
        self._release = release
        self._segments: dict[int, mmap.mmap] = {}
        self._leases: dict[tuple[int, int], Lease] = {}
        self._withheld: deque[Lease] = deque()  # they have ended here, and forks have the same memory
        self._pid = os.getpid()
        self._closed = False
        self.nbytes = 0  # of all segments
        self._on_end = _ending(weakref.ref(self))

    def add(self, number: int, nbytes: int, fd: int) -> None:
        """Map a new segment; closes `fd`."""
        try:
            self._segments[number] = self._map(fd, nbytes)
        finally:
            os.close(fd)
        self.nbytes += nbytes

    def _map(self, fd: int, nbytes: int) -> mmap.mmap:
        if self.pages is None:
            return shared.attach(fd, nbytes)
        memory = shared.attach_as(Kept, fd, nbytes, mmap.MAP_SHARED)
        memory.keeper = self.pages
        self.pages.mapped(memory, fd)
        return memory

    def lease(self, place: Place, batch: tuple[int, int, float] = (-1, -1, 0.0)) -> np.ndarray:
        """The leaf's owner: when it dies, the block goes back to the worker. `batch`: see `Lease`."""
        owner = np.frombuffer(self._segments[place.segment], np.uint8, place.nbytes, place.offset)
        lease = Lease(owner, self._on_end)
        lease.place = place
        lease.batch = batch
        lease.forks = ()
        if self._withheld:
            self._look_for_forks()
        self._leases[place.segment, place.offset] = lease
        return owner

    def copy(self, place: Place) -> bytes:
        """The bytes at `place`, whose block goes back to the worker at once."""
        data = self._segments[place.segment][place.offset : place.offset + place.nbytes]
        self.give_back(place)
        return data

    def give_back(self, place: Place) -> None:
        """Return a block that nobody has looked at."""
        if not self._closed:
            self._release(place.segment, place.offset)

    def retire(self, number: int) -> mmap.mmap:
        """Forget a segment without leases. The caller closes what it gets, off the loop: unmapping takes time."""
        memory = self._segments.pop(number)
        self.nbytes -= len(memory)
        return memory

    def close(self) -> list[mmap.mmap]:
        """The worker is gone: leases that still live keep their memory, and their end is told to nobody.

        Returns the mappings without leases, for the caller to close off the loop.
        """
        self._closed = True
        held = {segment for segment, _ in list(self._leases)}
        idle = [memory for number, memory in self._segments.items() if number not in held]
        self._segments.clear()
        return idle

    def shared_with(self, fork: Fork) -> None:
        """This program has been forked: what is leased now is not given back before that has gone."""
        for lease in list(self._leases.values()):
            lease.forks = *(other for other in lease.forks if other is not fork and other.lives), fork

    def _look_for_forks(self) -> None:
        for _ in range(len(self._withheld)):
            self._give_back_lease(self._withheld.popleft())

    def _give_back_lease(self, lease: Lease) -> None:
        if any(fork.lives for fork in lease.forks):
            self._withheld.append(lease)
        else:
            self._release(lease.place.segment, lease.place.offset)

    @property
    def leases(self) -> int:
        """Leaves that somebody still looks at."""
        return len(self._leases)

    def held(self) -> list[Lease]:
        """The leases, in no order."""
        return list(self._leases.values())

    @property
    def leased_bytes(self) -> int:
        """Their bytes."""
        return sum(lease.place.nbytes for lease in list(self._leases.values()))

    def _ended(self, lease: Lease) -> None:
        place = lease.place
        self._leases.pop((place.segment, place.offset), None)
        if not self._closed and os.getpid() == self._pid:  # in a fork of the user's, the parent still has its own
            self._give_back_lease(lease)


def _ending(book: weakref.ref[Mappings]) -> Callable[[weakref.ref[np.ndarray]], None]:
    """The callback of all leases of a book: holds the book weakly, so that a dropped loader is dropped."""

    def ended(lease: weakref.ref[np.ndarray]) -> None:
        mappings = book()
        if mappings is not None:
            mappings._ended(lease)  # type: ignore[arg-type]

    return ended
