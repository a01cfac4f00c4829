"""Memory is locked once it is mapped and unlocked before it goes, whichever way it goes, and the rest is left alone."""

from __future__ import annotations

import _thread
import gc
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aloader import options
from aloader.channel import shared
from aloader.channel.arena import Place
from aloader.channel.leases import Kept
from aloader.device import pages as module_of_pages
from aloader.device.pages import Pages
from aloader.settings import pages_of
from tests.device.locker import PATIENCE, Room, is_mapped

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = options.MIB


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.leave()


class Ended:
    """A thread that is no more."""

    @staticmethod
    def is_alive() -> bool:
        return False


# -- locking -----------------------------------------------------------------------------------------------------------


def test_a_segment_is_locked_by_a_helper_that_ends(room):
    room.segment()
    room.settle()
    assert room.pages.locked_bytes == room.locker.nbytes == MIB
    assert threading.get_ident() not in room.locker.threads
    assert "aloader-lock" not in {thread.name for thread in threading.enumerate()}
    room.segment(1, 2 * MIB)
    room.settle()
    assert [nbytes for _, nbytes in room.locker.did("lock")] == [MIB, 2 * MIB]
    assert "3145728 bytes locked, 0 not" in repr(room.pages)


def test_one_helper_serves_all_and_nobody_waits_for_it(room):
    room.locker.gate.clear()
    for number in range(5):
        room.segment(number)
    room.locker.wait(lambda: room.locker.did("locking"))
    assert room.pages.unlocked_bytes == 5 * MIB
    assert [thread.name for thread in threading.enumerate()].count("aloader-lock") == 1
    room.locker.gate.set()
    room.settle()
    assert room.pages.locked_bytes == 5 * MIB
    assert len(room.locker.threads) == 1


@pytest.mark.parametrize("fails", ["nothing", "making", "mapping"])
def test_its_pages_are_there_before_they_are_locked(room, monkeypatch, fails):
    """Made, and mapped here: locking finds nothing to do but that. Where they cannot be made, mapping makes them. Old
    kernels map nothing when they are asked to; there they are made at least, without the GIL."""
    if fails == "making":
        monkeypatch.setattr(os, "posix_fallocate", lambda fd, at, nbytes: os.close(-1))
    if fails == "mapping":
        monkeypatch.setattr(module_of_pages, "_map_pages", lambda address, nbytes: None)
    room.locker.gate.clear()
    fd = shared.create(40 * MIB, "test")
    watch = os.dup(fd)
    room.mappings.add(0, 40 * MIB, fd)
    room.locker.wait(lambda: room.locker.did("locking"))
    assert os.fstat(watch).st_blocks * 512 == 40 * MIB
    ((address, _),) = room.locker.did("locking")
    assert resident(address) == (0 if fails == "mapping" else 40 * MIB)
    os.close(watch)


def resident(address: int) -> int:
    """Bytes in this process's page table, of the mapping that begins there."""
    found = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            found = found or line.startswith(f"{address:x}-")
            if found and line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_a_large_segment_is_locked_in_pieces_from_its_end(room, monkeypatch):
    """A batch counts as pinned by its first byte: all that follows must be locked before."""
    monkeypatch.setattr(options, "LOCK_BYTES", MIB)
    room.segment(0, 2 * MIB + 4096)
    room.settle()
    (a, last), (b, middle), (c, first) = room.locker.did("lock")
    assert (first, middle, last) == (MIB, MIB, 4096)
    assert (b, a) == (c + MIB, c + 2 * MIB)
    room.mappings.retire(0).close()
    assert len(room.locker.did("unlock")) == 3


def test_what_others_copy_from_is_locked_as_a_whole(room, monkeypatch):
    """They copy a large leaf in one call, which may not cross a border of what is locked."""
    monkeypatch.setattr(options, "LOCK_BYTES", MIB)
    room.pages = room.mappings.pages = Pages(room.locker, options.GIB, room.warned.append, whole=True)
    room.segment(0, 3 * MIB)
    room.settle()
    assert [nbytes for _, nbytes in room.locker.did("lock")] == [3 * MIB]


