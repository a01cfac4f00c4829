"""What a process leaves behind on its page when it crashes. Forks, so that nobody has to import anything."""

from __future__ import annotations

import ctypes
import faulthandler
import io
import os
import signal
import sys
from typing import Any

import pytest

from aloader.channel.status import StatusPage
from aloader.pool import deaths
from aloader.pool.starter import Exit
from aloader.worker import last_words

pytestmark = pytest.mark.usefixtures("nothing_left")


def ended(page: StatusPage, *, handled: bool = False) -> int:
    """How a child ends that writes to its standard error and reads from nowhere."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = io.StringIO()
        faulthandler.disable()
        if handled:
            faulthandler.enable(2)
        last_words.keep(page)
        print("one line\n" * 50 + "reading", "from nowhere", file=sys.stderr)
        ctypes.string_at(0)
    finally:
        os._exit(1)


class Dead:
    def __init__(self, page: Any) -> None:
        self.page = page


@pytest.mark.parametrize("handled", [False, True])
def test_where_it_crashed_and_what_it_had_written(handled):
    page, fd = StatusPage.create()
    os.close(fd)
    assert ended(page, handled=handled) & 0x7F == signal.SIGSEGV
    text = deaths.last_words(Dead(page), Exit(1, signal.SIGSEGV, 0, 0))  # type: ignore[arg-type]
    of_a_child = deaths.last_words(Dead(page), Exit(1, signal.SIGKILL, 0, 0))  # type: ignore[arg-type]
    page.close()
    assert "crashed" not in of_a_child, "this one was killed, and what it had forked has crashed before"
    assert text.endswith("\nThe last that it wrote to stderr:" + "\n  one line" * 11 + "\n  reading from nowhere")
    if handled:  # its user has said where he wants it
        assert "crashed" not in text
    else:
        assert text.startswith("\nIt crashed here (most recent call last):\n")
        assert "in ended" in text, "the innermost calls"
