"""A worker, really started, with a tiny dataset of eight batches. What starts is gone again when the look is over.

It runs on a loop of its own in the look's thread, and is bounded by cancelling it there, which closes everything.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from aloader.checkup.report import Check, ok, problem, warning
from aloader.checkup.words import seconds

#: Seconds that it may take: the template imports torch, from a network file system perhaps.
DEADLINE: Final = 30.0

#: Seconds to the first batch from which on something is slow.
SLOW_START: Final = 6.0

#: Elements of a sample: with 8 of them, a batch is large enough to lie in shared memory.
ELEMENTS: Final = 16_384


@dataclass(frozen=True, slots=True)
class Facts:
    """Seconds from the start of the template to the first batch, and from there to the last; or what went wrong."""

    first: float
    rest: float
    error: str = ""
    late: bool = False
    debug: bool = False  # ALOADER_DEBUG is set: there are no workers


class Squares:
    """Sample i is a tensor full of i²."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((ELEMENTS,), float(index * index))


def look(deadline: float = DEADLINE) -> Facts:
    if os.environ.get("ALOADER_DEBUG", "0") not in ("", "0"):
        return Facts(0, 0, debug=True)
    try:
        with warnings.catch_warnings(action="ignore"):  # about the program's surroundings, which are not looked at here
            return asyncio.run(_within(deadline))
    except TimeoutError:
        return Facts(0, 0, f"no batch after {seconds(deadline)}", late=True)
    except Exception as error:
        return Facts(0, 0, " ".join(f"{type(error).__name__}: {error}".split())[:500])


async def _within(deadline: float) -> Facts:
    async with asyncio.timeout(deadline):
        return await _batches()


async def _batches() -> Facts:
    from aloader.loader import DataLoader

    began = time.perf_counter()
    arrived: list[float] = []
    loader: Any = DataLoader(Squares(), batch_size=8, num_workers=1)
    async with loader:
        async for batch in loader:
            expected = [float(index * index) for index in range(8 * len(arrived), 8 * len(arrived) + 8)]
            if batch.shape != (8, ELEMENTS) or batch[:, -1].tolist() != expected:
                raise RuntimeError(f"batch {len(arrived)} is not what was made")
            arrived.append(time.perf_counter())
    return Facts(arrived[0] - began, arrived[-1] - arrived[0])


def judge(facts: Facts) -> Iterator[Check]:
    if facts.debug:
        text = "not tried: ALOADER_DEBUG is set, with which there are none"
        yield warning("workers", text, "unset ALOADER_DEBUG, if this is not meant")
    elif facts.late:
        remedy = "see whether `python -c 'import torch'` is as slow: Python's packages may lie on a slow file system"
        yield problem("workers", facts.error, remedy)
    elif facts.error:
        yield problem("workers", facts.error, "what else is found here may be why; until then num_workers=0")
    elif facts.first > SLOW_START:
        why = f"start, but the first batch came after {seconds(facts.first)}: a slow file system, or a busy machine"
        remedy = "a local disk for Python's packages; one WorkerPool for all loaders; await loader.start() ahead of use"
        yield warning("workers", why, remedy)
    else:
        how = "forked from a template" if sys.platform.startswith("linux") else "spawned"
        yield ok("workers", f"{how}: the first batch after {seconds(facts.first)}, 7 more in {seconds(facts.rest)}")
