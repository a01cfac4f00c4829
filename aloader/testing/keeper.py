"""Runs a server for a program that may be killed at any moment, and leaves nothing of it behind.

    python keeper.py REMOVED_AFTERWARDS [REMOVED_AFTERWARDS ...] -- COMMAND [ARGUMENT ...]

A program of its own, from the standard library alone. It ends the command as soon as something comes through its
standard input: a byte, or the end, which the kernel sends however its parent dies. Then it removes the folders and
files. It also ends when the command does.
"""

from __future__ import annotations

import glob
import os
import select
import shutil
import signal
import subprocess
import sys


def main() -> int:
    separator = sys.argv.index("--")
    leftovers, command = sys.argv[1:separator], sys.argv[separator + 1 :]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides: through standard input, or by dying
    running, held = os.pipe()  # the command holds the other end; it comes to its end when the command does
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[held], restore_signals=True)
        os.close(held)
        select.select([sys.stdin.fileno(), running], [], [])
        return end(server)
    finally:
        remove(leftovers)


def end(server: subprocess.Popen[bytes]) -> int:
    """Its exit status. It is killed if it still runs: what it would tidy up is thrown away with its folder."""
    server.kill()
    return server.wait()


def remove(patterns: list[str]) -> None:
    for path in (path for pattern in patterns for path in glob.glob(pattern)):
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


if __name__ == "__main__":
    sys.exit(main())
