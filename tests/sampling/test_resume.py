"""A pass of any sampler is taken up after any ticket: in another process, again and again, and nobody notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler

from aloader.sampling import DistributedSampler, ShuffledSampler
from aloader.sampling.source import SharesSource
from tests.sampling.kinds import KINDS, Iterated, Own, Stateful, as_json, begun, global_states, rest, seed_all

EVERY = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


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
