"""Packets between the parent and a stage keep their borders and their descriptors, and the end is told apart."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from aloader.channel import stages

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with a, b:
        yield a, b


@pytest.mark.parametrize(
    "packet",
    [
        stages.Load(1, 2),
        stages.Fork(3, 4),
        stages.End(5, 0.25),
        stages.Loaded(6, False, "why" * 2000),
        stages.Exited(7, 9, 8),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_a_packet_arrives_as_it_was(ends, packet):
    stages.send(ends[0], packet)
    got = stages.receive(ends[1])
    assert got == (packet, [])
    assert type(got[0]) is type(packet)


def test_packets_stay_apart_and_each_keeps_its_descriptors(ends):
    files = [os.memfd_create(f"test-{n}") for n in range(3)]
    for n, fd in enumerate(files):
        os.write(fd, bytes([n]))
    stages.send(ends[0], stages.Load(0, 0), (files[0], files[1]))
    stages.send(ends[0], stages.End(1, 0.0))
    stages.send(ends[0], stages.Load(2, 0), (files[2],))
    for fd in files:
        os.close(fd)
    found = []
    for _ in range(3):
        packet, fds = stages.receive(ends[1])
        found.append((packet[0], [os.pread(fd, 1, 0)[0] for fd in fds]))
        assert not any(map(os.get_inheritable, fds))
        for fd in fds:
            os.close(fd)
    assert found == [(0, [0, 1]), (1, []), (2, [2])]


def test_nothing_yet_and_the_end_are_two_things(ends):
    with pytest.raises(BlockingIOError):
        stages.receive(ends[1])
    stages.send(ends[0], stages.End(1, 0.0))
    ends[0].close()
    assert stages.receive(ends[1]) == (stages.End(1, 0.0), [])  # the last words before the end
    assert stages.receive(ends[1]) is None
    with pytest.raises(BrokenPipeError):
        stages.send(ends[1], stages.End(1, 0.0))


def test_a_reset_is_the_end_too(ends):
    stages.send(ends[1], stages.End(1, 0.0))  # never read: closing then resets the connection
    ends[0].close()
    assert stages.receive(ends[1]) is None


def test_more_packets_than_the_socket_holds_all_arrive(ends):
    ends[0].setblocking(False)
    ends[1].setblocking(True)
    got: list[int] = []

    def read() -> None:
        while (found := stages.receive(_Waiting(ends[1]))) is not None and found[0].key < 999:
            got.append(found[0].key)

    reader = threading.Thread(target=read)
    reader.start()
    for key in range(1000):
        stages.send(ends[0], stages.End(key, 0.0))
    reader.join()
    assert got == list(range(999))


class _Waiting:
    """A stage's own end of the socket: it waits for the next packet, as a stage does in its selector."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def recvmsg(self, *arguments: int) -> object:
        select.select([self.end], [], [])
        return self.end.recvmsg(*arguments)
