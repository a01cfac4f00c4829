"""What a worker takes over from its parent, since it is not a fork of it: captured in one, applied in the other.

Flags in modules have a file of their own (`flags`): they are set as modules are imported. What cannot be carried
(functions that the script has put into modules) is the user's to repeat in `worker_setup`.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import cloudpickle
import torch

from aloader.channel import defaults, logs

#: Libraries that would start threads of their own in every worker: one is right, the workers are the parallelism.
THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "RAYON_NUM_THREADS",
)
SINGLE_THREADED: Final = {**dict.fromkeys(THREAD_VARIABLES, "1"), "TOKENIZERS_PARALLELISM": "false"}


def capture() -> bytes:
    """The parent's context, as bytes for `apply`."""
    context: dict[str, Any] = {
        "environment": dict(os.environ),
        "directory": _directory(),
        "path": list(sys.path),
        "arguments": list(getattr(sys, "argv", [])),
        "umask": _umask(),
        "affinity": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "logging": logs.capture(),
        "defaults": defaults.capture(),
        "sharing": torch.multiprocessing.get_sharing_strategy(),  # type: ignore[no-untyped-call]
        "rank": _rank(),
    }
    context["filters"] = _carried_filters()
    return bytes(cloudpickle.dumps(context, 5))


def apply(data: bytes) -> None:
    """Make this process look like the one that was captured."""
    context = cloudpickle.loads(data)
    apply_to_imports(context)
    if context["umask"] is not None:
        os.umask(context["umask"])
    if context["affinity"] is not None:
        os.sched_setaffinity(0, context["affinity"])
    logs.apply(context["logging"])
    warnings.filters[:] = _found_filters(context["filters"])  # type: ignore[index]
    _forget_shown_warnings()
    defaults.apply(context["defaults"])
    torch.multiprocessing.set_sharing_strategy(context["sharing"])  # type: ignore[no-untyped-call]
    if context["rank"] is not None:
        _answer_as(*context["rank"])


def apply_after_loading(data: bytes) -> None:
    """The part that depends on which modules the dataset has brought along."""
    logs.apply_after_loading(cloudpickle.loads(data)["logging"])


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Warnings are no errors meanwhile: the parent's filters may be newer than its imports, which have succeeded."""
    if all(entry[0] != "error" for entry in warnings.filters):
        yield
        return
    with warnings.catch_warnings():
        kept = [("default", *entry[1:]) if entry[0] == "error" else entry for entry in warnings.filters]
        warnings.filters[:] = kept  # type: ignore[index]
        _forget_shown_warnings()
        yield


def apply_to_imports(context: dict[str, Any]) -> None:
    """The part that importing the dataset's modules depends on."""
    for name in set(os.environ) - set(context["environment"]):
        del os.environ[name]
    os.environ.update(context["environment"] | SINGLE_THREADED)
    if context["directory"] is not None:
        os.chdir(context["directory"])
    sys.path[:] = context["path"]
    sys.argv[:] = context["arguments"]


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been deleted
        return None


def _umask() -> int | None:
    """The file mode mask. Read, not set and restored: another thread may be making a file."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))
    except (OSError, StopIteration):
        return None


class _Filter(NamedTuple):
    """An entry of `warnings.filters`. A class of warnings that has a name is carried by it, not imported for it: the
    filters of a training framework would cost every worker the seconds that importing the framework takes."""

    name: tuple[str, str] | None
    entry: bytes  # without the class, if that has a name


def _carried_filters() -> list[_Filter]:
    """Each pickled by itself: what cannot be carried leaves the others alone."""
    kept = []
    for action, message, category, module, line in cast("list[Any]", warnings.filters):
        name = (category.__module__, category.__qualname__)
        named = category.__module__ != "__main__" and _imported(*name) is category
        try:
            entry = cloudpickle.dumps((action, message, None if named else category, module, line), 5)
        except Exception:
            continue  # a filter for a class that cannot be carried filters nothing in a worker
        kept.append(_Filter(name if named else None, entry))
    return kept


def _found_filters(carried: list[_Filter]) -> list[Any]:
    found = []
    for name, data in carried:
        try:
            action, message, category, module, line = cloudpickle.loads(data)
        except Exception:
            continue  # nor does one for a class that cannot be made here
        if name is not None:
            category = _imported(*name) or _Named(name[1], (Warning,), {"__module__": name[0], "__qualname__": name[1]})
        found.append((action, message, category, module, line))
    return found


def _imported(module: str, qualname: str) -> Any:
    """The class of that name, if its module has been imported."""
    try:
        return operator.attrgetter(qualname)(sys.modules[module])
    except (KeyError, AttributeError):
        return None


class _Named(type):
    """Makes stand-ins for classes that have not been imported: whatever has the name there is a subclass here."""

    def __subclasscheck__(cls, other: type) -> bool:
        name = (cls.__module__, cls.__qualname__)
        return any((base.__module__, base.__qualname__) == name for base in other.__mro__)


def _forget_shown_warnings() -> None:
    changed = getattr(warnings, "_filters_mutated_lock_held", None) or getattr(warnings, "_filters_mutated", None)
    if changed is not None:
        changed()


def _rank() -> tuple[int, int] | None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def _answer_as(rank: int, world_size: int) -> None:
    """Datasets that shard themselves by rank must see the parent's; a collective still fails: there is no group."""
    distributed: Any = torch.distributed
    distributed.is_initialized = lambda: True
    distributed.get_rank = lambda group=None: rank
    distributed.get_world_size = lambda group=None: world_size