@pytest.mark.parametrize(("device", "locked"), [("cpu", [MIB, MIB]), (None, [2 * MIB])])
def test_a_loader_has_half_of_its_memory_locked_and_in_pieces_only_where_it_copies_itself(
    room, monkeypatch, device, locked
):
    monkeypatch.setattr(options, "LOCK_BYTES", MIB)
    room.locker.locks = True
    settings: Any = SimpleNamespace(device=device, pin_memory="arena", memory_bytes=4 * MIB)
    room.pages = room.mappings.pages = pages_of(settings, room.locker, room.warned.append)
    for number in range(2):
        room.segment(number, 2 * MIB)
    room.settle()
    assert [nbytes for _, nbytes in room.locker.did("lock")] == locked


def test_no_more_than_the_limit_is_locked_at_once():
    room = Room(limit=3 * MIB)
    for number, nbytes in enumerate([2 * MIB, 2 * MIB, MIB]):
        room.segment(number, nbytes)
    room.settle()
    assert [nbytes for _, nbytes in room.locker.did("lock")] == [2 * MIB, MIB]
    assert (room.pages.locked_bytes, room.pages.unlocked_bytes) == (3 * MIB, 2 * MIB)
    room.mappings.retire(0).close()
    room.segment(3, 2 * MIB)
    room.settle()
    assert (room.pages.locked_bytes, room.pages.unlocked_bytes) == (3 * MIB, 2 * MIB)
    assert room.warned == []
    room.leave()


def test_a_refusal_is_told_once_and_nothing_more_is_tried(monkeypatch):
    room, touched = Room(refuses=MIB), []
    monkeypatch.setattr(module_of_pages, "_make_pages", lambda *of: touched.append(of))
    for number in range(4):
        room.segment(number)
    room.settle()
    room.segment(4)
    room.settle()
    (text,) = room.warned
    assert "copied into pinned memory by a thread instead" in text
    assert text.endswith("Refused were 1 MB: no more of it")
    assert room.pages.refused == "no more of it"
    assert len(room.locker.did("locking")) == len(touched) == 2
    assert room.pages.locked_bytes == MIB
    room.leave()


def test_where_warnings_are_errors_it_is_told_of_and_what_is_locked_is_still_unlocked(monkeypatch):
    room, raised = Room(refuses=MIB), []

    def warn(text: str) -> None:
        raise UserWarning(text)

    monkeypatch.setattr(threading, "excepthook", lambda given: raised.append(given.exc_type))
    room.pages._warn = warn
    for number in range(3):
        room.segment(number)
    room.settle()
    assert raised == [UserWarning]
    del room.mappings._segments[0]
    room.locker.wait(lambda: room.locker.did("unlock"))
    room.leave()


def test_what_was_locked_of_a_refused_segment_stays_so_until_it_goes(monkeypatch):
    """A copy may be running from it."""
    monkeypatch.setattr(options, "LOCK_BYTES", MIB)
    room = Room(refuses=2 * MIB)
    room.segment(0, 3 * MIB)
    room.settle()
    assert room.pages.locked_bytes == 2 * MIB
    assert len(room.warned) == 1
    room.leave()


