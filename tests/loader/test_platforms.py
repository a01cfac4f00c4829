"""Where there are no worker processes: everything can be imported, and `num_workers=0` works."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

#: What Windows does not have, taken away before the first import of the package (torch has been imported before).
WINDOWS = """
import asyncio, multiprocessing, os, select, signal, socket, subprocess, sys, tempfile
import numpy, torch, torch.utils.data, cloudpickle
loop = asyncio.new_event_loop()
for module, names in {
    os: "fork memfd_create register_at_fork sched_getaffinity sched_setaffinity nice posix_fallocate wait4 sysconf",
    socket: "AF_UNIX CMSG_SPACE MSG_CTRUNC MSG_DONTWAIT MSG_CMSG_CLOEXEC SCM_RIGHTS send_fds recv_fds",
    signal: "SIGKILL SIGCHLD",
    select: "poll epoll",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "resource", "uvloop", "_posixshmem"):
    sys.modules[name] = None
sys.platform = "win32"
"""


@pytest.mark.parametrize(
    "body",
    [
        """
        loader = DataLoader(list(range(10)), batch_size=4)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        """,
        """
        async def main():
            async with DataLoader(Async(), batch_size=4) as loader:
                assert [batch.tolist() async for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        loop.run_until_complete(main())
        """,
        """
        try:
            DataLoader(list(range(10)), num_workers=2)
        except RuntimeError as error:
            assert "use num_workers=0" in str(error), error
        else:
            raise AssertionError("not refused")
        """,
    ],
    ids=["for", "async for", "workers"],
)
def test_on_windows(body):
    program = (
        WINDOWS
        + "from aloader import DataLoader\n"
        + "class Async:\n    def __len__(self): return 10\n    async def __getitem__(self, i): return i\n"
        + textwrap.dedent(body)
        + "print('good')\nsys.stdout.flush()\nos._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "good\n", done.stderr
