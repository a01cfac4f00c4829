"""Tensors in shared memory reach a worker as the same memory, whichever of torch's strategies is in force."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch

from aloader.channel.carry import carry, restore
from aloader.channel.sharing import by_name


@pytest.fixture(params=sorted(torch.multiprocessing.get_all_sharing_strategies()))
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.mark.usefixtures("strategy")
def test_what_is_shared_is_the_same_memory_and_what_is_not_is_a_copy():
    shared, plain = torch.arange(12.0).share_memory_(), torch.arange(4.0)
    packed = carry({"part": shared[2:6], "all": shared, "plain": plain}, share=by_name)
    found = restore(packed.body, packed.buffers)
    found["all"][3] = 100.0
    found["plain"][0] = 100.0
    assert found["part"][1] == 100.0, "views share"
    assert shared[3] == 100.0
    assert plain[0] == 0.0
    assert found["all"].tolist() == shared.tolist()


@pytest.mark.usefixtures("strategy")
def test_the_same_memory_is_the_same_pickle():
    shared = torch.arange(12.0).share_memory_()
    first, second = (carry([shared], share=by_name) for _ in range(2))
    shared[0] = 7.0
    assert first.body == second.body == carry([shared], share=by_name).body
    assert first.buffers == []
    assert pickle.loads(first.body)[0][0] == 7.0
