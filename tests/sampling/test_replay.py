"""What it costs to note where a user's sampler is, how it is found again, and what is counted on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from aloader.sampling.replayed import AT_ONCE
from tests.sampling.kinds import KINDS, N, Stateful, Subclass, as_json, begun, rest, used


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
