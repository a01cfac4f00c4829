"""A pass of any sampler is taken up after any ticket: in another process, again and again, and nobody notices."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from aloader.sampling import DistributedSampler, ShuffledSampler
from aloader.sampling.passes import Passes
from aloader.sampling.replayed import AT_ONCE
from aloader.sampling.source import SharesSource, source_of, tickets_of

N = 11


class Own(Sampler[int]):
    """A user's, without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


class OwnByEpoch(Own):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        epoch = self.epoch
        return (index + 100 * epoch for index in super().__iter__())


class Stateful(Sampler[int]):
    """A user's, which knows its place; its order is from a random state that nothing else tells."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.gone = 0
        self.asked = 0
        self.skip = 0

    def __iter__(self) -> Iterator[int]:
        self.gone, self.skip = self.skip, 0
        while self.gone < N:
            self.gone += 1
            yield self.random.randrange(10**6)

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"random": self.random.getstate(), "gone": self.gone, "array": np.arange(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert isinstance(state["array"], np.ndarray)
        self.random.setstate(state["random"])
        self.skip = self.gone = state["gone"]


class StatefulIterator:
    """An iterator that knows its place, of an iterable that knows nothing."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.at * 7

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Iterated(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


class StatefulBatches(Sampler[list[int]]):
    """A user's batch sampler: batches of all sizes."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[list[int]]:
        at, self.at = self.at, 0
        for size in range(at, 4):
            self.at = size + 1
            yield [size] * size
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Subclass(ShuffledSampler):
    """A user's: it has our methods, and may do anything else."""

    def __iter__(self) -> Iterator[int]:
        return (index + 1000 for index in super().__iter__())


def used(seed: int) -> torch.Generator:
    generator = torch.Generator().manual_seed(seed)
    torch.rand(3, generator=generator)
    return generator


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(range(N)),
    "random": lambda: RandomSampler(range(N)),
    "random, a part": lambda: RandomSampler(range(N), num_samples=7),
    "random, more than there are": lambda: RandomSampler(range(N), num_samples=25),
    "random, with replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=40),
    "random, own generator": lambda: RandomSampler(range(N), generator=torch.Generator().manual_seed(1)),
    "random, used generator": lambda: RandomSampler(range(N), generator=used(2)),
    "random, replacement, generator": lambda: RandomSampler(range(N), True, 40, generator=used(2)),
    "subset": lambda: SubsetRandomSampler([5, 3, 8, 1, 9, 2, 7]),
    "subset, generator": lambda: SubsetRandomSampler([5, 3, 8, 1, 9], generator=used(3)),
    "weighted": lambda: WeightedRandomSampler([0.1, 0.5, 0.2, 0.2], 13),
    "weighted, generator": lambda: WeightedRandomSampler([0.1, 0.5, 0.2, 0.2], 3, False, generator=used(3)),
    "torch's distributed": lambda: TorchDistributedSampler(range(N), 2, 1, seed=4),  # type: ignore[arg-type]
    "torch's distributed, in order": lambda: TorchDistributedSampler(range(N), 2, 1, False),  # type: ignore[arg-type]
    "torch's distributed, cut": lambda: TorchDistributedSampler(range(N), 2, 1, drop_last=True),  # type: ignore[arg-type]
    "distributed": lambda: DistributedSampler(N, 2, 0, seed=4),
    "shuffled": lambda: ShuffledSampler(N, seed=2, epoch=3),
    "shuffled, padded": lambda: ShuffledSampler(N, rank=3, world_size=4),
    "shuffled, cut": lambda: ShuffledSampler(N, rank=3, world_size=4, ends="drop"),
    "shuffled, even": lambda: ShuffledSampler(N, rank=1, world_size=4, ends="even"),
    "a list": lambda: [3, 1, 4, 1, 5, 9, 2],
    "own": Own,
    "own, by epoch": OwnByEpoch,
    "own, with a state": Stateful,
    "own, whose iterator has a state": Iterated,
    "a subclass of ours": lambda: Subclass(N),
}

