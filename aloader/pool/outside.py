"""A job for a process that multiprocessing spawns, beside the stream that it writes itself.

It writes that stream into a pipe, and waits there until the child has read it, after importing what it needs: seconds,
if the job is larger than a pipe. In a memfd it waits for nobody. It is pickled while the process is being started, as
multiprocessing would: only then may locks and queues be.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from aloader.channel import shared
from aloader.channel.job import Job


class Outside:
    """Pickles as its job, which is what comes out. Close it when the process has been started."""

    def __init__(self, job: Job | None) -> None:
        self._job = job
        self._fd = -1

    def __reduce__(self) -> tuple[Callable[[Any, int], Any], tuple[Any, int]]:
        body = io.BytesIO()
        reduction.ForkingPickler(body, 5).dump(self._job)
        size = body.tell()
        self._fd = shared.create(size, "aloader-job")
        shared.write(self._fd, [body.getbuffer()], [0])
        return _read, (reduction.DupFd(self._fd), size)

    def close(self) -> None:
        """The process has a descriptor of its own, or none has come of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(duplicate: Any, size: int) -> Any:
    fd = duplicate.detach()
    with shared.attach(fd, size, private=True) as memory:
        os.close(fd)
        return pickle.loads(memory)
