"""What worker processes have for themselves, in the program's own process: for `ALOADER_DEBUG`.

For each worker there would be, a `Slot` stands in: a copy of the dataset, torch's worker info, and the states of the
global generators, which are put in place around whatever that worker would do, and taken away again: the program's own
are not touched.
"""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.utils.data._utils import collate
from torch.utils.data._utils import worker as torch_worker

from aloader.channel.job import Job, run_setup
from aloader.channel.marks import Mark
from aloader.channel.replica import replicator
from aloader.channel.states import Generators
from aloader.ranks import Ranks
from aloader.worker import seeds
from aloader.worker.concurrent import enter
from aloader.worker.generators import driven, kept, unseeded
from aloader.worker.marks import Marker, tell
from aloader.worker.replay import PrivateLoop
from aloader.worker.sharding import loader_ranks


class _State(NamedTuple):
    """What is global in a process, and each worker has its own of."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    threads: int
    info: Any
    stack: Any

    @classmethod
    def now(cls) -> _State:
        """As it is."""
        table = collate.default_collate_fn_map
        info, stack = torch_worker._worker_info, table.get(torch.Tensor)
        threads = torch.get_num_threads()
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), threads, info, stack)

    def apply(self) -> None:
        """Put it in place."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        torch_worker._worker_info = self.info
        if self.stack is not None:
            collate.default_collate_fn_map[torch.Tensor] = self.stack


def _stack_here(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    """Torch's collation of tensors; not into shared memory, which it takes where there is a worker's info."""
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        stacked: torch.Tensor = collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        return stacked
    finally:
        torch_worker._worker_info = info


class Place:
    """The place of `num_workers=0`: nothing has to be exchanged, but the loader's ranks are told."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self.job = job
        self.marker = Marker(job.dataset)
        self.ranks = ranks
        self.broken: BaseException | None = None

    def __enter__(self) -> Self:
        self._before = loader_ranks.set(self.ranks)
        return self

    def __exit__(self, *exc: object) -> None:
        loader_ranks.reset(self._before)

    def tell(self, mark: Mark | None) -> None:
        """The dataset is told what it said of itself when an earlier pass was left."""
        with self:
            tell(self.job.dataset, mark)


class Slot(Place):
    """A worker's place. Inside its `with`, the process is that worker."""

    def __init__(self, number: int, count: int, base_seed: int, job: Job, ranks: Ranks) -> None:
        super().__init__(job, ranks)
        self._outside: _State | None = None
        before = _State.now()
        try:
            self._begin(number, count, base_seed)
        except BaseException as error:
            if not isinstance(error, Exception):
                raise
            self.broken = error  # as in a worker: it is the answer to every ticket
        finally:
            self._inside = _State.now()
            before.apply()

    def _begin(self, number: int, count: int, base_seed: int) -> None:
        seeds.become(number, count, base_seed, self.job.dataset, ranks=self.ranks, everywhere=False)
        table = collate.default_collate_fn_map
        if table.get(torch.Tensor) is collate.collate_tensor_fn:
            table[torch.Tensor] = _stack_here
        if self.job.worker_init_fn is not None:
            self.job.worker_init_fn(number)

    def __enter__(self) -> Self:
        self._outside = _State.now()
        self._inside.apply()
        return self

    def __exit__(self, *exc: object) -> None:
        self._inside = _State.now()
        if self._outside is not None:
            self._outside.apply()
            self._outside = None


class Inside:
    """A worker's place, whose generators may be seeded for samples meanwhile."""

    def __init__(self, slot: Place, generators: Generators | None) -> None:
        self._slot = slot
        self._generators = generators
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._stack.enter_context(self._slot)
        self._stack.enter_context(kept(self._generators))
        if self._generators is None:
            unseeded()

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


class Team:
    """The places of an epoch, or of several; and the `async with` of their datasets, entered when first needed: on a
    private loop, or on the `loop` that runs."""

    def __init__(self, slots: list[Place], loop: asyncio.AbstractEventLoop | None, base_seed: int) -> None:
        self.slots = slots
        self.base_seed = base_seed
        self.loop = loop
        self._private = PrivateLoop()
        self._stack = AsyncExitStack()
        self._entered: set[int] = set()
        self._abandoned = weakref.finalize(self, _abandon, self._stack, self._private, loop)

    @classmethod
    def of(
        cls,
        job: Job,
        num_workers: int,
        base_seed: int,
        loop: asyncio.AbstractEventLoop | None,
        *,
        ranks: Ranks,
        forks: bool,
    ) -> Team:
        """As many as there would be workers, each with its copy of the job. Raises TypeError where it has none.

        `forks`: workers would be forks of this process, so nothing need be possible to copy; then they share it.
        """
        if num_workers == 0:
            return cls([Place(job, ranks)], loop, base_seed)
        if job.worker_setup is not None:
            run_setup(job.worker_setup)
        try:
            make = replicator(job)
        except (TypeError, RuntimeError) as error:
            if not forks:
                raise
            logging.getLogger("aloader").warning("ALOADER_DEBUG: all workers share one dataset, since %s", error)
            make = partial(Job, *job)
        slots: list[Place] = [Slot(number, num_workers, base_seed, make(), ranks) for number in range(num_workers)]
        return cls(slots, loop, base_seed)

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine where the datasets are entered. Never waits if that is a private loop."""
        return self._private.run(coroutine) if self.loop is None else await coroutine

    async def enter(self, slot: Place) -> None:
        """Enter the `async with` of a place's dataset, once."""
        if id(slot) not in self._entered:
            self._entered.add(id(slot))
            await self.run(driven(slot, enter(slot.job.dataset, self._stack)))

    async def aclose(self) -> None:
        """Leave every `async with`. Idempotent."""
        if self._abandoned.detach() is None:
            return
        try:
            if self._entered:
                await self.run(self._stack.aclose())
        finally:
            self._private.close()

    def close(self) -> None:
        """The same without a loop; what was entered on a running one is left in a later step of that."""
        if self.loop is None:
            stepped(self.aclose())
        else:
            self._abandoned()


def _abandon(stack: AsyncExitStack, private: PrivateLoop, loop: asyncio.AbstractEventLoop | None) -> None:
    if loop is None:
        try:
            if private.used:
                private.run(stack.aclose())
        finally:
            private.close()
    elif not loop.is_closed():
        tasks: set[Any] = set()  # known to itself: a loop would let it go
        loop.call_soon_threadsafe(lambda: tasks.add(loop.create_task(stack.aclose())))


def stepped(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits: no loop is needed for it, and none is running while it does."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")
