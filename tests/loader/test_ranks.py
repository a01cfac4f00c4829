"""In ranks as torchrun makes them: data shared out by rank and worker arrives once, whoever made the processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ranks import Ranks

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

PROGRAM = """
import asyncio, itertools, json, os, sys
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info
from aloader import DataLoader, WorkerPool

class Shards(IterableDataset):
    def __iter__(self):
        assert dist.is_initialized(), "the worker does not know that there are ranks"
        info = get_worker_info()
        place = dist.get_rank() * info.num_workers + info.id
        return itertools.islice(range(101), place, None, dist.get_world_size() * info.num_workers)

class AsyncShards:
    async def __aiter__(self):
        for number in Shards():
            await asyncio.sleep(0)
            yield number

dist.init_process_group("gloo")
seen = {}
with WorkerPool(2) as processes:  # one template for both
    for kind in (Shards, AsyncShards):
        for how in ({"pool": processes}, {"num_workers": 2, "multiprocessing_context": "fork"}):
            loader = DataLoader(kind(), batch_size=8, **how)
            seen[f"{kind.__name__} {[*how]}"] = [int(i) for batch in loader for i in batch]
            loader.close()
dist.destroy_process_group()
with open(os.path.join(sys.argv[1], f"rank{os.environ['LOCAL_RANK']}.json"), "w") as file:
    json.dump(seen, file)
"""


SHARES = """
import asyncio, json, os, sys
import torch.distributed as dist
from torch.utils.data import IterableDataset
from aloader import DataLoader, WorkerPool, shard_info

class Shares(IterableDataset):
    def __iter__(self):
        yield from shard_info().of(range(101))

class AsyncShares:
    async def __aiter__(self):
        for number in shard_info().of(range(101)):
            await asyncio.sleep(0)
            yield number

def read(where):
    for kind in (Shares, AsyncShares):
        for workers in (0, 1, 2):
            pool = {"pool": processes} if workers else {}  # one template for all of them
            loader = DataLoader(kind(), 8, num_workers=workers, distributed=True, **pool)
            seen[f"{where} {kind.__name__} {workers}"] = [int(i) for batch in loader for i in batch]
            loader.close()

seen = {}
with WorkerPool(2) as processes:
    read("environment")
    dist.init_process_group("gloo")
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    read("gloo")
    dist.barrier()
    dist.destroy_process_group()
with open(os.path.join(sys.argv[1], f"rank{os.environ['LOCAL_RANK']}.json"), "w") as file:
    json.dump(seen, file)
"""


def read_by_ranks(ranks: int, source: str, folder: Path) -> list[dict[str, list[int]]]:
    """What each rank of a program says that it has read, in every way."""
    script = folder / "ranks.py"
    script.write_text(source)
    running = Ranks([script, folder], folder, ranks)
    assert running.end() == 0, "".join(running.lines)[-4000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def test_an_iterable_dataset_that_shares_itself_out_is_read_once(tmp_path: Path) -> None:
    ranks = read_by_ranks(2, PROGRAM, tmp_path)
    assert len(ranks[0]) == 4
    for kind in ranks[0]:
        shares = [rank[kind] for rank in ranks]
        assert all(len(share) > 40 for share in shares), kind
        assert sorted(shares[0] + shares[1]) == list(range(101)), kind


@pytest.mark.parametrize("processes", [3])
def test_one_that_asks_for_its_shard_is_read_once_with_a_process_group_and_without(
    tmp_path: Path, processes: int
) -> None:
    ranks = read_by_ranks(processes, SHARES, tmp_path)
    assert len(ranks[0]) == 12
    for way in ranks[0]:
        shares = [rank[way] for rank in ranks]
        assert max(map(len, shares)) - min(map(len, shares)) <= 2, way  # one for each worker at most
        assert sorted(number for share in shares for number in share) == list(range(101)), way
