"""A worker is asked where it stands without harm to any process; what it does not answer is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from aloader.channel import status
from aloader.channel.stacks import Frame, Stack
from aloader.channel.status import StatusPage
from aloader.pool.inquiry import PageInquiry, Process, in_words, indices_of, report

pytestmark = pytest.mark.usefixtures("nothing_left")

PROGRAM = """
import faulthandler, sys, time
from aloader.channel.status import STACKS_SIGNAL, adopt
def stuck():
    print("ready", flush=True)
    time.sleep(60)
page = adopt(int(sys.argv[1]))
if sys.argv[2] == "answers":
    faulthandler.register(STACKS_SIGNAL, file=page.fileno(), all_threads=True)
page.can_be_signalled()
stuck()
"""


class Asked:
    """A process with a page, as a worker has one."""

    def __init__(self, how: str) -> None:
        self.page, fd = StatusPage.create()
        command = [sys.executable, "-c", PROGRAM, str(fd), how]
        self.process = subprocess.Popen(command, pass_fds=(fd,), stdout=subprocess.PIPE, text=True)
        os.close(fd)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def ask(self) -> PageInquiry:
        inquiry = PageInquiry(self.page, 0, 0)
        while not inquiry.over():
            os.sched_yield()
        return inquiry

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.page.close()


@pytest.mark.slow
def test_a_process_with_a_handler_answers_again_and_again() -> None:
    with Asked("answers") as asked:
        for _ in range(3):
            (stack,) = asked.ask().told()
            assert [frame.name for frame in stack.frames if isinstance(stack, Stack)] == ["stuck"]


@pytest.mark.slow
def test_a_process_without_a_handler_is_not_killed_by_the_question() -> None:
    with Asked("is silent") as asked:
        assert asked.ask().told() == "did not say within 0.1 s where it stands"
        assert asked.process.poll() is None


@pytest.mark.slow
def test_a_stopped_or_dead_process_does_not_answer() -> None:
    with Asked("answers") as asked:
        asked.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, asked.process.pid, os.WSTOPPED)
        began = time.monotonic()
        assert str(asked.ask().told()).startswith("does not answer: it is stopped")
        assert time.monotonic() - began < 1
        asked.process.kill()
        asked.process.wait()
        assert asked.ask().told() == "has gone"


def test_a_process_that_has_not_said_who_it_is_is_being_started() -> None:
    page, fd = StatusPage.create()
    os.close(fd)
    inquiry = PageInquiry(page, 0, 0)
    assert inquiry.over()
    assert inquiry.told() == "cannot say where it stands: it is being started"
    page.close()


def test_who_dies_while_it_is_asked_has_gone() -> None:
    page, fd = StatusPage.create()
    os.close(fd)
    assert status.STACKS_SIGNAL is not None
    before = signal.signal(status.STACKS_SIGNAL, lambda *_: None)
    try:
        page.can_be_signalled()
        inquiry = PageInquiry(page, 0, 0)
        assert not inquiry.over()
        page.close()
        assert inquiry.over()
        assert inquiry.told() == "has gone"
    finally:
        signal.signal(status.STACKS_SIGNAL, before)


def test_what_the_kernel_knows_of_this_process() -> None:
    assert status.STACKS_SIGNAL is not None
    number = status.STACKS_SIGNAL + 5
    before = signal.getsignal(number)
    mine = Process.of(os.getpid())
    assert mine is not None
    assert not mine.catches(number)
    signal.signal(number, lambda *_: None)
    try:
        mine = Process.of(os.getpid())
        assert mine is not None
        assert (mine.state, mine.catches(number), mine.has_pending(number)) == ("R", True, False)
    finally:
        signal.signal(number, before)


def test_indices_in_words() -> None:
    assert indices_of([3, 1], True) == [3, 1]
    assert indices_of(3, True) == [3]
    once = iter([3, 1])
    assert indices_of(once, True) == []
    assert list(once) == [3, 1], "left for the worker that fetches them"
    assert indices_of([3, 1], False) == [[3, 1]]
    assert in_words([3]) == "sample 3"
    assert in_words(["a", "b"]) == "samples 'a', 'b'"
    many = in_words(range(1000))
    assert many.startswith("samples 0, 1, 2, ")
    assert many.endswith(", … (1000 in all)")
    assert len(many) < 250


def test_a_report_names_the_samples_that_stand_there() -> None:
    stacks = [Stack((Frame("/data.py", 3, "read"),), (1, 2)), Stack((), (0,))]
    assert report("Worker 4", stacks, [7, 8, 9]).splitlines() == [
        "Worker 4, samples 8, 9 (most recent call last):",
        '  File "/data.py", line 3, in read',
        "Worker 4, sample 7: not begun, since as many others are in flight as concurrency= allows",
    ]
    assert report("Worker 4", [], [7]) == "Worker 4 is not in the dataset's code."
    assert report("Worker 4", "has gone", [7]) == "Worker 4 has gone."