KINDS: dict[str, Callable[[], Any]] = {}
for _name, _make in SAMPLERS.items():
    KINDS[_name] = _make
    KINDS[f"{_name}, in batches"] = lambda make=_make: BatchSampler(make(), 3, False)  # type: ignore[misc]
    KINDS[f"{_name}, in full batches"] = lambda make=_make: BatchSampler(make(), 2, True)  # type: ignore[misc]
    KINDS[f"{_name}, in batches of batches"] = lambda make=_make: BatchSampler(  # type: ignore[misc]
        BatchSampler(make(), 2, False),  # type: ignore[arg-type]
        2,
        False,
    )
KINDS["own batches, with a state"] = StatefulBatches

EVERY = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def begun(sampler: Any, state: dict[str, Any] | None = None) -> Any:
    return source_of(sampler, Passes().begin(sampler), state)


def rest(source: Any) -> list[Any]:
    source.prepare()
    tickets = []
    while True:
        try:
            tickets.append(source.draw())
        except StopIteration:
            return tickets


def as_json(state: dict[str, Any], most: int = 1500) -> dict[str, Any]:
    text = json.dumps(state)
    drawn = "generator" in state or "random" in str(state.get("state"))
    assert len(text) < most or drawn
    return json.loads(text)


def global_states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def fresh(make: Callable[[], Any]) -> Any:
    """A sampler in the state of the world in which the passes of these tests begin."""
    seed_all(5)
    sampler = make()
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(3)
    return sampler


def uninterrupted(make: Callable[[], Any]) -> list[Any]:
    return rest(begun(fresh(make)))


@EVERY
def test_without_a_state_everything_is_drawn_as_torch_draws_it(make):
    sampler = fresh(make)
    theirs = list(sampler)
    after = global_states()
    ours = uninterrupted(make)
    leaf = getattr(sampler, "sampler", None)
    if getattr(leaf, "ends", None) != "even":  # whose last batch may have one sample more
        assert ours == theirs
    assert global_states() == after


@EVERY
def test_a_pass_goes_on_after_every_ticket_and_twice(make):
    theirs = uninterrupted(make)
    for gone in range(len(theirs) + 1):
        first = begun(fresh(make))
        first.prepare()
        assert [first.draw() for _ in range(gone)] == theirs[:gone]
        state = as_json(first.state(gone))
        seed_all(99)
        before = global_states()
        second = begun(make(), state)
        assert second.first == gone
        assert as_json(second.state(gone)) == as_json(second.state(gone)), "before anything is prepared or drawn"
        second.prepare()
        more = min(gone + 2, len(theirs))
        assert [second.draw() for _ in range(gone, more)] == theirs[gone:more]
        third = begun(make(), as_json(second.state(more)))
        assert third.first == more
        assert rest(third) == theirs[more:]
        assert third.exhausted
        assert rest(begun(make(), state)) == theirs[gone:], "the same state once more"
        assert global_states() == before, "nothing is drawn from anybody's generator"


@EVERY
def test_a_state_is_of_what_was_handed_out_however_much_was_drawn_ahead(make):
    theirs = uninterrupted(make)
    source = begun(fresh(make))
    source.prepare()
    states, drawn = [], 0
    for gone in range(len(theirs)):
        while drawn < min(gone + 3, len(theirs)):
            source.draw()
            drawn += 1
        states.append(as_json(source.state(gone)))
    for gone, state in enumerate(states):
        assert rest(begun(make(), state)) == theirs[gone:]


@EVERY
def test_a_state_before_the_first_draw_settles_what_is_drawn(make):
    seed_all(5)
    source = begun(make())
    state = as_json(source.state(0))
    theirs = rest(source)
    seed_all(6)
    before = global_states()
    assert rest(begun(make(), state)) == theirs
    assert global_states() == before


# -- ranks -------------------------------------------------------------------------------------------------------------

RANKED: dict[str, Callable[[int, int], Any]] = {
    "torch's": lambda rank, world: TorchDistributedSampler(range(200), world, rank, seed=4),  # type: ignore[arg-type]
    "distributed": lambda rank, world: DistributedSampler(200, world, rank, seed=4),
    "distributed, cut": lambda rank, world: DistributedSampler(200, world, rank, drop_last=True),
    "shuffled": lambda rank, world: ShuffledSampler(200, rank=rank, world_size=world),
    "shuffled, even": lambda rank, world: ShuffledSampler(200, rank=rank, world_size=world, ends="even"),
    "shuffled, cut": lambda rank, world: ShuffledSampler(200, rank=rank, world_size=world, ends="drop"),
}


