"""Which part of the data is read here: `aloader.shard_info()`, for datasets that share themselves out.

A reader is one worker of one rank; without workers, the rank itself. What it is told comes from torch's worker info,
which carries the loader's ranks in aloader's own workers; in the program's process from the loader that is reading; and
where neither says, from torch.distributed or the environment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

from torch.utils.data import get_worker_info

from aloader import ranks
from aloader.ranks import Ranks

T = TypeVar("T")

#: The ranks of the loader that reads in this process, for as long as it does.
loader_ranks: Final[ContextVar[Ranks | None]] = ContextVar("aloader loader_ranks", default=None)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One reader among all those that read a dataset: `worker` of `num_workers`, of `rank` of `world_size`."""

    rank: int
    world_size: int
    worker: int
    num_workers: int

    @property
    def index(self) -> int:
        """This reader's number, from 0: the workers of rank 0 come first."""
        return self.rank * self.num_workers + self.worker

    @property
    def count(self) -> int:
        """How many readers there are."""
        return self.world_size * self.num_workers

    def of(self, items: Iterable[T]) -> Iterator[T]:
        """This reader's share: every `count`-th item, from `index` on.

        All items are gone through, and the others' are passed over: so share out what costs nothing to list (names of
        files, numbers of pages), not what has been read already. Every reader has to list the same in the same order.
        """
        return itertools.islice(items, self.index, None, self.count)


def shard_info() -> ShardInfo:
    """Which part of the data is this reader's, over all ranks and workers. Ask while reading: in `__iter__`, not in
    `__init__`, which runs before there are workers.

        class Lines(IterableDataset):
            def __iter__(self):
                for path in aloader.shard_info().of(self.paths):
                    yield from open(path)

        class Pages:
            async def __aiter__(self):
                for number in aloader.shard_info().of(range(self.pages)):
                    for row in await self.client.page(number):
                        yield row

    Also in workers of torch's own loader. Outside of any loader: this process's rank, and worker 0 of 1. Raises
    ValueError for an environment whose RANK and WORLD_SIZE contradict each other.
    """
    info = get_worker_info()
    if info is None:
        return ShardInfo(*(loader_ranks.get() or ranks.current()), 0, 1)
    told: Ranks | None = getattr(info, "ranks", None)
    return ShardInfo(*(told or ranks.current()), info.id, info.num_workers)