def test_an_accelerator_that_fails_otherwise_is_told_of_too(room, monkeypatch):
    def fail(address: int, nbytes: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(room.locker, "lock", fail)
    room.segment()
    room.settle()
    assert room.pages.refused == "ZeroDivisionError()"
    assert len(room.warned) == 1


def test_who_copies_to_it_tells_of_an_accelerator_that_cannot_be_opened(room):
    room.locker.fails = "no CUDA device"
    room.segment()
    room.settle()
    assert room.pages.refused == "no CUDA device"
    assert room.warned == []
    assert room.locker.calls == []


def test_after_closing_nothing_is_locked_and_what_is_stays(room):
    room.segment()
    room.settle()
    room.pages.close()
    room.pages.close()
    room.segment(1)
    room.settle()
    assert room.pages.locked_bytes == MIB
    assert room.pages.unlocked_bytes == MIB


def test_where_no_thread_can_be_had_nothing_is_locked_and_no_descriptor_stays(room, monkeypatch):
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        room.segment()
    assert room.pages.unlocked_bytes == MIB
    room.pages.close()
    room.settle()
    assert room.locker.calls == []


def test_closing_stops_at_what_is_being_locked(room):
    room.locker.gate.clear()
    for number in range(3):
        room.segment(number)
    room.locker.wait(lambda: room.locker.did("locking"))
    room.pages.close()
    room.locker.gate.set()
    room.settle()
    assert room.pages.locked_bytes == MIB


def test_the_helper_is_not_torn_out_of_the_driver_when_the_program_ends(room):
    """Whoever maps: a thread is a daemon if it was started by one, unless it says otherwise."""
    room.locker.gate.clear()
    mapping = threading.Thread(target=room.segment, daemon=True)
    mapping.start()
    mapping.join(PATIENCE)
    room.locker.wait(lambda: room.locker.did("locking"))
    (daemon,) = [thread.daemon for thread in threading.enumerate() if thread.name == "aloader-lock"]
    assert not daemon


def test_when_the_program_has_ended_nothing_more_is_locked(room, monkeypatch):
    """It waits for the helper."""
    room.locker.gate.clear()
    for number in range(3):
        room.segment(number)
    room.locker.wait(lambda: room.locker.did("locking"))
    with monkeypatch.context() as patched:
        patched.setattr(threading, "main_thread", lambda: Ended)
        room.locker.gate.set()
        room.settle()
    assert len(room.locker.did("lock")) == 1


@pytest.mark.parametrize("goes", ["closed", "dropped"])
def test_of_what_goes_while_its_pages_are_made_no_more_are(room, monkeypatch, goes):
    """There may be others at its address by then."""
    made, gate, begun = [], threading.Event(), threading.Event()

    def make(fd: int, at: int, nbytes: int) -> None:
        made.append(at)
        begun.set()
        assert gate.wait(PATIENCE)

    monkeypatch.setattr(module_of_pages, "_make_pages", make)
    room.segment(0, 40 * MIB)
    assert begun.wait(PATIENCE)
    (region,) = room.pages._regions.values()
    memory = room.mappings.retire(0)
    unmapping = threading.Thread(target=memory.close if goes == "closed" else int)
    del memory
    unmapping.start()
    while goes == "closed" and not region.going:
        os.sched_yield()
    gate.set()
    unmapping.join(PATIENCE)
    room.settle()
    assert made == [0]
    assert room.locker.calls == []
    assert room.pages.unlocked_bytes == 0


# -- unlocking ---------------------------------------------------------------------------------------------------------


def test_who_unmaps_waits_for_the_piece_that_is_being_locked(room):
    room.locker.gate.clear()
    room.segment()
    room.locker.wait(lambda: room.locker.did("locking"))
    memory = room.mappings.retire(0)
    unmapping = threading.Thread(target=memory.close)
    unmapping.start()
    assert not memory.closed
    room.locker.gate.set()
    unmapping.join(PATIENCE)
    assert memory.closed
    assert [what for what, _, _ in room.locker.calls] == ["locking", "lock", "unlock"]


def test_of_what_goes_while_a_piece_is_locked_no_further_piece_is(room, monkeypatch):
    """Also where somebody looks at it still: nobody would unlock that piece again."""
    monkeypatch.setattr(options, "LOCK_BYTES", MIB)
    room.locker.gate.clear()
    room.segment(0, 3 * MIB)
    room.locker.wait(lambda: room.locker.did("locking"))
    (region,) = room.pages._regions.values()
    view = np.frombuffer(memory := room.mappings.retire(0), np.uint8)
    unmapping = threading.Thread(target=room.pages.unmapping, args=(memory,))
    unmapping.start()
    while not region.going:
        os.sched_yield()
    room.locker.gate.set()
    unmapping.join(PATIENCE)
    room.settle()
    assert [what for what, _, _ in room.locker.calls] == ["locking", "lock", "unlock"]
    del view
    memory.close()


def test_what_dies_while_a_piece_is_locked_lives_until_that_can_be_unlocked(room):
    """Its last view may go at any time, and a driver must not be left with memory that is none."""
    room.locker.gate.clear()
    room.segment()
    room.locker.wait(lambda: room.locker.did("locking"))
    dead = weakref.ref(room.mappings.retire(0))
    assert dead() is not None
    room.locker.gate.set()
    room.locker.wait(lambda: room.locker.did("unlock"))
    room.settle()
    assert dead() is None
    assert [what for what, _, _ in room.locker.calls] == ["locking", "lock", "unlock"]


def test_what_goes_before_its_turn_is_never_locked(room):
    room.locker.gate.clear()
    for number in range(3):
        room.segment(number)
    room.locker.wait(lambda: room.locker.did("locking"))
    room.mappings.retire(1).close()
    dead = weakref.ref(room.mappings.retire(2))
    assert dead() is None
    room.locker.gate.set()
    room.settle()
    assert len(room.locker.did("locking")) == 1


def test_memory_that_somebody_looks_at_is_unlocked_once(room):
    room.segment()
    room.settle()
    view = np.frombuffer(memory := room.mappings.retire(0), np.uint8)
    for _ in range(2):
        with pytest.raises(BufferError):
            memory.close()
    assert len(room.locker.did("unlock")) == 1
    del view
    memory.close()
    assert len(room.locker.did("unlock")) == 1


def test_a_device_that_has_failed_does_not_keep_memory_from_being_unmapped(room, monkeypatch):
    room.segment()
    room.settle()
    memory = room.mappings.retire(0)

    def fail(address: int) -> None:
        raise RuntimeError("unspecified launch failure")

    with monkeypatch.context() as patched:
        patched.setattr(room.locker, "unlock", fail)
        memory.close()
    assert memory.closed
    room.locker.locked.clear()


# -- mappings that die -------------------------------------------------------------------------------------------------


def test_an_mmap_unmaps_before_a_weak_reference_tells_and_ours_can_tell_before(monkeypatch):
    """Why `Kept` has a finalizer: neither order is documented."""
    told: list[tuple[str, bool]] = []

    class Watch:
        def dropped(self, memory: mmap.mmap) -> None:
            told.append(("finalizer", is_mapped(address)))

    fd = shared.create(MIB, "test")
    memory = shared.attach_as(Kept, fd, MIB, mmap.MAP_SHARED)
    os.close(fd)
    memory.keeper = Watch()  # type: ignore[assignment]
    address = np.frombuffer(memory, np.uint8).ctypes.data
    watch = weakref.ref(memory, lambda _: told.append(("weak reference", is_mapped(address))))
    del memory
    assert told == [("finalizer", True), ("weak reference", False)]
    assert watch() is None


def test_what_dies_with_its_last_view_is_unlocked_elsewhere_and_then_goes(room):
    room.segment()
    room.settle()
    owner = room.mappings.lease(Place(0, 0, 4096))
    assert room.mappings.close() == []
    dead = weakref.ref(owner)
    ((address, _),) = room.locker.did("lock")
    del owner
    assert dead() is None
    room.locker.wait(lambda: room.locker.did("unlock"))
    room.settle()
    assert threading.get_ident() not in room.locker.threads
    assert not is_mapped(address)
    assert room.pages.unlocked_bytes == 0


def test_who_drops_it_waits_for_nobody(room):
    """It may be the collector, in the middle of whatever takes that lock."""

    def drop() -> None:
        with room.pages._mutex:
            del room.mappings._segments[0]

    room.segment()
    room.settle()
    dropping = threading.Thread(target=drop, daemon=True)
    dropping.start()
    dropping.join(PATIENCE)
    assert not dropping.is_alive()
    room.locker.wait(lambda: room.locker.did("unlock"))


def test_where_no_thread_can_be_had_it_is_unlocked_at_once(room, monkeypatch):
    def fail(*of: object) -> None:
        raise RuntimeError("can't start new thread")

    room.segment()
    room.settle()
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", fail)
        del room.mappings._segments[0]
        ((address, _),) = room.locker.did("unlock")
        assert not is_mapped(address)
    assert room.locker.threads >= {threading.get_ident()}


def test_when_the_program_has_ended_it_goes_as_it_is(room, monkeypatch):
    """A driver may be half gone, and no helper is started any more."""
    room.segment()
    room.settle()
    started = []
    with monkeypatch.context() as patched:
        patched.setattr(threading, "main_thread", lambda: Ended)
        patched.setattr(_thread, "start_new_thread", lambda *of: started.append(of))
        del room.mappings._segments[0]
    assert started == []
    room.locker.locked.clear()
    room.pages._regions.clear()


def test_what_somebody_has_found_again_is_unlocked_and_stays_while_he_looks(room):
    """With the collector's `get_objects`, say."""
    for number in range(2):
        room.segment(number)
    room.settle()
    room.locker.gate.clear()
    room.segment(2)
    room.locker.wait(lambda: len(room.locker.did("locking")) == 3)
    del room.mappings._segments[0]
    view = np.frombuffer(room.pages._dropped[0], np.uint8)
    room.locker.gate.set()
    room.locker.wait(lambda: room.locker.did("unlock"))
    room.settle()
    assert is_mapped(view.ctypes.data)
    assert room.pages.locked_bytes == 2 * MIB


def test_what_dies_unlocked_just_goes(room):
    room.pages.close()
    room.segment()
    room.mappings.retire(0)
    assert room.pages.unlocked_bytes == 0


def test_mappings_that_are_garbage_with_their_keeper_are_unlocked():
    room = Room()
    room.segment()
    room.settle()
    locker, dead = room.locker, weakref.ref(room.pages)
    room.itself = room  # type: ignore[attr-defined]
    del room
    gc.collect()
    locker.wait(lambda: locker.did("unlock"))
    for thread in threading.enumerate():
        if thread.name == "aloader-lock":
            thread.join(PATIENCE)
    gc.collect()
    assert dead() is None
    assert locker.wrong == []


# -- where nothing may be done -----------------------------------------------------------------------------------------


def test_a_fork_of_the_program_leaves_the_driver_alone(room):
    room.segment()
    room.settle()
    room.segment(1)
    room.settle()
    before = len(room.locker.calls)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            room.memory(0).close()
            del room.mappings._segments[1]
            room.segment(2)
            code = 0 if len(room.locker.calls) == before and threading.active_count() == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


PROGRAM = """
import sys
from aloader.channel.arena import Place
from tests.device.locker import Room
room = Room()
room.segment(0, 1 << 22)
room.segment(1, 1 << 22)
owner = room.mappings.lease(Place(0, 0, 4096))
room.settle() if "settle" in sys.argv else None
room.itself = room if "cycle" in sys.argv else None
sys.modules["kept"] = room if "kept" in sys.argv else None


class Last:
    def __init__(self, room):
        self.room = room

    def __del__(self):
        for memory in (*self.room.mappings._segments.values(), *self.room.mappings.close()):
            memory.close()


if "closing" in sys.argv:
    del owner
    sys.modules["kept"] = Last(room)
"""


@pytest.mark.parametrize("how", ["settle", "hurry", "settle cycle", "kept", "settle closing"])
def test_a_program_that_just_ends_says_nothing(how, warmth):
    """Whether the helper is at work then, or memory is locked: the end of the process does all."""
    command = [sys.executable, "-c", PROGRAM, *how.split()]
    ended = warmth.subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
