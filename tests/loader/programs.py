"""Runs small programs as a user would, and looks at what they print and what they leave behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent.parent
TOKEN = "ALOADER_PROGRAM_TOKEN"


@dataclass
class Ended:
    """A program that has ended."""

    code: int
    out: str
    err: str


class Program:
    """A script in a file of its own, running. Its processes are found by a token in their environment."""

    def __init__(self, folder: Path, source: str, *, flags: tuple[str, ...] = ("-W", "error"), **env: str) -> None:
        self.token = uuid.uuid4().hex
        script = folder / f"program_{self.token[:6]}.py"
        script.write_text(textwrap.dedent(source))
        self.temp = Path(tempfile.mkdtemp(prefix="al", dir="/tmp"))  # sockets of multiprocessing want a short path
        self._shm = _shared_files()
        environment = os.environ | {
            TOKEN: self.token,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.temp),
            **env,
        }
        self.process = subprocess.Popen(
            [sys.executable, *flags, str(script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.temp, ignore_errors=True)

    def line(self) -> str:
        """The next line that the program prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, timeout: float = 60) -> Ended:
        """Wait for its end."""
        out, err = self.process.communicate(timeout=timeout)
        return Ended(self.process.returncode, out, err)

    def pids(self) -> list[int]:
        """Its living processes, itself included."""
        mark = f"{TOKEN}={self.token}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes() and (entry / "stat").read_text().rsplit(")")[1][1] != "Z":
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def left(self, within: float) -> list[str]:
        """What is left of it after so many seconds: processes, files in /dev/shm and the temp folder."""
        deadline = time.monotonic() + within
        while True:
            left = [f"process {pid}: {_command(pid)}" for pid in self.pids()]
            left += [f"/dev/shm/{name}" for name in _shared_files() - self._shm]
            left += [str(path) for path in self.temp.iterdir()]
            if not left or time.monotonic() > deadline:
                return left
            os.sched_yield()


def _shared_files() -> set[str]:
    """What there is in /dev/shm, without the semaphores of torch's loaders in other programs."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
    except OSError:
        return "gone"
