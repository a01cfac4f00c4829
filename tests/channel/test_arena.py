"""The arena never lends a byte twice, takes back what both sides have let go, and gives back what it does not need."""

from __future__ import annotations

import errno
import gc
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aloader.channel import shared
from aloader.channel.arena import Arena, FreeList
from aloader.channel.leases import Mappings


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=80), st.integers(300, 2000))
def test_free_stretches_never_overlap_nor_leak(steps, size):
    free = FreeList(size)
    held: list[tuple[int, int]] = []
    for allocate, n in steps:
        if allocate:
            offset = free.allocate(n)
            if offset is None:
                taken = np.zeros(size, bool)
                for o, k in held:
                    taken[o : o + k] = True
                gaps = "".join("x" if t else "." for t in taken).split("x")
                assert max(map(len, gaps)) < n, "refused although a stretch was free"
                continue
            assert 0 <= offset <= size - n
            assert all(offset + n <= o or o + k <= offset for o, k in held)
            held.append((offset, n))
        elif held:
            free.release(*held.pop(n % len(held)))
        assert free.free_bytes == size - sum(k for _, k in held)
    for place in held:
        free.release(*place)
    assert free.empty
    assert free.allocate(size) == 0


class Border:
    """An arena and the parent's view of it, joined without processes."""

    def __init__(self, share: int = 0) -> None:
        self.released: list[tuple[int, int]] = []
        self.view = Mappings(lambda *place: self.released.append(place))
        self.retiring: list[int] = []
        self.arena = Arena(self.view.add, self.retiring.append, share)

    def settle(self) -> None:
        while self.released:
            self.arena.release(*self.released.pop())
        while self.retiring:
            number = self.retiring.pop()
            self.view.retire(number).close()
            self.arena.retired(number)


