"""A link carries messages and descriptors whole and in order, never blocks, and notices the other side's death."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import deque

import pytest

from aloader.channel import link, shared
from aloader.channel.link import Link, pair
from aloader.channel.messages import Failure, NewSegment, Released, Retire, Ticket


@pytest.fixture
def links():
    a, b = (Link(end) for end in pair())
    yield a, b
    a.close()
    b.close()


def deliver(a: Link, b: Link) -> list[object]:
    got = []
    while not a.flush():
        got += b.receive(everything=True)
    return got + b.receive(everything=True)


def test_messages_arrive_in_order_and_whole(links):
    a, b = links
    sent = [Ticket(1, 2, n, list(range(n)), 10) for n in range(200)]
    for message in sent:
        a.send(message)
    assert deliver(a, b) == sent


def test_a_body_too_large_for_the_socket_travels_as_a_descriptor(links):
    a, b = links
    sent = Ticket(0, 0, 1, list(range(100_000)), 0)
    a.send(sent)
    assert deliver(a, b) == [sent]


def test_descriptors_are_matched_in_order_also_between_large_bodies(links):
    a, b = links
    for number in range(3):
        fd = shared.create(4096)
        os.pwrite(fd, bytes([number]), 0)
        a.send(NewSegment(number, 4096), fd)
        a.send(Failure(0, 0, number, bytes(100_000)))
    got = deliver(a, b)
    assert [type(m) for m in got] == [NewSegment, Failure] * 3
    for message in got[::2]:
        assert os.pread(message.fd, 1, 0) == bytes([message.number])
        assert os.get_inheritable(message.fd) is False
        os.close(message.fd)


def test_a_full_socket_blocks_nobody(links):
    a, b = links
    for n in range(3000):
        a.send(Failure(0, 0, n, bytes(1000)))
    assert not a.flush()
    assert a.pending
    got = deliver(a, b)
    assert [m.seq for m in got] == list(range(3000))
    assert not a.pending


def test_the_end_of_the_other_side_is_seen_after_its_last_words(links):
    a, b = links
    a.send(Retire(7))
    a.flush()
    a.close()
    assert b.receive(everything=True) == [Retire(7)]
    assert b.ended
    b.send(Retire(8))
    assert b.flush()  # what is for the dead is dropped, not raised
    assert not b.pending


def test_half_a_message_before_the_end_is_dropped(links):
    a, b = links
    a.send(Retire(7))
    a._out[0] = (a._out[0][0][:-3], -1)
    a.flush()
    a.close()
    assert b.receive(everything=True) == []
    assert b.ended


def test_releases_of_many_threads_all_arrive_once(links):
    a, b = links
    threads = [threading.Thread(target=lambda k=k: [a.release(k, n) for n in range(500)]) for k in range(4)]
    for thread in threads:
        thread.start()
    got = []
    for n in range(500):
        a.send(Retire(n))
        a.flush()
        got += b.receive()
    for thread in threads:
        thread.join()
    got += deliver(a, b)
    places = [p for m in got if isinstance(m, Released) for p in zip(m.places[::2], m.places[1::2], strict=True)]
    assert sorted(places) == [(k, n) for k in range(4) for n in range(500)]
    assert [m.segment for m in got if isinstance(m, Retire)] == list(range(500))


def test_closing_closes_descriptors_that_nobody_took(links):
    a, b = links
    before = len(os.listdir("/proc/self/fd"))
    a.send(NewSegment(1, 4096), shared.create(4096))
    a.close()
    b.receive(everything=True)
    b.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_descriptors_that_run_out_leave_none_open(links):
    a, b = links
    for number in range(40):
        a.send(NewSegment(number, 4096), shared.create(4096))
        a.flush()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = set(map(int, os.listdir("/proc/self/fd")))
    tenth_free = [number for number in range(1000) if number not in before][10]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (tenth_free, limits[1]))
        with pytest.raises(OSError, match="too many open files"):
            b.receive(everything=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    b.close()
    assert b.ended
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_closing_from_within_a_release_waits_for_its_end_and_blocks_nobody() -> None:
    """As a collection of garbage does that begins while a lease's end is being written."""
    mine, theirs = pair()

    class Places(deque[tuple[int, int]]):
        def popleft(self) -> tuple[int, int]:
            link.close()
            assert not link.closed
            return super().popleft()

    link = Link(mine)
    link._releases = Places()
    link.release(1, 2)
    assert link.closed
    assert theirs.recv(100) == b""
    theirs.close()


def test_in_a_fork_the_lock_of_a_thread_that_is_not_there_holds_nobody_up(links) -> None:
    a, b = links
    taken, over = threading.Event(), threading.Event()

    def write() -> None:
        with a._lock:
            taken.set()
            over.wait(20)

    thread = threading.Thread(target=write)
    thread.start()
    taken.wait(20)
    a.send(Retire(1))
    a.forked()  # as in the fork: returns
    assert a.closed
    assert not a.pending
    a.forked()
    b.receive()
    assert b.ended
    over.set()
    thread.join()


class Torn:
    """A socket with which something comes in between: `error` once, behind a call of this name."""

    def __init__(self, end, name, error):
        self._end, self._name, self._error = end, name, error

    def __getattr__(self, name):
        call = getattr(self._end, name)
        if name != self._name or self._error is None:
            return call
        error, self._error = self._error, None

        def torn(*args):
            call(*args)
            raise error

        return torn


def test_a_release_that_is_interrupted_is_not_sent_twice(links):
    """A signal's handler may raise at any place. What was leased again meanwhile would be free under a tensor."""
    a, b = links
    a._socket = Torn(a._socket, "send", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        a.release(1, 2)
    a.release(3, 4)
    a.flush()
    assert b.receive(everything=True) == [Released((1, 2))]
    assert a.ended
    assert b.ended


def test_what_is_interrupted_while_it_is_read_is_not_read_on(links):
    a, b = links
    deliver(b, a)
    b.send(Retire(1))
    b.flush()
    a._socket = Torn(a._socket, "recvmsg", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        a.receive()
    assert a.ended
    assert b.receive() == []
    assert b.ended


def test_an_error_that_loses_a_message_is_the_end_for_both_sides(links):
    """ENOBUFS, ETOOMANYREFS: neither side would miss the message, and both would wait."""
    a, b = links
    a._socket = Torn(a._socket, "send", OSError(errno.ENOBUFS, "no buffers"))
    a.send(Retire(1))
    assert a.flush()
    assert a.receive() == []
    assert a.ended
    b.receive()
    assert b.receive() == []
    assert b.ended


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_lock_that_was_taken_and_never_let_go_holds_nobody_up(links, monkeypatch, end):
    """By whom a signal's handler interrupted in that very moment."""
    monkeypatch.setattr(link, "_LOCK_SECONDS", 0.01)
    a, _ = links
    a._lock.acquire()
    a.send(Retire(1))
    getattr(a, end)()
    assert a.ended
    a.flush()
