"""Starts the ranks of a program as torchrun does, but without it: its start costs a processor more than theirs.

The ranks meet at a store in this process, as under torchrun at one in its own; without libuv, which leaves a pipe here.
What torchrun does with signals, it must be asked itself: see `tests/examples/test_train.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import torch.distributed as dist

ROOT: Final = Path(__file__).parent.parent

#: Until whatever is started here has ended.
SECONDS: Final = 100


class Ranks:
    """A program in so many processes; with `ranks=None` it runs alone, and is not told of any. `lines` is its output.

    `command` is what follows the interpreter. Temporary files of torch's lie in `folder`: it leaves some.
    """

    def __init__(
        self,
        command: Sequence[object],
        folder: Path,
        ranks: int | None,
        popen: Callable[..., subprocess.Popen[str]] | None = None,
    ) -> None:
        self.lines: list[str] = []
        places: list[dict[str, str]] = [{}]
        if ranks is not None:
            # here: a port that is only looked for may be somebody else's when rank 0 takes it
            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False)
            places = _places(ranks, self._store.port)
        self.processes = [
            (popen or subprocess.Popen)(
                [sys.executable, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment() | {"TMPDIR": str(folder)} | place,
                start_new_session=True,
            )
            for place in places
        ]

    def end(self) -> int:
        """Wait for all. 0, or how the first one failed: it takes the others along, who may wait for it for ever."""
        failures: list[int | None] = []

        def wait(process: subprocess.Popen[str]) -> str:
            try:
                return process.communicate(timeout=SECONDS)[0]
            finally:
                if process.returncode != 0:
                    failures.append(process.returncode)
                    for other in self.processes:
                        other.kill()

        with ThreadPoolExecutor(len(self.processes)) as threads:
            for said in threads.map(wait, self.processes):
                self.lines += said.splitlines(keepends=True)
        return failures[0] or 0 if failures else 0


def environment() -> dict[str, str]:
    """Like that of other programs that tests start, which can be forked from the same one."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _places(ranks: int, port: int) -> list[dict[str, str]]:
    """The variables by which torchrun tells each process which rank it is, all on one machine."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # there is a store: rank 0 need not open one
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
