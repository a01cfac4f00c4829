"""Runs a small program at a terminal, types at it, and sees what comes."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent.parent

#: Seconds after which a test that waits for text at the terminal fails.
PATIENCE = 60.0


class AtTerminal:
    """A script whose standard input and output are a pseudo-terminal."""

    def __init__(self, folder: Path, source: str, *, stdin: int | None = None, **env: str) -> None:
        script = folder / "program.py"
        script.write_text(textwrap.dedent(source))
        self.script = script
        self._mine, theirs = pty.openpty()
        self.seen = ""
        self._read_to = 0
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=theirs if stdin is None else stdin,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | env,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)

    def expect(self, text: str) -> str:
        """Wait for this text after the last that was waited for; what came before it."""
        deadline = time.monotonic() + PATIENCE
        while (at := self.seen.find(text, self._read_to)) < 0:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} never came:\n{self.seen}")
        before, self._read_to = self.seen[self._read_to : at], at + len(text)
        return before

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._mine, line.encode() + b"\n")

    def end(self) -> tuple[int, str]:
        """Wait for its end: its exit code, and what has come since what was waited for."""
        while self._read(time.monotonic() + PATIENCE):
            pass
        return self.process.wait(), self.seen[self._read_to :]

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._mine], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._mine, 65536) if ready else b""
        except OSError:  # nobody has the other side open any more
            data = b""
        self.seen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
