"""The links of a crew's workers, as they are watched: each by itself, and all in one system call."""

from __future__ import annotations

import select
from collections.abc import Callable

from aloader.channel.roles import Watcher
from aloader.pool.workers import Worker


class Links:
    """See the top of this file. `on_readable` takes in what a worker has said."""

    def __init__(self, on_readable: Callable[[Worker], None]) -> None:
        self._on_readable = on_readable
        self._poll = select.poll()
        self._watched: dict[int, Worker] = {}  # by their links' descriptors

    def watch(self, watcher: Watcher, worker: Worker) -> None:
        """Take in what it says."""
        fd = worker.link.fileno()
        watcher.reading(fd, lambda: self._on_readable(worker))
        self._poll.register(fd, select.POLLIN)
        self._watched[fd] = worker

    def unwatch(self, watcher: Watcher, worker: Worker) -> None:
        """Do not, nor write to it."""
        fd = worker.link.fileno()
        if self._watched.pop(fd, None) is not None:
            self._poll.unregister(fd)
            watcher.reading(fd, None)
        if worker.waits_to_write:
            watcher.writing(fd, None)
            worker.waits_to_write = False

    def read(self) -> None:
        """Take in whatever has arrived, without waiting: one system call where nothing has."""
        for fd, _ in self._poll.poll(0):
            worker = self._watched.get(fd)
            if worker is not None:
                self._on_readable(worker)
