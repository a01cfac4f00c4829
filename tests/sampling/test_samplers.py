"""`ShuffledSampler` and `DistributedSampler` as samplers of their own: in any loop, and in torch's loader."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from aloader.sampling import DistributedSampler, ShuffledSampler
from aloader.sampling.permutation import Permutation

Kinds = ShuffledSampler | DistributedSampler


def shuffled(n: Any = 103, rank: int = 0, world_size: int = 1, **options: Any) -> ShuffledSampler:
    return ShuffledSampler(n, rank=rank, world_size=world_size, **options)


def distributed(n: Any = 103, rank: int = 0, world_size: int = 1, **options: Any) -> DistributedSampler:
    return DistributedSampler(n, world_size, rank, **options)


BOTH = pytest.mark.parametrize("kind", [shuffled, distributed])


def as_json(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 200
    return json.loads(text)


# -- orders ------------------------------------------------------------------------------------------------------------


def test_the_shuffled_order_is_the_permutation_of_its_seed_and_epoch():
    sampler = shuffled(20, seed=3)
    for epoch in (0, 1, 5):
        sampler.set_epoch(epoch)
        assert list(sampler) == Permutation(20, 3, epoch).slice(0, 20).tolist()
        assert all(type(index) is int for index in sampler)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 16])
def test_the_distributed_order_is_torchs(replicas, drop_last, shuffle):
    for n in (0, 1, 2, 3, 6, 7, 8, 15, 16, 17, 100, 9000):
        for rank in range(replicas):
            arguments: Any = (range(n), replicas, rank, shuffle, 5, drop_last)
            ours, theirs = DistributedSampler(*arguments), TorchDistributedSampler(*arguments)
            assert len(ours) == len(theirs)
            assert vars(ours) == vars(theirs), "the same attributes"
            for epoch in (0, 1, 12):
                ours.set_epoch(epoch)
                theirs.set_epoch(epoch)
                assert list(ours) == list(theirs)


def test_it_is_one_of_torchs_and_its_arguments_have_the_same_names_and_places():
    sampler = DistributedSampler(range(10), num_replicas=2, rank=1, shuffle=False, seed=3, drop_last=True)
    assert isinstance(sampler, TorchDistributedSampler)
    assert vars(sampler) == vars(DistributedSampler(range(10), 2, 1, False, 3, True))
    assert DistributedSampler(10, 2, 1).dataset == range(10)


def test_a_distributed_order_keeps_no_list():
    tracemalloc.start()
    try:
        sampler = distributed(10**6, 1, 4)
        indices = iter(sampler)
        first = [next(indices) for _ in range(1000)]
        assert len(set(first)) == 1000
        assert tracemalloc.get_traced_memory()[1] < 2**20, "what torch has of its own (8 MB) is not counted here"
    finally:
        tracemalloc.stop()


def test_a_billion_are_begun_at_once():
    tracemalloc.start()
    try:
        sampler = shuffled(10**9, 3, 8)
        assert len(sampler) == 125_000_000
        assert next(iter(sampler)) == Permutation(10**9, 0, 0).slice(3, 4)[0]
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 4, 10, 103])
def test_ranks_have_everything_between_them(n, world_size):
    order = Permutation(n, 0, 0).slice(0, n).tolist()
    for ends, expected in {
        "pad": Counter(order) + Counter(order[at % n] for at in range(-n % world_size)),
        "drop": Counter(order[: n - n % world_size]),
        "even": Counter(order),
    }.items():
        ranks = [shuffled(n, rank, world_size, ends=ends) for rank in range(world_size)]
        assert sum((Counter(sampler) for sampler in ranks), Counter()) == expected
        assert [len(sampler) for sampler in ranks] == [len(list(sampler)) for sampler in ranks]


def test_the_epoch_is_that_of_when_a_pass_began():
    sampler = distributed()
    before = list(sampler)
    begun = iter(sampler)
    sampler.set_epoch(1)
    assert list(begun) == before != list(sampler)


def test_the_dataset_is_looked_at_in_each_pass():
    data = [0] * 5
    sampler = shuffled(data)
    data += [0] * 3
    assert len(sampler) == len(list(sampler)) == 8


def test_a_distributed_sampler_of_a_dataset_that_has_grown_says_so():
    data = [0] * 5
    sampler = distributed(data, 0, 2)
    data += [0] * 3
    with pytest.raises(ValueError, match=r"len\(dataset\) is 8 now, which is not 3 samples for each of 2 replicas"):
        list(sampler)


# -- positions ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_pass_goes_on_after_the_last_index_that_was_given(kind, world_size):
    sampler = kind(20, 1 % world_size, world_size)
    sampler.set_epoch(2)
    theirs = list(sampler)
    for given in range(len(theirs)):
        indices = iter(sampler)
        assert [next(indices) for _ in range(given)] == theirs[:given]
        later = kind(20, 1 % world_size, world_size)
        later.load_state_dict(as_json(sampler.state_dict()))
        again = as_json(later.state_dict())
        assert again == as_json(sampler.state_dict())
        assert list(later) == theirs[given:]
        assert list(later) == theirs, "the pass after it is a whole one"


@BOTH
def test_a_state_of_the_end_is_followed_by_nothing_and_another_epoch_by_everything(kind):
    sampler, later = kind(), kind()
    theirs = list(sampler)
    for state in (sampler.state_dict(), as_json(sampler.state_dict())):
        later.load_state_dict(state)
        assert list(later) == []
        later.load_state_dict(state)
        later.set_epoch(0)
        assert list(later) == [], "the epoch that the state is of"
        later.load_state_dict(state)
        later.set_epoch(1)
        assert sorted(later) == sorted(theirs)


@BOTH
def test_a_state_before_the_first_index_is_of_the_beginning(kind):
    sampler = kind()
    assert sampler.state_dict()["samples"] == 0
    theirs = list(sampler)
    iter(sampler)
    assert sampler.state_dict()["samples"] == 0
    sampler.set_epoch(3)
    assert sampler.state_dict() == {**sampler.state_dict(), "epoch": 3, "samples": 0}
    sampler.set_epoch(0)
    assert list(sampler) == theirs


@BOTH
def test_an_iterator_that_nothing_is_drawn_from_does_not_use_the_position_up(kind):
    """Torch's loader asks for two when it has workers."""
    sampler = kind()
    state = {**sampler.state_dict(), "samples": 100}
    theirs = list(sampler)
    sampler.load_state_dict(state)
    iter(sampler)
    assert list(iter(sampler)) == theirs[100:]


