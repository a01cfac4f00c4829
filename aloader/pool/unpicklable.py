"""Why a dataset could not be given to a process of multiprocessing: the place in it, not a bare pickling error."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction

from aloader.channel.job import Job
from aloader.channel.offender import explain


class _Spawning:
    """In place of a process that is being started: locks and pipes may be pickled while there is one."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    DupFd = duplicate_for_child


@contextmanager
def _spawning() -> Iterator[None]:
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Spawning())  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.set_spawning_popen(before)


def explained(failure: Exception, job: Job, method: str) -> TypeError:
    """The error to raise: names the attribute, and what to do."""

    def write(part: object) -> None:
        reduction.ForkingPickler(io.BytesIO(), 5).dump(part)

    with _spawning():
        where = explain(job, Job._fields, write)
    return TypeError(
        f"{where} cannot be pickled by multiprocessing's {method!r}, and so cannot be given to a worker: {failure}. "
        "Define it at the top of a module, or leave multiprocessing_context= out: the default way of starting carries "
        "lambdas and local classes too"
    )
