"""A process that is bound to the life pipe goes with its parent, whatever it is doing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aloader.channel import life

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="F_SETSIG is Linux's"),
]

_HEAD = f"import ctypes, os, runpy, sys, time; watch = runpy.run_path({life.__file__!r})['watch'];"
#: It says that it is bound, and then does not listen to anything.
ASLEEP = _HEAD + "watch(int(sys.argv[1])); print(flush=True); time.sleep(60)"
WITH_THE_GIL = _HEAD + "watch(int(sys.argv[1])); print(flush=True); ctypes.pythonapi.sleep(60)"
#: A fork of a bound process, bound anew, which outlives the first one.
IN_A_FORK = _HEAD + (
    "watch(int(sys.argv[1]))\nif os.fork() == 0:\n    watch(int(sys.argv[1])); print(flush=True); time.sleep(60)\n"
    "os.wait()"
)
#: It waits for a line before it binds itself.
LATE = _HEAD + "sys.stdin.readline(); watch(int(sys.argv[1])); print('alive', flush=True)"


@contextmanager
def started(program: str, **options: object) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that has the read end, and the write end."""
    read_end, write_end = os.pipe()
    arguments = [sys.executable, "-S", "-c", program, str(read_end)]
    process = subprocess.Popen(
        arguments, pass_fds=(read_end,), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    os.close(read_end)
    with process:
        try:
            yield process, write_end
        finally:
            process.kill()


@pytest.mark.parametrize("program", [ASLEEP, WITH_THE_GIL, IN_A_FORK], ids=["asleep", "with the GIL", "a fork"])
def test_it_is_killed_when_the_write_end_closes(program):
    with started(program) as (process, write_end):
        process.stdout.readline()
        os.close(write_end)
        assert process.wait(2) == -signal.SIGKILL
        assert process.stdout.read() == b""  # every process that had it has gone


def test_it_goes_at_once_if_the_write_end_had_closed_before():
    with started(LATE) as (process, write_end):
        os.close(write_end)
        out, _ = process.communicate(b"\n", 2)
        assert process.returncode == -signal.SIGKILL
        assert out == b""


def test_it_lives_as_long_as_any_copy_of_the_write_end():
    with started(LATE) as (process, write_end):
        second = os.dup(write_end)
        os.close(write_end)
        out, _ = process.communicate(b"\n", 2)
        assert (out, process.returncode) == (b"alive\n", 0)
        os.close(second)


def test_gone_says_whether_the_write_end_has_closed():
    read_end, write_end = os.pipe()
    assert not life.gone(read_end)
    os.close(write_end)
    assert life.gone(read_end)
    os.close(read_end)


def test_the_kept_descriptor_is_its_own_and_closed_on_exec():
    read_end, write_end = os.pipe()
    own = life.watch(read_end)
    assert own != read_end
    assert not os.get_inheritable(own)
    os.close(own)  # before the write end: this process must live
    assert not select.select([read_end], [], [], 0)[0]
    os.close(read_end)
    os.close(write_end)
