"""A pass goes on with other ranks, another number of them, and another batch size, from the same position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from aloader.sampling import DistributedSampler, ShuffledSampler
from aloader.sampling.source import tickets_of
from tests.sampling.kinds import as_json, begun, rest

#: How a rank's sampler is made, and how many of 38 samples for 3 ranks come twice, or not at all.
RANKED: dict[str, tuple[Callable[[int, int], Any], int, int]] = {
    "torch's": (lambda rank, world: TorchDistributedSampler(range(200), world, rank, seed=4), 1, 0),  # type: ignore[arg-type]
    "distributed": (lambda rank, world: DistributedSampler(200, world, rank, seed=4), 1, 0),
    "distributed, cut": (lambda rank, world: DistributedSampler(200, world, rank, drop_last=True), 0, 2),
    "shuffled": (lambda rank, world: ShuffledSampler(200, rank=rank, world_size=world), 1, 0),
    "shuffled, cut": (lambda rank, world: ShuffledSampler(200, rank=rank, world_size=world, ends="drop"), 0, 2),
    "shuffled, even": (lambda rank, world: ShuffledSampler(200, rank=rank, world_size=world, ends="even"), 0, 0),
}


@pytest.mark.parametrize(("kind", "twice", "missed"), RANKED.values(), ids=RANKED)
def test_four_ranks_then_two_then_three_have_each_sample_once(kind, twice, missed):
    """200 samples: 4 ranks × 5 batches of 6, 2 ranks × 3 batches of 7, 3 ranks the other 38."""
    seen: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    for world, size, given in ((4, 6, 5), (2, 7, 3), (3, 5, None)):
        states, firsts = [], set()
        for rank in range(world):
            source = begun(BatchSampler(kind(rank, world), size, False), state)
            firsts.add(source.first)
            batches = rest(source) if given is None else [source.draw() for _ in range(given)]
            seen.update(index for batch in batches for index in batch)
            states.append(as_json(source.state(source.first + len(batches))))
        assert all(other == states[0] for other in states), "the same on every rank"
        assert firsts == {0 if state is None else state["samples"] // (world * size)}
        state = states[0]
    assert state is not None
    assert state["samples"] == 200
    everything = Counter(range(200))
    assert ((seen - everything).total(), (everything - seen).total()) == (twice, missed)


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_another_batch_size_goes_on_at_the_same_sample(kind):
    source = begun(BatchSampler(kind(range(20)), 3, False))
    source.prepare()
    gone = [index for _ in range(4) for index in source.draw()]
    later = begun(BatchSampler(kind(range(20)), 5, False), as_json(source.state(4)))
    assert later.first == 12 // 5
    batches = rest(later)
    assert [len(batch) for batch in batches] == [5, 3]
    assert sorted(gone + sum(batches, [])) == list(range(20))  # noqa: RUF017
    assert later.drawn == 20


def test_all_ranks_have_as_many_batches_and_the_loader_can_know_how_many():
    for n in range(1, 60):
        batches = [BatchSampler(ShuffledSampler(n, rank=r, world_size=4, ends="even"), 4, False) for r in range(4)]
        counts = {len(rest(begun(of))) for of in batches}
        assert counts == {tickets_of(of) for of in batches}
        assert len(counts) == 1
    assert tickets_of(BatchSampler(SequentialSampler(range(10)), 4, False)) == 3
    assert tickets_of(SequentialSampler(range(10))) == 10


def test_a_position_that_our_sampler_was_given_itself_is_where_the_pass_begins():
    sampler = ShuffledSampler(100)
    theirs = list(sampler)
    sampler.load_state_dict({**sampler.state_dict(), "samples": 40})
    batches = BatchSampler(sampler, 10, False)
    source = begun(batches)
    assert source.first == 4
    assert rest(source) == [theirs[at : at + 10] for at in range(40, 100, 10)]
    assert rest(begun(batches))[0] == theirs[:10], "and the pass after it is a whole one"


def test_a_resumed_pass_is_of_the_epoch_of_its_state():
    sampler = ShuffledSampler(50, seed=1, epoch=7)
    theirs = list(sampler)
    state = as_json(begun(sampler).state(20))
    later = ShuffledSampler(50, seed=1)
    assert rest(begun(later, state)) == theirs[20:]
    assert later.epoch == 7


def test_any_place_of_a_billion_is_had_at_once():
    sampler = BatchSampler(ShuffledSampler(10**9, rank=3, world_size=8), 256, False)
    state = as_json(begun(sampler).state(400_000))
    source = begun(sampler, state)
    assert not source.heavy
    assert source.first == 400_000
    order = ShuffledSampler(10**9).order(0)
    start = 400_000 * 256 * 8 + 3
    assert source.draw() == order.slice(start, start + 256 * 8, 8)
