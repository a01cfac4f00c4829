"""What a user is warned of when workers are about to be started: in words, with what to do. Nothing is changed here."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from aloader import options
from aloader.channel import flags, logs
from aloader.channel.job import Carried, Job

_CONTAINERS: Final = (list, tuple, dict, set, frozenset)

#: How deep the heaviest attribute is looked for: wrappers of datasets are few.
_DEPTH: Final = 4

#: Items below which a container is not what makes a pickle heavy.
_MANY: Final = 10_000


def on_weight(job: Job, carried: Carried, seconds: float) -> Iterator[str]:
    """A job that is too heavy, or took too long to pickle."""
    if carried.nbytes > options.CAPTURED_BYTES and carried.captured:
        yield (
            f"the dataset's pickle takes {carried.nbytes / 1e6:.0f} MB, of which most comes from captured globals: "
            f"{', '.join(carried.captured)}. Pass such data as an attribute of the dataset."
        )
        return
    some, many = options.HEAVY_BYTES
    if carried.in_stream > many or (carried.in_stream > some and seconds > options.HEAVY_SECONDS):
        path, most = max(_containers(job.dataset, "dataset", _DEPTH), key=lambda found: len(found[1]), default=("", ()))
        heaviest = f", most of all {path}, a {type(most).__name__} of {len(most):,}" if len(most) > _MANY else ""
        yield (
            f"pickling the dataset took {seconds:.1f} s, in which the program stood still, since it holds "
            f"{carried.in_stream / 1e6:.0f} MB of Python objects{heaviest}. Each worker makes a copy of what it reads "
            "of them, too. Keep strings in an aloader.datasets.PackedList, and numbers in a numpy array."
        )


def _containers(obj: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The containers among an object's attributes, and theirs."""
    if isinstance(obj, _CONTAINERS):
        yield path, obj
    if isinstance(obj, type | ModuleType | FunctionType):  # by their names, and with half the world in their attributes
        return
    for name, value in getattr(obj, "__dict__", {}).items() if depth else ():
        yield from _containers(value, f"{path}.{name}", depth - 1)


def on_what_stays_here(job: Job) -> list[str]:
    """What a fork of this process would have, and workers will not. Whoever has a `worker_setup` knows."""
    if job.worker_setup is not None:
        return []
    found = [f"the logging handler {handler}" for handler in logs.lost()]
    found += [f"{name}, which the script has replaced" for name in flags.replaced_by_main()]
    text = (
        f"workers do not take over {'; '.join(found)}. Repeat it in a function, and give the loader worker_setup= that "
        'function: it runs in the workers before the dataset is loaded. Or give it multiprocessing_context="fork".'
    )
    return [text] if found else []


def warn_of_flags(names: str) -> None:
    """Flags that look like settings, and that workers have left alone."""
    if names:
        warnings.warn(
            f"workers do not take over {names}: set in this process by functions of those modules. Call them "
            "in worker_setup= too: a function that runs in the workers before the dataset is loaded.",
            UserWarning,
            stacklevel=2,
        )