class ArenaMachine(RuleBasedStateMachine):
    """Batches are written, kept, looked at and dropped on both sides; every byte must stay what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.border = Border()
        self.count = 0
        self.parent: list[tuple[np.ndarray, int]] = []
        self.worker: list[tuple[np.ndarray, int]] = []

    @rule(sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=4), keep=st.booleans(), lend=st.booleans())
    def batch(self, sizes: list[int], keep: bool, lend: bool) -> None:
        self.border.arena.begin(sum(sizes) if keep else 0)
        for size in sizes:
            self.count += 1
            stamp = self.count % 251
            owner = self.border.arena.allocate(size)
            owner[:] = stamp
            if lend:
                place = self.border.arena.lease(owner.ctypes.data, size)
                assert place is not None
                assert self.border.arena.lease(owner.ctypes.data, size) is None, "leased twice"
                self.parent.append((self.border.view.lease(place), stamp))
            if keep:
                self.worker.append((owner, stamp))

    @precondition(lambda self: self.parent)
    @rule(n=st.integers(0, 1000), view=st.booleans())
    def parent_drops(self, n: int, view: bool) -> None:
        array, stamp = self.parent.pop(n % len(self.parent))
        if view:
            self.parent.append((array[:1][:1].view(np.int8), stamp))

    @precondition(lambda self: self.worker)
    @rule(n=st.integers(0, 1000))
    def worker_drops(self, n: int) -> None:
        self.worker.pop(n % len(self.worker))

    @rule()
    def settle(self) -> None:
        self.border.settle()

    @rule()
    def trim(self) -> None:
        self.border.settle()
        self.border.arena.trim()
        self.border.settle()

    @invariant()
    def bytes_are_what_they_were(self) -> None:
        for array, stamp in self.parent + self.worker:
            assert (array.view(np.uint8) == stamp).all()

    def teardown(self) -> None:
        self.parent.clear()
        self.worker.clear()
        gc.collect()
        self.border.settle()
        self.border.arena.begin(0)
        assert self.border.arena.live == 0
        assert self.border.view.leases == 0


ArenaMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestArenaMachine = ArenaMachine.TestCase


def test_a_block_of_an_earlier_ticket_is_not_lent_again():
    border = Border()
    border.arena.begin(0)
    kept = border.arena.allocate(100)
    border.arena.begin(0)
    assert border.arena.lease(kept.ctypes.data, 100) is None


def test_steady_use_recycles_the_same_memory():
    border = Border()
    for _ in range(500):
        border.arena.begin(1 << 20)
        owner = border.arena.allocate(1 << 20)
        lease = border.view.lease(border.arena.lease(owner.ctypes.data, 1 << 20))
        del owner, lease
        border.settle()
    assert border.arena.capacity <= 4 << 20


def test_steady_use_recycles_also_where_nobody_says_how_much_it_will_be():
    border = Border()
    data = memoryview(bytes(100_000))
    segments = []
    for ticket in range(20):
        border.arena.begin(0)
        if ticket % 2:
            border.arena.make_room(16 * data.nbytes)
        places = [border.arena.store(data) for _ in range(16)]
        held = [border.view.lease(place) for place in places]
        segments.append(border.arena._next_number)
        del held
        gc.collect()
        border.settle()
    assert len(set(segments[4:])) == 1


@given(st.lists(st.integers(0, 9), max_size=80))
def test_an_arena_is_at_most_twice_what_was_held_of_it_at_once(steps):
    """Of equal batches: a segment that is added doubles the arena, however much of it has gone back before."""
    nbytes = 1 << 16
    border = Border(share=2 * nbytes)
    held = []
    most = 0
    for step in steps:
        if step < 6 or not held:
            border.arena.begin(nbytes)
            owner = border.arena.allocate(nbytes)
            held.append(border.view.lease(border.arena.lease(owner.ctypes.data, nbytes)))
            del owner
            most = max(most, len(held))
        else:
            del held[step % len(held)]
            border.settle()
        assert border.arena.capacity <= 2 * most * nbytes


def test_memory_that_was_kept_goes_back_when_it_is_dropped():
    border = Border()
    kept = []
    for _ in range(64):
        border.arena.begin(1 << 20)
        owner = border.arena.allocate(1 << 20)
        kept.append(border.view.lease(border.arena.lease(owner.ctypes.data, 1 << 20)))
        del owner
    assert border.arena.capacity >= 64 << 20
    kept.clear()
    border.settle()
    border.arena.trim()
    border.settle()
    assert border.arena.capacity <= 8 << 20
    assert border.view.nbytes == border.arena.capacity


def test_a_lease_outlives_the_book_and_the_worker():
    border = Border()
    border.arena.begin(0)
    owner = border.arena.allocate(100_000)
    owner[:] = 7
    leaf = border.view.lease(border.arena.lease(owner.ctypes.data, 100_000))
    del owner
    assert border.view.close() == []
    del border
    gc.collect()
    assert (leaf == 7).all()


def test_blocks_begin_on_cache_lines():
    border = Border()
    border.arena.begin(0)
    assert all(border.arena.allocate(n).ctypes.data % 64 == 0 for n in (1, 63, 65, 70_001))


def test_memory_is_had_where_the_system_wants_it_never_to_be_executable(monkeypatch):
    """`vm.memfd_noexec=2`: what does not say so itself is refused."""

    def strict(name, flags, create=os.memfd_create):
        if not flags & 8:
            raise PermissionError(errno.EACCES, "memfd_noexec")
        return create(name, flags & ~8)  # which this kernel may not know

    monkeypatch.setattr(os, "memfd_create", strict)
    fd = shared.create(4096)
    assert os.fstat(fd).st_size == 4096
    os.close(fd)


@pytest.mark.parametrize("create", [shared.create, shared.create_portably])
def test_memory_has_no_name_and_cannot_be_resized(create):
    before = set(os.listdir("/dev/shm"))
    fd = create(8192)
    memory = shared.attach(fd, 8192)
    private = shared.attach(fd, 8192, private=True)
    memory[0] = 1
    private[1] = 2
    assert (private[0], memory[1]) == (1, 0)
    if create is shared.create:
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(fd, 4096)
    assert set(os.listdir("/dev/shm")) == before
    os.close(fd)
