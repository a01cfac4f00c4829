"""What the loader draws is what torch's samplers give, and what is left of the global generator is torch's too."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from aloader import sampling
from aloader.sampling.source import OrderSource, SamplerSource, is_pure, source_of


def named(value: object) -> str:
    """The name of a parameter, without addresses: the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def drawn(source: SamplerSource | OrderSource) -> list[object]:
    source.prepare()
    tickets = []
    while True:
        try:
            tickets.append(source.draw())
        except StopIteration:
            return tickets


def sampler_of(n: int, num_samples: int | None, batch_size: int | None, drop_last: bool) -> object:
    inner = RandomSampler(range(n), num_samples=num_samples)
    return inner if batch_size is None else BatchSampler(inner, batch_size, drop_last)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 4, 12, 100])
@pytest.mark.parametrize(("n", "num_samples"), [(12, None), (13, None), (13, 12), (13, 5), (1, None), (13, 1)])
def test_a_permutation_is_torchs_and_leaves_torchs_random_state(n, num_samples, batch_size, drop_last):
    torch.manual_seed(7)
    theirs = list(sampler_of(n, num_samples, batch_size, drop_last))
    their_state = torch.get_rng_state()

    torch.manual_seed(7)
    sampler = sampler_of(n, num_samples, batch_size, drop_last)
    source = source_of(sampler, iter(sampler))
    assert isinstance(source, OrderSource)
    assert drawn(source) == theirs
    assert torch.equal(torch.get_rng_state(), their_state)


def test_what_is_drawn_stays_plain_integers():
    sampler = RandomSampler(range(5))
    assert all(type(index) is int for index in drawn(source_of(sampler, iter(sampler))))
    batched = BatchSampler(sampler, 2, False)
    assert all(type(indices) is list for indices in drawn(source_of(batched, iter(batched))))


def test_the_seed_is_drawn_when_the_source_is_made_and_not_later():
    torch.manual_seed(3)
    sampler = RandomSampler(range(50))
    source = source_of(sampler, iter(sampler))
    torch.manual_seed(4)
    torch.rand(10)
    torch.manual_seed(3)
    assert drawn(source) == list(RandomSampler(range(50)))


def test_after_the_end_comes_the_end_again():
    sampler = sampler_of(4, None, 2, False)
    source = source_of(sampler, iter(sampler))
    assert len(drawn(source)) == 2
    with pytest.raises(StopIteration):
        source.draw()


def test_two_epochs_are_two_permutations():
    torch.manual_seed(0)
    sampler = RandomSampler(range(100))
    first, second = (drawn(source_of(sampler, iter(sampler))) for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))


@pytest.mark.parametrize(
    "sampler",
    [
        SequentialSampler(range(7)),
        RandomSampler(range(7), replacement=True),
        RandomSampler(range(7), num_samples=20),  # more than there are: torch makes several permutations
        RandomSampler(range(7), generator=torch.Generator()),
        SubsetRandomSampler([1, 3, 5]),
        BatchSampler(SequentialSampler(range(7)), 2, False),
        [3, 1, 2],
        ["a", ("b", 1)],
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_other_samplers_give_what_torch_draws_of_them(sampler):
    def seeded() -> None:
        torch.manual_seed(5)
        if getattr(sampler, "generator", None) is not None:
            sampler.generator.manual_seed(5)

    seeded()
    theirs = list(sampler)
    seeded()
    source = source_of(sampler, iter(sampler))
    assert not source.heavy
    assert drawn(source) == theirs


def test_a_samplers_own_error_comes_through():
    def failing():
        yield 1
        raise ValueError("bad sampler")

    source = SamplerSource(failing())
    assert source.draw() == 1
    with pytest.raises(ValueError, match="bad sampler"):
        source.draw()


PURE = [
    SequentialSampler(range(9)),
    RandomSampler(range(9)),
    RandomSampler(range(9), num_samples=4),
    SubsetRandomSampler([1, 2]),
    WeightedRandomSampler([0.5, 0.5], 2),
    DistributedSampler(range(9), num_replicas=2, rank=0),
    sampling.DistributedSampler(9, num_replicas=2, rank=0),
    sampling.ShuffledSampler(9),
]


@pytest.mark.parametrize("sampler", PURE, ids=lambda s: type(s).__name__)
def test_torchs_own_samplers_and_ours_are_pure_also_in_batches_and_batches_of_batches(sampler):
    assert is_pure(sampler)
    assert is_pure(BatchSampler(sampler, 2, False))
    assert is_pure(BatchSampler(BatchSampler(sampler, 2, False), 2, False))


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler, SubsetRandomSampler])
def test_a_subclass_is_not_pure_nor_taken_apart(kind):
    class Own(kind):  # its __iter__ may look at anything
        pass

    own = Own(range(9))
    assert not is_pure(own)
    assert not is_pure(BatchSampler(own, 2, False))
    assert type(source_of(own, iter(own))) is SamplerSource


def test_a_subclass_of_the_batch_sampler_is_not_pure():
    class Own(BatchSampler):
        pass

    own = Own(SequentialSampler(range(9)), 2, False)
    assert not is_pure(own)
    assert type(source_of(own, iter(own))) is SamplerSource


@pytest.mark.parametrize(
    "sampler",
    [RandomSampler(range(9), replacement=True), RandomSampler(range(9), num_samples=10), range(3), [1, 2], iter([1])],
    ids=named,
)
def test_what_is_not_pure(sampler):
    assert not is_pure(sampler)
