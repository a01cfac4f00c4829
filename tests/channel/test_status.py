"""What a worker does can be read by the parent at any moment, also after the worker was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from aloader.channel.status import Doing, StatusPage, adopt

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_one_side_reads_what_the_other_wrote():
    parent, fd = StatusPage.create()
    assert parent.read()[:4] == (Doing.STARTING, -1, -1, -1)
    worker = adopt(fd)
    for doing in Doing:
        before = time.monotonic()
        worker.write(doing, 3, 1 << 40, 17)
        status = parent.read()
        assert status[:4] == (doing, 3, 1 << 40, 17)
        assert before <= status.since <= time.monotonic()
    worker.close()
    parent.close()


def test_adopting_closes_the_descriptor():
    page, fd = StatusPage.create()
    adopt(fd).close()
    with pytest.raises(OSError):
        os.fstat(fd)
    page.close()


def test_progress_is_the_position_alone():
    page, fd = StatusPage.create()
    os.close(fd)
    page.write(Doing.FETCHING, 1, 2)
    since = page.read().since
    page.progress[0] = 5
    assert page.read() == (Doing.FETCHING, 1, 2, 5, since)
    page.progress[0] = -1
    assert page.read().position == -1
    page.close()


@pytest.mark.slow
def test_what_a_killed_process_wrote_last_can_be_read():
    page, fd = StatusPage.create()
    program = (
        "import os, signal, sys; from aloader.channel.status import Doing, adopt; page = adopt(int(sys.argv[1]));"
        "page.write(Doing.FETCHING, 1, 2); page.progress[0] = 3; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(fd)], pass_fds=(fd,), check=False)
    os.close(fd)
    assert done.returncode == -signal.SIGKILL
    assert page.read()[:4] == (Doing.FETCHING, 1, 2, 3)
    page.close()


def test_a_closed_page_can_be_told_apart():
    page, fd = StatusPage.create()
    os.close(fd)
    page.close()
    with pytest.raises(ValueError):
        page.read()


def test_the_parent_and_the_debugger_are_noted():
    page, fd = StatusPage.create()
    worker = adopt(fd)
    assert (worker.parent, page.pid, page.debugger_left) == (os.getpid(), 0, 0.0)
    worker.can_be_signalled()
    assert page.pid == os.getpid()
    worker.debugging(True)
    assert page.debugger_left == float("inf")
    before = time.monotonic()
    worker.debugging(False)
    assert before <= page.debugger_left <= time.monotonic()
    assert page.read()[:4] == (Doing.STARTING, -1, -1, -1)
    worker.close()
    page.close()


def test_both_sides_have_one_place_to_write_at():
    page, fd = StatusPage.create()
    worker = adopt(fd)
    for text in (b"first, and long", b"second"):
        page.ask(3, 9)
        assert (page.stacks, page.tasks) == (b"", None)
        os.write(worker.fileno(), text)
        assert page.stacks == text
        assert worker.asked == (3, 9)
        worker.answer(text * 2)
        assert page.tasks == text * 2
    worker.close()
    page.close()


def test_nothing_is_written_past_the_end():
    page, fd = StatusPage.create()
    page.ask(0, 0)
    size = os.fstat(fd).st_size
    with pytest.raises(OSError):
        while True:
            os.write(fd, b"x" * 4096)
    assert os.fstat(fd).st_size == size
    assert set(page.stacks) == {ord("x")}
    assert page.read().doing is Doing.STARTING
    os.close(fd)
    page.close()


def test_a_page_that_is_dropped_lets_its_descriptor_go():
    page, fd = StatusPage.create()
    os.close(fd)
    mine = page.fileno()
    del page
    with pytest.raises(OSError):
        os.fstat(mine)


def test_a_note_counts_until_a_later_one_and_there_are_two():
    page, fd = StatusPage.create()
    worker = adopt(fd)
    assert page.noted(9, 9) is None
    worker.note(1, 4, b"four")
    worker.note(1, 8, b"eight!")
    assert [page.noted(1, seq) for seq in (3, 4, 7, 8)] == [None, b"four", b"four", b"eight!"]
    worker.note(2, 0, b"next epoch")
    assert [page.noted(1, 7), page.noted(1, 99), page.noted(2, 0)] == [None, b"eight!", b"next epoch"]
    worker.close()
    page.close()


def test_what_was_being_written_is_no_note():
    page, fd = StatusPage.create()
    worker = adopt(fd)
    worker.note(1, 4, b"four")
    worker.note(1, 8, b"eight")

    class Killed(bytes):
        def __len__(self) -> int:
            return 1 << 13

    with pytest.raises(IndexError):  # its length is not what it says: copying it fails halfway
        worker.note(1, 12, Killed(b"twelve"))
    assert [page.noted(1, 4), page.noted(1, 20)] == [None, b"eight"]
    worker.close()
    page.close()
