"""What is forked from a warm interpreter is like what is started, for itself and for whoever waits for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from aloader.pool.launch import launch
from tests.warm import Warmth

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

#: Prints what it sees of itself, then what it reads.
LOOK = """
import json, os, sys
with open("/proc/self/environ") as file:
    shown = file.read().split(chr(0))
print(json.dumps({
    "parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "folder": os.getcwd(), "arguments": sys.argv,
    "path": sys.path, "environment": dict(os.environ), "umask": os.umask(0), "main": __name__,
    "token": "ALOADER_TEST_TOKEN=" + os.environ["ALOADER_TEST_TOKEN"] in shown,
    "processors": sorted(os.sched_getaffinity(0)), "options": sys.warnoptions,
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    "terminal": sys.stdout.isatty(), "file": globals().get("__file__"),
    "names": sorted(set(globals()) - {"__cached__"}),
}))
print(sys.stdin.read())
"""


def both(warmth: Warmth, command: list[str], **settings: Any) -> list[tuple[int, str, str]]:
    """How a command ends that is started, and one that is forked, with what they say."""
    got = []
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    for popen in (subprocess.Popen, warmth.subprocess.Popen):
        with popen([sys.executable, *command], text=True, **pipes | settings) as process:
            out, err = process.communicate("typed", timeout=60)
        assert hasattr(process, "warm") == (popen is not subprocess.Popen)
        got.append((process.returncode, out, err))
    return got


@pytest.mark.parametrize("kind", ["code", "script"])
def test_it_sees_of_itself_what_a_started_one_sees(warmth: Warmth, tmp_path: Path, kind: str) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    what = ["-c", LOOK] if kind == "code" else [str(tmp_path / "look.py")]
    reading, writing = os.pipe()
    settings = {"env": os.environ | {"OWN": "x"}, "cwd": tmp_path, "start_new_session": True, "pass_fds": [reading]}
    mask = os.umask(0o27)
    try:
        (code, out, err), forked = both(warmth, ["-W", "error", *what, "one", "two"], **settings)
    finally:
        os.umask(mask)
        os.close(reading)
        os.close(writing)
    assert (code, err) == (0, "")
    assert (code, out, err) == forked
    seen = json.loads(out.splitlines()[0])
    assert (seen["parent"], seen["umask"], seen["token"]) == (os.getpid(), 0o27, True)
    assert out.splitlines()[1] == "typed"


@pytest.mark.parametrize(
    "ending",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('why')",
        "import os; os._exit(4)",
        "import atexit; atexit.register(print, 'at exit')",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_it_ends_as_a_started_one_does(warmth: Warmth, ending: str) -> None:
    started, forked = both(warmth, ["-W", "error", "-c", ending])
    assert started == forked


@pytest.mark.parametrize("error", ["KeyError('user')", "KeyboardInterrupt()"])
def test_an_error_is_told_as_of_a_started_one(warmth: Warmth, tmp_path: Path, error: str) -> None:
    script = tmp_path / "fails.py"
    script.write_text(f"def fail():\n    raise {error}\nfail()\n")
    started, forked = both(warmth, ["-W", "error", str(script)])
    keepers = '  File "<string>", line 3, in <module>\n'
    assert started == (*forked[:2], forked[2].replace(keepers, ""))


@pytest.mark.parametrize("source", [None, "this is no Python"])
def test_a_script_that_cannot_be_run_ends_with_an_error(warmth: Warmth, tmp_path: Path, source: str | None) -> None:
    script = tmp_path / "script.py"
    if source is not None:
        script.write_text(source)
    command = [sys.executable, "-W", "error", str(script)]
    done = warmth.subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert ("SyntaxError" if source else "FileNotFoundError") in done.stderr


def test_it_is_our_child_and_can_be_killed(warmth: Warmth) -> None:
    command = [sys.executable, "-W", "error", "-c", "import sys; print('here', flush=True); sys.stdin.read()"]
    with warmth.subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n"
        assert process.pid in {child.pid for child in psutil.Process().children()}
        process.kill()
        assert process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("command", [["-m", "platform"], ["-W", "error", "-"]])
def test_what_is_no_code_and_no_script_is_started(warmth: Warmth, command: list[str]) -> None:
    with warmth.subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.communicate(b"", timeout=60)
    assert process.returncode == 0
    assert not hasattr(process, "warm")


@pytest.mark.cold
def test_a_test_that_is_marked_has_it_started(warmth: Warmth) -> None:
    with warmth.subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait(60)
    assert not hasattr(process, "warm")


def test_the_template_of_a_loader_is_forked(warmth: Warmth) -> None:
    """Where the module that starts it is not the one that `WARM` names, every loader's costs some seconds more."""
    if warmth.cold:
        pytest.skip("everything is started for real")
    launched = launch()
    launched.control.close()
    os.close(launched.life)
    launched.process.wait(60)
    assert hasattr(launched.process, "warm")


PROGRAM = """
import os, sys
from aloader.pool.launch import launch
launched = launch()
with open(f"/proc/{launched.process.pid}/stat") as file:
    parent = int(file.read().rpartition(")")[2].split()[1])
launched.control.close()
os.close(launched.life)
launched.process.wait(60)
print(hasattr(launched.process, "warm"), parent == os.getpid())
"""


def test_so_is_that_of_a_loader_in_a_program(warmth: Warmth) -> None:
    if warmth.cold:
        pytest.skip("everything is started for real")
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    done = warmth.programs.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_without_the_keeper_it_is_started(warmth: Warmth) -> None:
    kill = "import psutil\nfor child in psutil.Process().children(): child.kill(); child.wait()\n"
    command = [sys.executable, "-W", "error", "-c", kill + PROGRAM]
    done = warmth.programs.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False True\n", "")
