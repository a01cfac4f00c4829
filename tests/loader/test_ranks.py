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


def test_an_iterable_dataset_that_shares_itself_out_is_read_once(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(ranks) == 2
    for kind in ranks[0]:
        shares = [rank[kind] for rank in ranks]
        assert all(len(share) > 40 for share in shares), kind
        assert sorted(shares[0] + shares[1]) == list(range(101)), kind
