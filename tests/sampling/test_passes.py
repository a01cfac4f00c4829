"""What a loader tells its samplers, and what it notices from one pass to the next."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from aloader.sampling import DistributedSampler, ShuffledSampler
from aloader.sampling.passes import Passes, samplers_in, tell_epoch
from aloader.sampling.source import source_of


class Data:
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


class Told(SequentialSampler):
    epochs: tuple[int, ...] = ()

    def set_epoch(self, epoch: int) -> None:
        self.epochs = (*self.epochs, epoch)


class Shards:
    """As accelerate's wrapper of a batch sampler."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler


def test_whatever_lies_inside_is_told_once():
    inner = Told(Data(3))
    batches = BatchSampler(inner, 2, False)
    assert samplers_in(inner, batches) == [inner, batches]
    tell_epoch(3, inner, batches)
    tell_epoch(4, None, Shards(batches))
    tell_epoch(5, [1, 2])
    assert inner.epochs == (3, 4)


def distributed(**options: Any) -> TorchDistributedSampler[Any]:
    return TorchDistributedSampler(Data(8), num_replicas=2, rank=0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("batched", [False, True])
def test_an_epoch_that_is_drawn_again_is_noticed_once(batched):
    sampler = distributed()
    passes, of = Passes(), BatchSampler(sampler, 3, False) if batched else sampler
    list(passes.begin(of))
    with pytest.warns(UserWarning, match=r"shuffles the same way in every epoch: call loader\.set_epoch\(epoch\)"):
        list(passes.begin(of))
    list(passes.begin(of))


OURS = {
    "torch's": distributed,
    "distributed": lambda: DistributedSampler(8, 2, 0),
    "shuffled": lambda: ShuffledSampler(8),
}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_sources_say_it_too_but_not_of_an_epoch_that_was_asked_for(make, batched):
    """Sources do not always draw from the iterator that is watched."""

    def drawn(state: dict[str, Any] | None = None) -> dict[str, Any]:
        source = source_of(of, passes.begin(of), state)
        with pytest.raises(StopIteration):
            while True:
                source.draw()
        return source.state(0) if state is None else state

    sampler, passes = make(), Passes()
    of = BatchSampler(sampler, 3, False) if batched else sampler
    state = drawn()
    drawn(state)
    sampler.set_epoch(1)
    drawn()
    with pytest.warns(UserWarning, match="epoch 1 again"):
        drawn()
    drawn()


def test_a_sampler_that_its_loader_tells_the_epoch_is_not_watched():
    for sampler in (DistributedSampler(8, 2, 0), ShuffledSampler(8)):
        assert not sampler.automatic
        sampler.automatic = True
        passes = Passes()
        for _ in range(3):
            list(passes.begin(sampler))


def test_other_programs_are_left_in_peace():
    sampler, passes = distributed(), Passes()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        next(passes.begin(sampler))  # a look at the first batch
        assert list(passes.begin(sampler)) == list(sampler)
    for other in (distributed(shuffle=False), RandomSampler(Data(5))):
        for _ in range(3):
            list(passes.begin(other))


@pytest.mark.parametrize(
    ("drop_last", "after", "said"),
    [(False, 10, False), (False, 11, True), (False, 9, True), (True, 11, False), (True, 9, False), (True, 12, True)],
)
def test_a_length_that_has_changed_in_a_pass_is_noticed_once(drop_last, after, said):
    """Ten samples in batches of three: without the last one there are nine, which eleven would have given, too."""
    passes = Passes()
    for _ in range(2):
        data = Data(10)
        sampler = BatchSampler(SequentialSampler(data), 3, drop_last)
        drawn = sum(map(len, sampler))
        data.n = after
        if said:
            with pytest.warns(UserWarning, match=rf"it is {after} now, and the epoch had {9 if drop_last else 10} "):
                passes.ended(sampler, data, drawn)
            said = False
        else:
            passes.ended(sampler, data, drawn)


def test_samplers_that_do_not_go_over_all_of_it_are_not_asked():
    data = Data(10)
    for sampler in (
        RandomSampler(data, num_samples=3),
        RandomSampler(data, replacement=True),
        SubsetRandomSampler([1, 2]),
        SequentialSampler(Data(3)),
        [1, 2, 3],
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Passes().ended(sampler, data, 1)
