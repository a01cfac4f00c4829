"""Under torchrun: data that is shared out by rank and worker arrives once, whoever made the processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent

#: The command of that name.
TORCHRUN = "from torch.distributed.run import main; main()"

PROGRAM = """
import asyncio, itertools, json, sys
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info
from aloader import DataLoader

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
for kind in (Shards, AsyncShards):
    for context in (None, "fork"):
        loader = DataLoader(kind(), batch_size=8, num_workers=2, multiprocessing_context=context)
        seen[f"{kind.__name__} {context}"] = [int(i) for batch in loader for i in batch]
        loader.close()
everybody = [None, None]
dist.all_gather_object(everybody, seen)
if dist.get_rank() == 0:
    print(json.dumps(everybody))
dist.destroy_process_group()
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


def torchrun(processes: int, source: str, folder: Path) -> str:
    """What a program prints that runs in so many processes."""
    script = folder / "ranks.py"
    script.write_text(source)
    launcher = [sys.executable, "-c", TORCHRUN, "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
        "TMPDIR": str(folder),
    }
    command = [*launcher, str(script), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_an_iterable_dataset_that_shares_itself_out_is_read_once(tmp_path: Path) -> None:
    ranks = json.loads(torchrun(2, PROGRAM, tmp_path).strip().splitlines()[-1])
    assert len(ranks) == 2
    for kind in ranks[0]:
        shares = [rank[kind] for rank in ranks]
        assert all(len(share) > 40 for share in shares), kind
        assert sorted(shares[0] + shares[1]) == list(range(101)), kind


@pytest.mark.parametrize("processes", [3])
def test_one_that_asks_for_its_shard_is_read_once_with_a_process_group_and_without(
    tmp_path: Path, processes: int
) -> None:
    torchrun(processes, SHARES, tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(processes)]
    assert len(ranks[0]) == 12
    for way in ranks[0]:
        shares = [rank[way] for rank in ranks]
        assert max(map(len, shares)) - min(map(len, shares)) <= 2, way  # one for each worker at most
        assert sorted(number for share in shares for number in share) == list(range(101)), way
