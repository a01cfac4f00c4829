"""The template's process is started here: what it inherits, and that it dies with this one from its first moment on.

Its own code binds it to the life pipe, but not before an interpreter has started, which takes a busy machine a second.
So this process does that for it, as soon as it has a number.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from multiprocessing import spawn
from typing import Final, NamedTuple

from aloader.channel import life
from aloader.channel.context import SINGLE_THREADED

# Ctrl-C is the parent's to handle, also while the template still imports torch.
_PROGRAM: Final = """
import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)
import json, runpy, sys
runpy.run_path(sys.argv[5])["adopt"](int(sys.argv[4]))  # before the second that importing torch takes
sys.path[:] = json.loads(sys.argv[1])
from aloader.worker.template import main
main(*map(int, sys.argv[2:5]))
"""


class Launched(NamedTuple):
    """The process, this side's end of its control socket, and the write end of its life pipe."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    life: int


def launch() -> Launched:
    """Start it. Takes milliseconds. No other thread may fork meanwhile (`no_forks`)."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        life_end, write_end = os.pipe()
        theirs.callback(os.close, life_end)
        ours.callback(os.close, write_end)
        control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.enter_context(other)
        ours.enter_context(control)
        own_life = life.opened(life_end)
        theirs.callback(os.close, own_life)
        process = _started(other.fileno(), life_end, own_life)
        with contextlib.suppress(OSError):  # then it fails in the template as well, where it is said
            life.bind(own_life, process.pid)
        control.setblocking(False)
        ours.pop_all()
        return Launched(process, control, write_end)


def _started(*inherited: int) -> subprocess.Popen[bytes]:
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = json.dumps([str(entry) for entry in sys.path])
    return subprocess.Popen(
        # -P: what lies in the working folder is not imported where the user's program would not
        [os.fsdecode(spawn.get_executable()), *flags, "-P", "-c", _PROGRAM, path, *map(str, inherited), life.__file__],
        stdin=subprocess.DEVNULL,
        pass_fds=inherited,
        env=os.environ | SINGLE_THREADED,
        cwd=None if _has_folder() else os.sep,
        # A signal to the program's process group is the program's to handle: torchrun sends SIGTERM so, and whoever
        # saves his work then may need a batch more.
        start_new_session=True,
    )


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:  # deleted: libraries that are loaded there cannot find their own
        return False
    return True