@pytest.mark.parametrize("kind", RANKED.values(), ids=RANKED)
def test_four_ranks_then_two_then_three_have_each_sample_once(kind):
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
    twice, missed = seen - Counter(range(200)), Counter(range(200)) - seen
    if "cut" in str(kind(0, 3)) or getattr(kind(0, 3), "ends", "") == "drop" or getattr(kind(0, 3), "drop_last", False):
        assert (twice.total(), missed.total()) == (0, 2), "38 for three ranks: two are left out"
    elif getattr(kind(0, 3), "ends", "") == "even":
        assert not twice
        assert not missed
    else:
        assert (twice.total(), missed.total()) == (1, 0), "one is repeated"


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


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_any_place_of_a_billion_is_had_at_once():
    sampler = BatchSampler(ShuffledSampler(10**9, rank=3, world_size=8), 256, False)
    state = as_json(begun(sampler).state(400_000))
    source = begun(sampler, state)
    assert not source.heavy
    assert source.first == 400_000
    order = ShuffledSampler(10**9).order(0)
    start = 400_000 * 256 * 8 + 3
    assert source.draw() == order.slice(start, start + 256 * 8, 8)


def test_a_users_sampler_is_asked_for_each_pass_and_each_state_and_not_for_each_ticket():
    sampler = Stateful()
    source = begun(sampler)
    assert sampler.asked == 0
    for _ in range(8):
        source.draw()
    assert sampler.asked == 2, "at the beginning, and after the first ticket"
    for _ in range(3):
        source.state(5)
    assert sampler.asked == 3, "nothing has been drawn since"


def test_only_what_lies_between_two_states_is_replayed():
    sampler = Stateful()
    source = begun(sampler)
    skips = []
    for gone in range(N):
        if gone % 4 == 0:
            skips.append(source.state(gone)["skip"])
        source.draw()
    assert skips == [0, 0, 0]
    assert source.state(9)["skip"] == 1, "from the state at 8"
    assert source.state(9)["skip"] == 1, "a mark was taken at 11, beyond what is asked for"
    assert source.state(11)["skip"] == 0


@pytest.mark.parametrize("batched", [False, True])
def test_the_second_pass_of_a_sampler_that_forgets_the_first_as_it_is_drawn_from_is_taken_up(batched):
    """Before its first draw, such a sampler still says where the first pass ended."""
    sampler = Stateful()
    of = BatchSampler(sampler, 2, False) if batched else sampler
    rest(begun(of))
    source = begun(of)
    source.draw()
    source.draw()
    state = as_json(source.state(1))
    later = Stateful()
    assert rest(begun(BatchSampler(later, 2, False) if batched else later, state))[1:] == rest(source)


def test_the_second_pass_of_a_sampler_that_forgets_the_first_when_it_is_iterated_is_taken_up_from_its_beginning():
    of = BatchSampler(Subclass(N), 2, False)
    theirs = rest(begun(of))
    assert rest(begun(BatchSampler(Subclass(N), 2, False), as_json(begun(of).state(0)))) == theirs


def test_a_state_is_of_the_moment_it_was_taken_in():
    """A sampler may give the same object each time, and change it."""

    class Shares(Sampler[int]):
        def __init__(self) -> None:
            self.state = {"at": [0]}

        def __iter__(self) -> Iterator[int]:
            while self.state["at"][0] < 5:
                self.state["at"][0] += 1
                yield self.state["at"][0]

        def state_dict(self) -> Any:
            return self.state

        def load_state_dict(self, state: Any) -> None:
            self.state = state

    source = begun(Shares())
    for _ in range(3):
        source.draw()
    state = source.state(3)
    source.draw()
    assert rest(begun(Shares(), state)) == [4, 5]


