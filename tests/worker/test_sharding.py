"""A reader's share: of which data, and what a process, a worker of ours and a worker of torch's are told."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

from aloader import ShardInfo, shard_info
from aloader.ranks import Ranks
from aloader.worker.seeds import become
from aloader.worker.sharding import loader_ranks


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is no rank at first, and no worker afterwards."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    yield
    torch_worker._worker_info = None
    torch.set_rng_state(state)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 1), (1, 3), (2, 1), (3, 2)])
@pytest.mark.parametrize("n", [0, 1, 5, 6, 100])
def test_the_shares_of_all_readers_are_everything_once(world_size, num_workers, n):
    readers = [ShardInfo(r, world_size, w, num_workers) for r in range(world_size) for w in range(num_workers)]
    assert [reader.index for reader in readers] == list(range(world_size * num_workers))
    assert {reader.count for reader in readers} == {len(readers)}
    shares = [list(reader.of(iter(range(n)))) for reader in readers]
    assert sorted(item for share in shares for item in share) == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_share_of_what_has_no_end_can_be_begun():
    def numbers() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    share = ShardInfo(1, 2, 0, 2).of(numbers())
    assert [next(share) for _ in range(3)] == [2, 6, 10]


def test_outside_of_any_loader_it_is_the_process(monkeypatch):
    assert shard_info() == ShardInfo(0, 1, 0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert shard_info() == ShardInfo(2, 3, 0, 1)


def test_an_environment_that_contradicts_itself_is_an_error(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="RANK='3' and WORLD_SIZE='3'"):
        shard_info()


def test_a_loader_that_reads_here_says_it_otherwise(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    token = loader_ranks.set(Ranks(0, 4))
    assert shard_info() == ShardInfo(0, 4, 0, 1)
    loader_ranks.reset(token)
    assert shard_info() == ShardInfo(2, 3, 0, 1)


def test_a_worker_is_told_the_ranks_of_its_loader_and_has_asked_then(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    asked = become(1, 5, 100, None, ranks=Ranks(0, 4))
    assert not asked()
    assert shard_info() == ShardInfo(0, 4, 1, 5)
    assert asked()


def test_a_worker_of_torchs_is_told_the_ranks_of_the_process(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    torch_worker._worker_info = torch_worker.WorkerInfo(id=1, num_workers=5, seed=3, dataset=None)
    assert shard_info() == ShardInfo(2, 3, 1, 5)


def test_a_workers_info_stays_torchs_and_travels_as_torchs_own():
    become(1, 5, 100, "data", ranks=Ranks(0, 4))
    info = get_worker_info()
    assert isinstance(info, torch_worker.WorkerInfo)
    plain = torch_worker.WorkerInfo(id=1, num_workers=5, seed=101, dataset="data")
    assert repr(info) == repr(plain)
    copy = pickle.loads(pickle.dumps(info))
    assert type(copy) is torch_worker.WorkerInfo
    assert (copy.id, copy.num_workers, copy.seed, copy.dataset) == (1, 5, 101, "data")