@BOTH
def test_four_ranks_then_two_then_three_have_each_sample_once(kind):
    seen: list[int] = []
    state = kind(103).state_dict()
    for world_size, given in ((4, 9), (2, 11), (3, None)):
        states = []
        for rank in range(world_size):
            sampler = kind(103, rank, world_size)
            sampler.load_state_dict(as_json(state))
            indices = iter(sampler)
            seen += indices if given is None else [next(indices) for _ in range(given)]
            states.append(sampler.state_dict())
        assert all(other == states[0] for other in states), "the same on all ranks"
        state = states[0]
    assert Counter(seen) == Counter(range(103)), "45 samples for 3 ranks come out even"


@BOTH
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_torchs_loader_takes_them(kind, workers):
    for batched in (True, False):
        sampler = kind(40, 1, 2)
        options: Any = {"batch_size": 4} if batched else {"batch_size": None}
        loader = DataLoader(torch.arange(40), sampler=sampler, num_workers=workers, **options)  # type: ignore[arg-type]
        assert torch.stack(list(loader)).flatten().tolist() == list(sampler)
        state = {**sampler.state_dict(), "samples": 16}
        sampler.load_state_dict(state)
        assert torch.stack(list(loader)).flatten().tolist() == list(sampler)[8:]


@BOTH
def test_a_copy_and_a_pickle_go_on_at_the_same_place(kind):
    sampler = kind()
    indices = iter(sampler)
    for _ in range(10):
        next(indices)
    assert pickle.loads(pickle.dumps(sampler)).state_dict() == sampler.state_dict()


# -- states of something else ------------------------------------------------------------------------------------------


def test_a_state_of_another_order_says_what_differs():
    state = shuffled(50, seed=1).state_dict()
    for other, words in {
        shuffled(51, seed=1): "number of samples was 50 and is 51",
        shuffled(50, seed=2): "seed was 1 and is 2",
        distributed(50, seed=1): "kind of sampler was 'shuffled' and is 'distributed'",
    }.items():
        with pytest.raises(ValueError, match=words):
            other.load_state_dict(state)
        assert other.state_dict()["samples"] == 0
    with pytest.raises(ValueError, match="shuffle was True and is False"):
        distributed(shuffle=False).load_state_dict(distributed().state_dict())


@BOTH
def test_a_state_of_another_version_is_refused(kind):
    with pytest.raises(ValueError, match=r"is of version 99, and this aloader reads version 1"):
        kind().load_state_dict({**kind().state_dict(), "version": 99})
    with pytest.raises(ValueError, match=r"version None"):
        kind().load_state_dict({})


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"data_source_or_n": -1}, ValueError, "data_source_or_n should be a number of samples from 0 to 2"),
        ({"data_source_or_n": 2**62 + 1}, ValueError, "data_source_or_n should be"),
        ({"data_source_or_n": 1.5}, TypeError, "data_source_or_n .* should be an integer"),
        ({"data_source_or_n": iter([1])}, TypeError, "a dataset with a length, or the number of samples"),
        ({"seed": 1.0}, TypeError, "seed should be an integer, but got seed=1.0"),
        ({"seed": None}, TypeError, "seed should be an integer"),
        ({"epoch": True}, TypeError, "epoch should be an integer"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank=2, world_size=2"),
        ({"rank": -1}, ValueError, "rank=-1"),
        ({"world_size": 0}, ValueError, "world_size=0"),
        ({"ends": "cut"}, ValueError, "ends should be one of 'pad', 'drop', 'even', but got ends='cut'"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        ShuffledSampler(**{"data_source_or_n": 10, **arguments})


@BOTH
def test_an_epoch_is_a_number(kind):
    with pytest.raises(TypeError, match="epoch should be an integer, but got epoch='1'"):
        kind().set_epoch("1")
    sampler = kind()
    sampler.set_epoch(np.int64(4))
    assert type(sampler.epoch) is int


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_wrong_rank_is_an_error_with_torchs_words(rank):
    with pytest.raises(ValueError, match=rf"Invalid rank {rank}, rank should be in the interval \[0, 1\]"):
        DistributedSampler(10, 2, rank)


def test_ranks_are_those_of_the_environment_or_this_process_is_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = DistributedSampler(10)
    assert (alone.rank, alone.num_replicas) == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    third = DistributedSampler(10)
    assert (third.rank, third.num_replicas) == (2, 3)
    assert DistributedSampler(10, rank=1).rank == 1


def test_they_say_what_they_are():
    assert repr(shuffled(10, 1, 2, seed=3, epoch=4, ends="even")) == (
        "ShuffledSampler(10, seed=3, epoch=4, rank=1, world_size=2, ends='even')"
    )
    assert repr(distributed(10, 1, 2)) == (
        "DistributedSampler(10, num_replicas=2, rank=1, shuffle=True, seed=0, drop_last=False, epoch=0)"
    )
    assert isinstance(shuffled(), Sampler)
    assert list(BatchSampler(shuffled(0), 3, False)) == []
