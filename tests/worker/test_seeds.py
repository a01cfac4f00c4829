"""A worker's generators and what it knows of itself are torch's own, for the same base seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from aloader.worker.seeds import become
from tests.loader.samples import Numbers


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    """This process is no worker afterwards, and its generators are as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_num_threads()
    yield
    torch_worker._worker_info = None
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    torch.set_num_threads(states[3])


def drawn() -> tuple[Any, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(())), torch.initial_seed()


class Draws(Numbers):
    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return drawn()


@pytest.mark.slow
def test_the_first_numbers_are_those_of_torchs_workers():
    torch.manual_seed(11)
    base_seed = torch.empty((), dtype=torch.int64).random_().item()  # what torch's iterator draws first
    torch.manual_seed(11)
    theirs = list(DataLoader(Draws(2), batch_size=None, num_workers=2, shuffle=False, multiprocessing_context="fork"))
    for slot in range(2):
        become(slot, 2, base_seed, None)
        ours = drawn()
        assert ours[3] == base_seed + slot
        assert ours == tuple(theirs[slot])


def test_a_worker_knows_itself():
    dataset = Numbers()
    become(2, 5, 100, dataset)
    info = get_worker_info()
    assert (info.id, info.num_workers, info.seed) == (2, 5, 102)
    assert info.dataset is dataset
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("base_seed", [0, 2**63 - 10, 1])
def test_workers_draw_different_numbers_and_the_same_ones_again(base_seed):
    def of(slot: int) -> tuple[Any, ...]:
        become(slot, 4, base_seed, None)
        return drawn()

    found = [of(slot) for slot in range(4)]
    assert len({numbers[:3] for numbers in found}) == 4
    assert [of(slot) for slot in range(4)] == found