def test_much_to_be_skipped_is_skipped_before_the_first_draw():
    data = list(range(10 * AT_ONCE))
    drawn = []

    class Counting(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            for index in data:
                drawn.append(index)
                yield index

    for gone, heavy in ((AT_ONCE, False), (AT_ONCE + 1, True)):
        state = as_json(begun(Counting()).state(gone))
        drawn.clear()
        source = begun(Counting(), state)
        assert source.heavy is heavy
        source.prepare()
        assert len(drawn) == (gone if heavy else 0)
        assert source.draw() == gone
        assert source.drawn == gone + 1


def test_a_state_that_is_asked_for_on_the_way_to_the_place_notes_nothing_new():
    """The way may be in a thread, and what the sampler says then is of nobody knows which ticket."""
    asked = []

    class Asking(Stateful):
        def __iter__(self) -> Iterator[int]:
            for index in super().__iter__():
                asked.append(source.state(6))
                yield index

    state = as_json(begun(Stateful()).state(6))
    source = begun(Asking(), state)
    source.draw()
    assert len(asked) == 7
    assert {one["tickets"] for one in asked[:6]} == {0, 1}, "the beginning, and after the first ticket"


@pytest.mark.parametrize(
    ("kind", "samples"),
    [("random", N), ("random, with replacement", 40), ("subset", 7), ("own", N), ("own, with a state", N)],
)
def test_samples_are_counted_with_those_before_the_place(kind, samples):
    for make, size in ((KINDS[kind], 1), (KINDS[f"{kind}, in batches"], 3)):
        source = begun(make())
        source.prepare()
        source.draw()
        source.draw()
        assert source.drawn == 2 * size
        later = begun(make(), as_json(source.state(2)))
        later.prepare()
        later.draw()
        assert later.drawn == min(3 * size, samples)
        rest(later)
        assert later.drawn == samples


def test_an_error_while_skipping_is_raised_where_the_ticket_should_be():
    class Failing(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(AT_ONCE)
            raise ValueError("bad sampler")

    source = begun(Failing(), as_json(begun(Failing()).state(AT_ONCE + 5)))
    source.prepare()
    with pytest.raises(ValueError, match="bad sampler"):
        source.draw()
    with pytest.raises(StopIteration):
        source.draw()


def test_a_users_generator_is_where_it_would_have_been_when_the_pass_ends():
    """The passes after it are as they would have been, too."""
    generator = used(8)
    sampler = RandomSampler(range(20), generator=generator)
    source = begun(sampler)
    state = as_json(source.state(10))
    rest(source)
    theirs = list(sampler)
    other = torch.Generator().manual_seed(77)
    later = RandomSampler(range(20), generator=other)
    rest(begun(later, state))
    assert list(later) == theirs


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (lambda: RandomSampler(range(9)), lambda: RandomSampler(range(8)), "number of samples was 9 and is 8"),
        (lambda: RandomSampler(range(9)), lambda: SequentialSampler(range(9)), "was 'random' and is 'sequential'"),
        (lambda: ShuffledSampler(9), lambda: ShuffledSampler(9, seed=1), "seed was 0 and is 1"),
        (lambda: ShuffledSampler(9), lambda: DistributedSampler(9, 1, 0), "was 'shuffled' and is 'distributed'"),
        (lambda: DistributedSampler(9, 1, 0), lambda: DistributedSampler(9, 1, 0, False), "shuffle was True"),
        (lambda: RandomSampler(range(9)), lambda: SubsetRandomSampler([1]), "kind 'random', and .* kind 'drawing'"),
        (lambda: SubsetRandomSampler([1]), lambda: RandomSampler(range(9)), "was 'drawing' and is 'random'"),
        (Own, lambda: RandomSampler(range(9), replacement=True), "kind 'replayed', and .* kind 'seeded'"),
        (Stateful, Own, "kind 'stateful', and .* kind 'replayed'"),
        (Stateful, Iterated, r"state_dict\(\) of the sampler said, and it is the iterator"),
    ],
)
def test_a_state_of_something_else_says_what_differs(before, now, words):
    state = as_json(begun(before()).state(0))
    with pytest.raises(ValueError, match=words):
        begun(now(), state)


def test_a_sampler_that_has_learnt_to_say_its_state_takes_up_an_older_one():
    state = as_json(begun(Own()).state(4))

    class Learnt(Own):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError("nothing was noted")

    assert rest(begun(Learnt(), state)) == list(Own())[4:]


def test_a_state_that_json_cannot_hold_names_the_sampler():
    class Odd(Stateful):
        def state_dict(self) -> dict[str, Any]:
            return {"lock": object()}

    with pytest.raises(TypeError, match=r"the sampler's state_dict\(\)\['lock'\] is of type object"):
        begun(Odd()).state(0)


def test_an_iterable_dataset_has_nothing_to_note_here():
    source = SharesSource(4)
    assert (source.first, source.state(3)) == (0, {})
