"""The watcher of plain `for` calls back for what can be read and written, and for ends; and for nothing else."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from aloader.pool.blocking import PollWatcher

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    a.setblocking(False)
    b.setblocking(False)
    with a, b:
        yield a, b


def fill(end: socket.socket) -> None:
    try:
        while True:
            end.send(bytes(1 << 16))
    except BlockingIOError:
        pass


def test_reading_calls_back_as_long_as_there_is_something(ends):
    called: list[str] = []
    watcher = PollWatcher()
    watcher.reading(ends[0].fileno(), lambda: called.append("read"))
    watcher.wait(0)
    assert called == []
    ends[1].send(b"x")
    watcher.wait(1)
    watcher.wait(1)
    assert called == ["read"] * 2
    ends[0].recv(10)
    watcher.wait(0)
    assert called == ["read"] * 2


def test_writing_calls_back_once_there_is_room(ends):
    called: list[str] = []
    watcher = PollWatcher()
    fill(ends[0])
    watcher.writing(ends[0].fileno(), lambda: called.append("write"))
    watcher.wait(0)
    assert called == []
    while True:
        try:
            ends[1].recv(1 << 20)
        except BlockingIOError:
            break
    watcher.wait(1)
    assert called == ["write"]


def test_both_on_one_descriptor_are_told_apart(ends):
    called: list[str] = []
    watcher = PollWatcher()
    fd = ends[0].fileno()
    watcher.reading(fd, lambda: called.append("read"))
    watcher.writing(fd, lambda: called.append("write"))
    watcher.wait(0)
    assert called == ["write"]
    ends[1].send(b"x")
    watcher.wait(0)
    assert called == ["write", "read", "write"]
    watcher.writing(fd, None)
    watcher.wait(0)
    assert called[3:] == ["read"]
    watcher.reading(fd, None)
    watcher.wait(0)
    assert called[4:] == []


def test_the_end_of_the_other_side_is_something_to_read_and_to_write(ends):
    called: list[str] = []
    watcher = PollWatcher()
    watcher.reading(ends[0].fileno(), lambda: called.append("read"))
    watcher.writing(ends[0].fileno(), lambda: called.append("write"))
    ends[1].close()
    watcher.wait(1)
    assert called == ["read", "write"]


def test_a_pipe_that_has_hung_up_calls_its_reader():
    """Linux says POLLHUP there, without POLLIN."""
    called: list[int] = []
    read_end, write_end = os.pipe()
    watcher = PollWatcher()
    watcher.reading(read_end, lambda: called.append(1))
    os.close(write_end)
    watcher.wait(1)
    assert called == [1]
    watcher.reading(read_end, None)
    os.close(read_end)


def test_what_a_callback_takes_away_is_not_called_any_more(ends):
    called: list[str] = []
    watcher = PollWatcher()
    fds = [end.fileno() for end in ends]

    def first(own: int) -> None:
        called.append("called")
        for fd in fds:
            watcher.reading(fd, None)
            watcher.writing(fd, None)

    for fd in fds:
        watcher.reading(fd, lambda fd=fd: first(fd))
        watcher.writing(fd, lambda fd=fd: first(fd))
    ends[0].send(b"x")
    ends[1].send(b"x")
    watcher.wait(1)
    assert called == ["called"]


def test_a_descriptor_may_be_let_go_after_it_was_closed_and_used_again():
    watcher, called = PollWatcher(), []
    read_end, write_end = os.pipe()
    watcher.reading(read_end, lambda: called.append("old"))
    os.close(read_end)
    watcher.reading(read_end, None)
    again, other = os.pipe()
    watcher.reading(again, lambda: called.append("new"))
    os.write(other, b"x")
    watcher.wait(1)
    assert called == ["new"]
    for fd in (write_end, again, other):
        os.close(fd)


def test_letting_go_of_what_was_never_watched_is_nothing():
    PollWatcher().reading(0, None)
    PollWatcher().writing(10_000, None)


def test_a_callback_that_is_replaced_is_not_called(ends):
    called: list[str] = []
    watcher = PollWatcher()
    watcher.reading(ends[0].fileno(), lambda: called.append("old"))
    watcher.reading(ends[0].fileno(), lambda: called.append("new"))
    ends[1].send(b"x")
    watcher.wait(1)
    assert called == ["new"]


def test_a_timeout_is_waited_out_and_not_rounded_down(ends):
    watcher = PollWatcher()
    watcher.reading(ends[0].fileno(), lambda: None)
    began = time.perf_counter()
    watcher.wait(0.0101)
    assert time.perf_counter() - began >= 0.0101
