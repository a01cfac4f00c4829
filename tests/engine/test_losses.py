"""Who is to blame for a worker's death: mostly nobody. Every short story of one ticket is told, and judged twice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from aloader.engine import Dispatcher, DispatcherConfig, events
from aloader.engine.events import WorkerLost
from aloader.engine.invariants import check
from aloader.engine.losses import Losses
from aloader.engine.slots import Slot, Ticket, make_slots

COLLATING = None  # a death at the ticket, and at no sample of it
TOGETHER = None  # the same, in a call for all of its samples
UNCERTAIN = "uncertain"  # several samples were at work
ELSEWHERE = "elsewhere"  # the ticket was held, and another one at work
WITH_OTHERS = "with others"  # what they are forked from has died

Story = tuple[Any, ...]
#: A sample, another one, and everything else that a death can be at.
ENDS: tuple[Any, ...] = (0, 1, COLLATING, UNCERTAIN, ELSEWHERE, WITH_OTHERS)


def held(*seqs: int) -> Slot:
    """A slot with these tickets."""
    (slot,) = make_slots(1, 8, in_order=True)
    for seq in seqs:
        slot.held[seq] = Ticket(seq, None, slot.lane)
    return slot


def lost(at: Any, running: int = 7, **more: Any) -> WorkerLost:
    """A death while ticket 7 was held, at one of `ENDS`."""
    running_too = at not in (UNCERTAIN, ELSEWHERE, WITH_OTHERS)
    return WorkerLost(
        0,
        0,
        running if running_too else None,
        f"died at {at}",
        place=at if running_too else None,
        certain=at != UNCERTAIN,
        incident=9 if at == WITH_OTHERS else 0,
        **more,
    )


def judged(story: Story) -> bool:
    """Whether the last of these deaths condemns the ticket, by the rules as a person would say them."""
    *before, last = story
    deaths = [end for end in before if end not in (ELSEWHERE, WITH_OTHERS)]
    if last in (UNCERTAIN, ELSEWHERE, WITH_OTHERS) or len(deaths) < 2:
        return False
    known = deaths.count(COLLATING) + (0 if last is COLLATING else deaths.count(last))
    return known > 0 and known + deaths.count(UNCERTAIN) >= 2


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_every_short_story_of_a_ticket(length):
    condemned = 0
    for story in itertools.product(ENDS, repeat=length):
        if any(judged(story[:end]) for end in range(1, length)):
            continue  # it has ended before
        losses, slot = Losses(99, tolerant=False), held(7, 8)
        *outcomes, last = [losses.condemned(slot, lost(end)) for end in story]
        assert outcomes == [None] * (length - 1), story
        assert (last is slot.held[7]) == judged(story), story
        assert last is not slot.held[8], story
        deaths = sum(end not in (ELSEWHERE, WITH_OTHERS) for end in story)
        assert slot.held[7].alone == (deaths >= 2), story
        assert slot.held[8].alone == (story.count(UNCERTAIN) >= 2), story
        condemned += last is not None
    assert (condemned > 0) == (length > 2), "no sample is guilty before its third death"


def test_deaths_at_other_places_never_add_up():
    losses, slot = Losses(0, tolerant=False), held(7)
    assert not any(losses.condemned(slot, lost(place)) for place in (0, 1, 2, 0, 1, 3, 2))
    assert losses.condemned(slot, lost(2)) is slot.held[7], "the third one there"


def test_who_only_held_it_never_pays():
    losses, slot = Losses(0, tolerant=False), held(*range(6))
    for _ in range(20):
        for end in (UNCERTAIN, ELSEWHERE, WITH_OTHERS):
            assert losses.condemned(slot, lost(end)) is None


@pytest.mark.parametrize("seed", range(20))
def test_kills_at_random_condemn_nobody(seed):
    """A hundred kills of workers that go through tickets of 64 samples. A third of them hit a ticket once more."""
    chance = random.Random(seed)
    losses, slot = Losses(200, tolerant=False), held(*range(4))
    for seq in range(4, 104):
        running = min(slot.held)
        assert losses.condemned(slot, lost(chance.randrange(64), running)) is None
        if chance.random() < 0.7:
            del slot.held[running]
            slot.held[seq] = Ticket(seq, None, slot.lane)


def test_who_was_one_of_many_is_no_culprit_when_he_is_killed_alone_for_the_first_time():
    losses, slot = Losses(0, tolerant=False), held(7)
    assert not any(losses.condemned(slot, lost(end)) for end in (UNCERTAIN, UNCERTAIN, 4, 5))
    assert losses.condemned(slot, lost(4)) is slot.held[7]


def test_stuck_twice_at_one_sample_is_its_fault_and_elsewhere_is_another_matter():
    losses, slot = Losses(9, tolerant=False), held(7)
    assert losses.condemned(slot, lost(0, stuck=True)) is None
    assert losses.condemned(slot, lost(1, stuck=True)) is None
    assert losses.condemned(slot, lost(0, stuck=True)) is None
    assert not slot.held[7].alone
    assert losses.condemned(slot, lost(0, stuck=True)) is slot.held[7]


def test_stuck_in_a_call_for_all_samples_it_is_tried_one_by_one_and_the_next_time_is_the_second():
    losses, slot = Losses(9, tolerant=True), held(7)
    assert told(losses, slot, [TOGETHER], stuck=True) == [True]
    assert slot.held[7].alone
    assert told(losses, slot, [3], stuck=True) == [True]
    assert (slot.held[7].without, slot.held[7].alone) == (((3, "died at 3"),), False)


def test_who_is_to_be_tried_one_by_one_stays_so_whatever_else_happens():
    losses, slot = Losses(9, tolerant=False), held(7)
    assert losses.condemned(slot, lost(TOGETHER, stuck=True)) is None
    assert losses.condemned(slot, lost(2)) is None
    assert slot.held[7].alone


# -- doing without -----------------------------------------------------------------------------------------------------


def test_where_a_batch_can_do_without_a_sample_its_ticket_goes_on_without_it():
    losses, slot = Losses(9, tolerant=True), held(7)
    for place in (4, 4, 4, 2, 2, 2):
        assert losses.condemned(slot, lost(place)) is None
    ticket = slot.held[7]
    assert ticket.without == ((4, "died at 4"), (2, "died at 2"))
    assert (ticket.deaths, ticket.alone) == ((), False)
    assert not any(losses.condemned(slot, lost(4)) for _ in range(2))
    assert losses.condemned(slot, lost(4)) is ticket, "what fills its place is no better"


def test_what_is_no_samples_fault_cannot_be_left_out():
    losses, slot = Losses(9, tolerant=True), held(7)
    assert not any(losses.condemned(slot, lost(COLLATING)) for _ in range(2))
    assert losses.condemned(slot, lost(COLLATING)) is slot.held[7]


# -- how many are replaced ---------------------------------------------------------------------------------------------


def replaced(losses: Losses, *events: WorkerLost) -> list[bool]:
    return [losses.is_replaced(event) for event in events]


def test_so_many_are_replaced_as_may_be():
    for most in range(4):
        losses = Losses(most, tolerant=False)
        assert replaced(losses, *[lost(0)] * 5) == [True] * most + [False] * (5 - most)
        assert losses.replaced == most


def test_who_cannot_be_replaced_is_not_and_takes_no_restart_from_others():
    losses = Losses(2, tolerant=False)
    final = WorkerLost(0, 0, None, "no descriptors", final=True)
    assert replaced(losses, lost(0), final, final, lost(0), lost(0)) == [True, False, False, True, False]


def of_incident(number: int) -> WorkerLost:
    return lost(0)._replace(incident=number)


def test_what_ends_several_counts_once():
    losses = Losses(2, tolerant=False)
    incidents = [of_incident(1)] * 4 + [of_incident(2)] * 4 + [of_incident(3)] * 4
    assert replaced(losses, *incidents) == [True] * 8 + [False] * 4
    assert losses.replaced == 8
    assert replaced(Losses(0, tolerant=False), *incidents) == [False] * 12


def told(losses: Losses, slot: Slot, ends: Iterable[Any], **more: Any) -> list[bool]:
    """Whether the worker was replaced, death by death, as the dispatcher asks."""
    answers = []
    for end in ends:
        event = lost(end, **more)
        losses.condemned(slot, event)
        answers.append(losses.is_replaced(event))
    return answers


@pytest.mark.parametrize("tolerant", [False, True])
def test_deaths_that_are_explained_do_not_count(tolerant):
    losses = Losses(3, tolerant=tolerant)
    for seq in range(10):
        slot = held(7)
        assert told(losses, slot, [seq, seq, seq]) == [True] * 3, "poison takes no restarts from others"
    assert told(losses, held(7), [ELSEWHERE] * 4) == [True] * 3 + [False]


def test_two_that_kill_side_by_side_take_nothing_from_the_restarts_either():
    losses, one, other = Losses(2, tolerant=False), held(7), held(7)
    for _ in range(3):
        assert told(losses, one, [4]) == told(losses, other, [5]) == [True]
    assert told(losses, held(7), [ELSEWHERE] * 3) == [True] * 2 + [False]


def test_no_death_is_explained_twice():
    losses = Losses(3, tolerant=False)
    assert told(losses, held(7), [1, 1, 1]) == [True] * 3
    assert told(losses, held(7), [ELSEWHERE] * 4) == [True] * 3 + [False], "not more than there were before"
    losses = Losses(3, tolerant=False)
    assert told(losses, held(7), [5, 5], stuck=True) == [True] * 2
    assert told(losses, held(7), [ELSEWHERE] * 4) == [True] * 3 + [False]


def test_want_of_memory_is_met_once():
    losses = Losses(9, tolerant=False)
    starved = lost(0, oom=True)
    assert replaced(losses, lost(0), starved, lost(0), starved, lost(0)) == [True, True, True, False, True]
    losses = Losses(0, tolerant=False)
    assert replaced(losses, starved, starved) == [False, False]


def test_closing_while_a_suspect_is_alone_leaves_nothing():
    dispatcher = Dispatcher(DispatcherConfig(slots=1, credit=2, window=2, narrow_window=2, memory_limit=1 << 30))
    for event in (events.Opened(), events.Drawn([0]), events.Exhausted(), events.WorkerReady(0, 0)):
        dispatcher.handle(event)
    dispatcher.handle(lost(TOGETHER, 0, stuck=True))
    commands = dispatcher.handle(events.WorkerReady(0, 1))
    assert [command.alone for command in commands if isinstance(command, events.Assign)] == [True]
    dispatcher.handle(events.Closed())
    check(dispatcher)
