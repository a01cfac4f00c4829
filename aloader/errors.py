"""Errors and warnings, named by whose doing they were. A fault of ours is an assertion, and not here."""

from __future__ import annotations

from typing import Any, Final

#: Where a fork of the program uses a loader that has something running in the program itself.
IN_A_FORK: Final = "this belongs to the process that this one was forked from: make a loader of its own here"


class LoaderError(Exception):
    """Base of every error that aloader itself raises."""


class SampleError(LoaderError, RuntimeError):
    """A sample failed.

    Raised where its original exception could not be rebuilt in this process (where it can be, that is raised instead,
    with the worker's traceback as its `__cause__`), or where more failed than `max_errors` allows. It is also what a
    function given as `on_error` gets: the original is its `__cause__` then.

    `index` is what the sampler gave for the sample (None where that is not known), `batch` its batch's number in the
    epoch (-1: unknown), `worker` the slot of the worker that fetched it (-1: none).
    """

    def __init__(self, message: str, *, index: object = None, batch: int = -1, worker: int = -1) -> None:
        super().__init__(message)
        self.index = index
        self.batch = batch
        self.worker = worker


class SampleTimeout(SampleError, TimeoutError):  # noqa: N818
    """A sample took longer than `sample_timeout`. `stack` is where it was stuck: text, as in a traceback."""

    def __init__(
        self, message: str, *, index: object = None, batch: int = -1, worker: int = -1, stack: str = ""
    ) -> None:
        super().__init__(message, index=index, batch=batch, worker=worker)
        self.stack = stack


class BatchTooLarge(LoaderError, MemoryError):  # noqa: N818
    """One batch takes more memory than this machine, or the cgroup (container) of the program, has."""


class WorkerLost(LoaderError, RuntimeError):  # noqa: N818  (what happened, as `LoaderClosed`)
    """A worker process ended that should not have: killed, crashed or exited.

    `worker` is its slot, `pid` its process, `signal` the number of the signal that ended it (0 if it exited),
    `exit_code` what it exited with, `sample` the index it was working on, where that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: int = -1,
        pid: int = 0,
        signal: int = 0,
        exit_code: int = 0,
        sample: object = None,
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid
        self.signal = signal
        self.exit_code = exit_code
        self.sample = sample


class LoaderTimeout(LoaderError, RuntimeError, TimeoutError):  # noqa: N818
    """No batch came within `timeout` seconds. Iterating further waits again.

    `worker` is the slot of the worker whose batch is waited for (-1: nobody's yet), `indices` are that batch's samples,
    `stack` is where the worker stands in the dataset's code: text, as in a traceback.
    """

    def __init__(self, message: str, *, worker: int = -1, indices: list[object] | None = None, stack: str = "") -> None:
        super().__init__(message)
        self.worker = worker
        self.indices = [] if indices is None else indices
        self.stack = stack


class LoaderClosed(LoaderError, RuntimeError):  # noqa: N818
    """The loader, its pool or the event loop it was iterated on has been closed."""


class LoaderBusy(LoaderError, RuntimeError):  # noqa: N818
    """Two tasks wait in one iterator; a batch can go to one of them only."""


class WorkerTraceback(Exception):  # noqa: N818
    """The text of a traceback from a worker process: the `__cause__` of what the worker's code raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class StorageError(LoaderError, OSError):
    """A store could not do what was asked.

    `key` names the object, where there is one; `status` is what the server answered (HTTP's number, 0 if it did not),
    `attempts` how often it was tried.
    """

    def __init__(self, message: str, key: str = "", *, status: int = 0, attempts: int = 1) -> None:
        super().__init__(message)
        self.key = key
        self.status = status
        self.attempts = attempts


class KeyNotFound(StorageError, KeyError):  # noqa: N818
    """The store has no object under this key."""

    def __str__(self) -> str:
        return str(self.args[0])


class BadKey(StorageError, ValueError):  # noqa: N818
    """A key that no store can hold, or that would lead out of the store."""


class BadRange(StorageError, ValueError):  # noqa: N818
    """A range that begins at or behind the end of its object."""


class StoreNotFound(StorageError):  # noqa: N818
    """There is no such bucket or folder."""


class AccessDenied(StorageError, PermissionError):  # noqa: N818
    """The store refused: no credentials, wrong or expired ones, or ones that do not allow this."""


class CredentialsExpired(AccessDenied):
    """The credentials were good once. Those that can be renewed have been, for the next attempt."""


class StoreUnreachable(StorageError, ConnectionError):  # noqa: N818
    """Nothing answers at the store's address, or not in time."""


class Throttled(StorageError):  # noqa: N818
    """The store asks for fewer requests (HTTP 429, 503 SlowDown). `retry_after`: seconds, where it said so, else 0."""

    def __init__(
        self, message: str, key: str = "", *, status: int = 503, attempts: int = 1, retry_after: float = 0.0
    ) -> None:
        super().__init__(message, key, status=status, attempts=attempts)
        self.retry_after = retry_after


class ServerFailed(StorageError):  # noqa: N818
    """The server answered that something failed on its side (HTTP 500, 502, 504)."""


class BrokenTransfer(StorageError, ConnectionError):  # noqa: N818
    """The connection broke, or went silent, after the request was sent.

    `received` is what had come by then of what was asked, from its first byte on (it does not travel by pickle), and
    `version` and `size` are the object's, if the answer had got so far. `stalled`: it was given up for being too slow.
    """

    def __init__(
        self,
        message: str,
        key: str = "",
        *,
        status: int = 0,
        attempts: int = 1,
        received: bytes = b"",
        version: str = "",
        size: int = -1,
        stalled: bool = False,
    ) -> None:
        super().__init__(message, key, status=status, attempts=attempts)
        self.received = received
        self.version = version
        self.size = size
        self.stalled = stalled

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args, {**self.__dict__, "received": b""})


class ObjectChanged(StorageError):  # noqa: N818
    """The object is no longer the version that was asked for: somebody has replaced it meanwhile."""


class Corrupted(StorageError):  # noqa: N818
    """What came is not what the store holds: its length or digest differs, also when fetched again."""


class NotOpen(StorageError, RuntimeError):  # noqa: N818
    """A store or dataset was used outside of its `async with`, or on another loop than the one it was opened on."""


class WorkerWarning(RuntimeWarning):
    """A worker process was lost and has been replaced: what ended it, and what it was working on."""


class SampleWarning(RuntimeWarning):
    """Samples failed and are left out, as `on_error` says."""


class CacheWarning(UserWarning):
    """A cache on disk cannot be written to, and why. Reading goes on from the store."""
