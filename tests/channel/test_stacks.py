"""Stacks are read as `faulthandler` writes them, and shown without the machinery between the template and a sample."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import tempfile
import threading

from aloader.channel import stacks
from aloader.channel.stacks import Frame, Stack
from aloader.worker import fetch, inline


def dumped() -> bytes:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def test_the_threads_of_a_dump_are_read_the_running_one_first():
    begun, ended = threading.Event(), threading.Event()

    def waits():
        begun.set()
        ended.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    begun.wait()
    try:
        mine, *others = stacks.parse(dumped())
    finally:
        ended.set()
        thread.join()
    this = test_the_threads_of_a_dump_are_read_the_running_one_first.__code__
    assert mine.frames[-2][::2] == (this.co_filename, this.co_name)
    assert mine.frames[-1].name == "dumped"
    theirs = [stacks.users(other.frames) for other in others]  # whoever runs the tests may have threads of its own
    assert (Frame(this.co_filename, waits.__code__.co_firstlineno + 2, "waits"),) in theirs


def test_a_dump_that_was_cut_off_is_read_as_far_as_it_goes():
    head = b"Current thread 0x1 (most recent call first):\n"
    whole = head + b'  File "/a.py", line 3 in f\n  File "/b.py", line ??? in g\n'
    both = [Stack((Frame("/b.py", 0, "g"), Frame("/a.py", 3, "f")))]
    assert stacks.parse(whole) == both
    assert stacks.parse(whole[:-8]) == [Stack(both[0].frames[1:])]
    assert stacks.parse(b"") == stacks.parse(b"  File") == []


def test_names_that_are_not_ascii_are_read():
    dump = b'Thread 0x1 (most recent call first):\n  File "/d\\xe4ten/\\u732b.py", line 3 in gr\\xfc\\xdfe\n'
    assert stacks.parse(dump) == [Stack((Frame("/däten/猫.py", 3, "grüße"),))]


def test_what_is_packed_comes_back_as_far_as_there_is_room():
    found = [Stack((Frame("/a.py", 1, "f"), Frame("/b.py", 2, "g")), (3, 4)), Stack((Frame("/c.py", 5, "h"),))]
    assert stacks.unpack(stacks.pack(found, 1000)) == found
    data = stacks.pack(found, 70)
    assert len(data) <= 70
    assert stacks.unpack(data) == found[:1]


def test_only_the_users_calls_are_kept():
    script = Frame("/train.py", 9, "<module>")
    mine = Frame("/data.py", 3, "__getitem__"), Frame("/data.py", 7, "read")
    serving, between = Frame(inline.__file__, 5, "_work"), Frame(fetch.__file__, 6, "fetch_inline")
    waiting = (Frame(asyncio.base_events.__file__, 8, "run"), Frame(threading.__file__, 8, "wait"))
    assert stacks.users([script, serving, between, *mine]) == mine, "what called the machinery is not a sample's"
    assert stacks.users([serving, mine[0], waiting[0], mine[1], waiting[1]]) == mine
    assert stacks.users([script, serving]) == ()
    collating = Frame(os.path.join(os.path.dirname(inline.__file__), "collation.py"), 1, "__call__")
    assert stacks.users([serving, mine[0], collating]) == (mine[0],), "the user's collate_fn called torch's"


def test_a_place_is_shown_once_with_all_that_stand_there():
    here, there = Frame("/a.py", 1, "f"), Frame("/b.py", 1, "g")
    found = stacks.different(
        [Stack((), (7,)), Stack((here,), (0,)), Stack((there,), (1,)), Stack((here,), (2,)), Stack(())]
    )
    assert found == [Stack((here,), (0, 2)), Stack((there,), (1,)), Stack((), (7,))]


def test_text_has_source_lines_and_an_end(tmp_path):
    file = tmp_path / "source.py"
    file.write_text("one\n  two\n")
    assert stacks.text([Frame(str(file), 2, "f")]) == f'  File "{file}", line 2, in f\n    two'
    assert stacks.text([Frame("/nowhere.py", 2, "f")]) == '  File "/nowhere.py", line 2, in f'
    many = stacks.text([Frame("/nowhere.py", n, "f") for n in range(100)]).splitlines()
    assert len(many) == stacks.MOST_FRAMES + 1
    assert many[0] == f"  [… {100 - stacks.MOST_FRAMES} calls …]"
    assert many[-1].endswith("line 99, in f")
