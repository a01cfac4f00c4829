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
