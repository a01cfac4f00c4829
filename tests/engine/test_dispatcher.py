"""Each rule of the dispatcher, one at a time: events on the left, what it must answer on the right."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from aloader.engine import (
    Assign,
    Awaited,
    BatchArrived,
    CameToNothing,
    Closed,
    Command,
    Consumed,
    Deliver,
    Discard,
    Dispatcher,
    DispatcherConfig,
    Draw,
    Drawn,
    Event,
    Exhausted,
    Finish,
    Grant,
    NeedMemory,
    Omit,
    Opened,
    Raise,
    Restart,
    TicketFailed,
    WorkerLost,
    WorkerReady,
)

LIMIT = 1000
FIRST = 10


def make(slots: int = 2, **changes: Any) -> Dispatcher:
    """Two tickets a slot and four in all, whatever their size, unless `changes` say otherwise."""
    given = {"credit": 2, "narrow_window": 4, "memory_limit": LIMIT, "first_allowance": FIRST} | changes
    given.setdefault("window", given["narrow_window"])
    return Dispatcher(DispatcherConfig(slots=slots, **given))


def tell(dispatcher: Dispatcher, *events: Event) -> list[Command]:
    commands: list[Command] = []
    for event in events:
        commands += dispatcher.handle(event)
        dispatcher.validate()
    return commands


def drawn(*indices: object) -> list[Event]:
    return [Drawn(one) for one in indices]


def ready(*slots: int, generation: int = 0) -> list[Event]:
    return [WorkerReady(slot, generation) for slot in slots]


def arrived(slot: int, seq: int, nbytes: int = FIRST, generation: int = 0) -> BatchArrived:
    return BatchArrived(slot, generation, seq, nbytes, f"b{seq}")


def assigned(commands: list[Command]) -> list[tuple[int, int]]:
    return [(command.slot, command.seq) for command in commands if isinstance(command, Assign)]


def of(kind: type[Command], commands: list[Command]) -> list[Command]:
    return [command for command in commands if isinstance(command, kind)]


def opened(dispatcher: Dispatcher, tickets: int, *slots: int) -> list[Command]:
    """The epoch is open, the slots ready, and so many tickets drawn."""
    return tell(dispatcher, Opened(), *ready(*slots), *drawn(*range(tickets)))


# -- drawing and the window -------------------------------------------------------------------------------------------


def test_an_epoch_opens_with_the_narrow_window() -> None:
    assert tell(make(), Opened()) == [Draw(4)]


def test_the_window_widens_when_batches_turn_out_small_and_narrows_when_they_grow() -> None:
    dispatcher = make(window=8, wide_window_bytes=80)
    opened(dispatcher, 4, 0, 1)
    assert of(Draw, tell(dispatcher, arrived(0, 0, nbytes=10))) == [Draw(4)]
    tell(dispatcher, *drawn(4, 5, 6, 7))
    assert of(Draw, tell(dispatcher, arrived(1, 1, nbytes=11), Consumed(0), Consumed(1))) == []
    assert dispatcher.statistics().window == 4


def test_what_is_blocked_by_a_late_batch_does_not_count_up_to_the_far_window() -> None:
    dispatcher = make(credit=4, far_window=6, memory_limit=4 * 60)
    opened(dispatcher, 4, 0, 1)
    assert of(Draw, tell(dispatcher, arrived(1, 1))) == [Draw(1)]
    assert of(Draw, tell(dispatcher, Drawn(4), arrived(1, 3))) == [Draw(1)]
    assert of(Draw, tell(dispatcher, Drawn(5), arrived(0, 2))) == []  # six in all
    assert of(Deliver, tell(dispatcher, arrived(0, 0))) != []
    assert of(Draw, tell(dispatcher, Consumed(0), Consumed(1))) == []  # nothing is blocked: they count again
    assert of(Draw, tell(dispatcher, Consumed(2))) == [Draw(1)]


def test_an_error_can_be_blocked_too() -> None:
    dispatcher = make(credit=4, far_window=6)
    opened(dispatcher, 4, 0, 1)
    assert of(Draw, tell(dispatcher, TicketFailed(1, 0, 3, "no"))) == []  # no batch yet: its size is not known
    assert of(Draw, tell(dispatcher, arrived(1, 1))) == [Draw(2)]


def test_where_so_many_batches_take_too_much_memory_there_is_no_far_window() -> None:
    dispatcher = make(credit=4, far_window=6, memory_limit=4 * 60 - 1)
    opened(dispatcher, 4, 0, 1)
    assert of(Draw, tell(dispatcher, arrived(1, 1))) == []


def test_a_quarter_of_the_memory_limit_bounds_the_wide_window_too() -> None:
    dispatcher = make(window=8, memory_limit=319)
    opened(dispatcher, 4, 0, 1)
    assert of(Draw, tell(dispatcher, arrived(0, 0, nbytes=10))) == []
    assert of(Draw, tell(dispatcher, arrived(1, 1, nbytes=9))) == [Draw(4)]


def test_what_was_asked_of_the_sampler_counts_as_drawn() -> None:
    dispatcher = make(narrow_window=2)
    tell(dispatcher, Opened(), *ready(0, 1), *drawn("a"))
    assert of(Draw, tell(dispatcher, arrived(0, 0), Consumed(0))) == [Draw(1)]
    assert dispatcher.statistics().pending == 2


def test_a_sampler_that_is_not_pure_is_advanced_when_the_epoch_opens_and_once_for_each_batch_consumed() -> None:
    dispatcher = make()
    assert of(Draw, opened(dispatcher, 4, 0, 1)) == [Draw(4)]
    for seq in range(4):
        assert of(Draw, tell(dispatcher, arrived(seq % 2, seq, nbytes=1))) == []
    for seq in range(4):
        assert of(Draw, tell(dispatcher, Consumed(seq))) == [Draw(1)]


def test_nothing_is_drawn_after_the_end() -> None:
    dispatcher = make()
    opened(dispatcher, 1, 0)
    tell(dispatcher, Exhausted())
    assert tell(dispatcher, arrived(0, 0), Consumed(0)) == [Deliver(0, "b0"), Finish()]


@pytest.mark.parametrize("event", [Drawn("x"), Consumed(0), Consumed(7)])
def test_a_fault_of_the_driver_is_an_assertion(event: Event) -> None:
    with pytest.raises(AssertionError):
        make().handle(event)


def test_an_epoch_opens_once_and_nothing_is_consumed_twice() -> None:
    dispatcher = make()
    opened(dispatcher, 4, 0)
    with pytest.raises(AssertionError):
        dispatcher.handle(Opened())
    tell(dispatcher, arrived(0, 0), Consumed(0))
    with pytest.raises(AssertionError):
        dispatcher.handle(Consumed(0))


# -- assignment and credit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_tickets_go_round_robin_from_slot_0(late: bool) -> None:
    dispatcher = make(3, credit=2, narrow_window=6)
    before, after = (ready(0, 1, 2), []) if late else ([], ready(0, 1, 2))
    commands = tell(dispatcher, Opened(), *before, *drawn(*"abcdef"), *after)
    assert sorted(assigned(commands), key=lambda pair: pair[1]) == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5)]
    assert Assign(1, 0, 4, "e", FIRST) in commands


def test_a_ticket_without_credit_waits_for_its_own_slot_while_others_go_on() -> None:
    dispatcher = make(2, credit=1, narrow_window=6)
    assert assigned(opened(dispatcher, 6, 0, 1)) == [(0, 0), (1, 1)]
    assert assigned(tell(dispatcher, arrived(1, 1))) == [(1, 3)]
    assert assigned(tell(dispatcher, arrived(1, 3))) == [(1, 5)]
    assert assigned(tell(dispatcher, arrived(0, 0))) == [(0, 2)]


def test_a_failed_ticket_gives_its_credit_and_its_memory_back() -> None:
    dispatcher = make(1, credit=1, memory_limit=10)
    opened(dispatcher, 4, 0)
    assert tell(dispatcher, TicketFailed(0, 0, 0, "e")) == [Raise(0, "e"), Assign(0, 0, 1, 1, FIRST)]


def test_a_ticket_that_comes_to_nothing_gives_its_credit_and_its_memory_back() -> None:
    dispatcher = make(1, credit=1, memory_limit=10)
    opened(dispatcher, 4, 0)
    assert tell(dispatcher, CameToNothing(0, 0, 0, "w")) == [Omit(0, "w"), Assign(0, 0, 1, 1, FIRST)]
    assert of(Draw, tell(dispatcher, Consumed(0))) == [Draw(1)]


def test_without_order_the_fast_worker_gets_more() -> None:
    dispatcher = make(2, credit=1, narrow_window=6, in_order=False)
    assert assigned(opened(dispatcher, 6, 0, 1)) == [(0, 0), (1, 1)]
    assert assigned(tell(dispatcher, arrived(1, 1))) == [(1, 2)]
    assert assigned(tell(dispatcher, arrived(1, 2))) == [(1, 3)]


def test_without_order_whoever_holds_fewest_is_given_the_next_and_equals_take_turns() -> None:
    dispatcher = make(3, credit=3, narrow_window=12, in_order=False)
    dealt = sorted(assigned(opened(dispatcher, 9, 0, 1, 2)))
    assert dealt == [(slot, slot + n) for slot in range(3) for n in (0, 3, 6)]
    tell(dispatcher, arrived(1, 1), arrived(1, 4), arrived(2, 2))
    assert assigned(tell(dispatcher, *drawn(9, 10, 11))) == [(1, 9), (2, 10), (1, 11)]


def test_without_order_the_first_are_dealt_in_turn_whoever_is_ready_first() -> None:
    dispatcher = make(2, credit=2, narrow_window=8, in_order=False)
    assert assigned(opened(dispatcher, 6, 1)) == [(1, 1), (1, 3)]
    assert assigned(tell(dispatcher, arrived(1, 1))) == [(1, 4)]
    assert assigned(tell(dispatcher, *ready(0))) == [(0, 0), (0, 2)]
    assert assigned(tell(dispatcher, arrived(0, 0))) == [(0, 5)]


def test_what_was_dealt_to_a_worker_that_is_given_up_is_anybodys() -> None:
    dispatcher = make(2, credit=2, narrow_window=8, in_order=False, max_restarts=0)
    assert assigned(opened(dispatcher, 4, 1)) == [(1, 1), (1, 3)]
    assert not assigned(tell(dispatcher, WorkerLost(0, 0, None, "lost")))
    assert assigned(tell(dispatcher, arrived(1, 3))) == [(1, 0)]
    assert assigned(tell(dispatcher, arrived(1, 1))) == [(1, 2)]


# -- delivery and the end ---------------------------------------------------------------------------------------------


def test_batches_leave_in_order_and_errors_in_their_place() -> None:
    dispatcher = make(2)
    opened(dispatcher, 4, 0, 1)
    assert tell(dispatcher, arrived(1, 3), TicketFailed(1, 0, 1, "e"), arrived(0, 2)) == []
    assert tell(dispatcher, arrived(0, 0)) == [Deliver(0, "b0"), Raise(1, "e"), Deliver(2, "b2"), Deliver(3, "b3")]


def test_what_came_to_nothing_has_its_turn_and_keeps_nobody() -> None:
    dispatcher = make(2)
    opened(dispatcher, 4, 0, 1)
    assert tell(dispatcher, CameToNothing(1, 0, 1, "w"), arrived(0, 2)) == []
    assert tell(dispatcher, arrived(0, 0)) == [Deliver(0, "b0"), Omit(1, "w"), Deliver(2, "b2")]
    tell(dispatcher, Consumed(0), Consumed(1), Consumed(2), Exhausted(), CameToNothing(1, 0, 3, "w"))
    assert tell(dispatcher, Consumed(3)) == [Finish()]


def test_without_order_batches_leave_as_they_arrive() -> None:
    dispatcher = make(2, in_order=False)
    opened(dispatcher, 4, 0, 1)
    assert tell(dispatcher, arrived(1, 3), TicketFailed(1, 0, 1, "e")) == [Deliver(3, "b3"), Raise(1, "e")]


def test_it_finishes_once_when_everything_is_consumed() -> None:
    dispatcher = make(1)
    opened(dispatcher, 2, 0)
    assert tell(dispatcher, arrived(0, 0), Consumed(0), Exhausted(), arrived(0, 1)) == [
        Deliver(0, "b0"),
        Draw(1),
        Deliver(1, "b1"),
    ]
    assert tell(dispatcher, Consumed(1)) == [Finish()]
    assert tell(dispatcher, Exhausted(), Closed()) == []


def test_an_empty_epoch_finishes() -> None:
    assert tell(make(), Opened(), Exhausted()) == [Draw(4), Finish()]


# -- memory -----------------------------------------------------------------------------------------------------------


def test_the_latest_batch_is_the_next_allowance() -> None:
    dispatcher = make(1, credit=1)
    commands = opened(dispatcher, 4, 0)
    commands += tell(dispatcher, arrived(0, 0, nbytes=77))
    assert [c.allowance for c in commands if isinstance(c, Assign)] == [FIRST, 77]


def test_a_worker_is_granted_at_once_what_fits_or_what_it_has() -> None:
    dispatcher = make(1, memory_limit=100)
    opened(dispatcher, 2, 0)
    assert tell(dispatcher, NeedMemory(0, 0, 1, 90)) == [Grant(0, 0, 1)]
    assert dispatcher.statistics().reserved == 100
    assert tell(dispatcher, NeedMemory(0, 0, 1, 90), NeedMemory(0, 0, 0, 3)) == [Grant(0, 0, 1), Grant(0, 0, 0)]


def test_beyond_the_limit_only_the_next_ticket_goes_ahead() -> None:
    dispatcher = make(2, memory_limit=100)
    opened(dispatcher, 4, 0, 1)
    assert tell(dispatcher, NeedMemory(1, 0, 1, 500)) == []
    assert tell(dispatcher, NeedMemory(0, 0, 0, 500)) == [Grant(0, 0, 0)]
    assert tell(dispatcher, arrived(0, 0, nbytes=500)) == [Deliver(0, "b0")]
    assert of(Grant, tell(dispatcher, Consumed(0))) == [Grant(1, 0, 1)]


def test_without_order_a_ticket_goes_ahead_when_every_worker_waits_whatever_else_these_hold() -> None:
    """A worker that fetches one ticket after the other does not begin the second while it waits for the first."""
    dispatcher = make(2, memory_limit=100, in_order=False)
    opened(dispatcher, 4, 0, 1)
    assert tell(dispatcher, NeedMemory(0, 0, 0, 500)) == [], "the other worker works, and will free memory"
    assert of(Grant, tell(dispatcher, NeedMemory(1, 0, 1, 500))) == [Grant(0, 0, 0)]
    assert of(Grant, tell(dispatcher, arrived(0, 0, nbytes=500))) == []


def test_nothing_goes_beyond_the_limit_while_something_delivered_is_not_consumed() -> None:
    dispatcher = make(1, memory_limit=100)
    opened(dispatcher, 4, 0)
    assert tell(dispatcher, arrived(0, 0, nbytes=60), NeedMemory(0, 0, 1, 101)) == [Deliver(0, "b0")]
    assert of(Grant, tell(dispatcher, Consumed(0))) == [Grant(0, 0, 1)]


def test_who_waits_for_memory_is_served_lowest_first_and_nobody_overtakes() -> None:
    dispatcher = make(3, credit=1, memory_limit=100, in_order=True, narrow_window=3)
    opened(dispatcher, 3, 0, 1, 2)
    tell(dispatcher, NeedMemory(0, 0, 0, 70))
    assert tell(dispatcher, NeedMemory(2, 0, 2, 80), NeedMemory(1, 0, 1, 60)) == []
    assert tell(dispatcher, NeedMemory(2, 0, 2, 20)) == [], "20 would fit, and 60 would wait for it"
    assert of(Grant, tell(dispatcher, arrived(0, 0, nbytes=40))) == []
    assert of(Grant, tell(dispatcher, Consumed(0))) == [Grant(1, 0, 1), Grant(2, 0, 2)]


def test_a_lean_budget_is_as_much_as_one_batch_more_than_there_are_slots() -> None:
    dispatcher = make(2, memory_limit=10_000, lean_bytes=50)
    opened(dispatcher, 4, 0, 1)
    asked = tell(dispatcher, *(NeedMemory(slot, 0, seq, 100) for slot, seq in ((0, 0), (1, 1), (0, 2), (1, 3))))
    assert of(Grant, asked) == [Grant(0, 0, 0), Grant(1, 0, 1), Grant(0, 0, 2)], "three batches and a little"
    assert dispatcher.statistics().memory_limit == 350
    tell(dispatcher, arrived(0, 0, nbytes=100))
    assert of(Grant, tell(dispatcher, Consumed(0))) == [Grant(1, 0, 3)]


def test_a_lean_budget_never_exceeds_the_limit_and_leaves_small_batches_alone() -> None:
    dispatcher = make(2, memory_limit=150, lean_bytes=100)
    opened(dispatcher, 4, 0, 1)
    assert len(of(Grant, tell(dispatcher, NeedMemory(0, 0, 0, 20), NeedMemory(1, 0, 1, 20)))) == 2
    assert dispatcher.statistics().memory_limit == 100
    tell(dispatcher, NeedMemory(0, 0, 2, 90))
    assert dispatcher.statistics().memory_limit == 150


def test_a_ticket_waits_for_its_allowance() -> None:
    dispatcher = make(2, credit=1, memory_limit=100, first_allowance=60)
    assert assigned(opened(dispatcher, 4, 0, 1)) == [(0, 0)]
    assert dispatcher.statistics().waiting_for_memory == 1
    assert assigned(tell(dispatcher, arrived(0, 0, nbytes=50))) == [(1, 1)]
    assert assigned(tell(dispatcher, Consumed(0))) == [(0, 2)]


def test_when_memory_frees_a_slot_gets_as_many_tickets_as_fit() -> None:
    dispatcher = make(2, credit=2, memory_limit=100, first_allowance=60, in_order=False)
    assert assigned(opened(dispatcher, 4, 0, 1)) == [(0, 0)]
    assert assigned(tell(dispatcher, arrived(0, 0, nbytes=30))) == [(1, 1), (0, 2)]
    assert assigned(tell(dispatcher, Consumed(0))) == [(1, 3)]


def test_the_first_ticket_goes_even_if_an_allowance_is_more_than_there_is() -> None:
    for in_order in (True, False):
        dispatcher = make(2, memory_limit=5, first_allowance=60, in_order=in_order)
        assert assigned(opened(dispatcher, 4, 0, 1)) == [(0, 0)]


def test_without_order_the_lowest_exceeds_the_limit_only_when_nobody_will_free_memory() -> None:
    dispatcher = make(2, credit=1, memory_limit=100, in_order=False)
    opened(dispatcher, 2, 0, 1)
    assert tell(dispatcher, NeedMemory(0, 0, 0, 95)) == [], "ticket 1 is under way"
    assert tell(dispatcher, NeedMemory(1, 0, 1, 95)) == [Grant(0, 0, 0)]
    assert of(Grant, tell(dispatcher, arrived(0, 0, nbytes=95))) == []
    assert of(Grant, tell(dispatcher, Consumed(0))) == [Grant(1, 0, 1)]


def test_without_order_a_returned_ticket_does_not_block_workers_that_wait_for_memory() -> None:
    """Its lowest ticket is queued and no slot has credit for it: the lowest that can use memory must get it."""
    dispatcher = make(2, credit=1, memory_limit=100, in_order=False, max_restarts=0)
    opened(dispatcher, 2, 0, 1)
    tell(dispatcher, NeedMemory(1, 0, 1, 200))
    assert tell(dispatcher, WorkerLost(0, 0, None, "died")) == [Grant(1, 0, 1)]


# -- lost workers -----------------------------------------------------------------------------------------------------


def test_what_a_lost_worker_held_is_given_again_in_order_without_its_memory() -> None:
    dispatcher = make(1, credit=3)
    opened(dispatcher, 4, 0)
    tell(dispatcher, NeedMemory(0, 0, 2, 300))
    assert tell(dispatcher, WorkerLost(0, 0, 1, "died")) == [Restart(0, 1)]
    assert dispatcher.statistics().reserved == 0
    assert assigned(tell(dispatcher, *ready(0, generation=1))) == [(0, 0), (0, 1), (0, 2)]
    assert tell(dispatcher, arrived(0, 0, generation=1))[0] == Deliver(0, "b0")


@pytest.mark.parametrize("running", [None, 3, 99])
def test_a_worker_that_ran_nothing_of_its_own_blames_nobody_but_uses_a_restart(running: int | None) -> None:
    dispatcher = make(2, credit=1, max_restarts=1)
    opened(dispatcher, 2, 0, 1)
    assert tell(dispatcher, WorkerLost(0, 0, running, "died")) == [Restart(0, 1)]
    assert dispatcher.statistics().failed == 0
    assert tell(dispatcher, WorkerLost(0, 1, None, "died at start")) == [Raise(0, "died at start")]


def test_a_dead_generation_is_not_heard() -> None:
    dispatcher = make(1)
    opened(dispatcher, 4, 0)
    tell(dispatcher, WorkerLost(0, 0, None, "died"))
    assert tell(dispatcher, *ready(0), NeedMemory(0, 0, 0, 5), TicketFailed(0, 0, 0, "e")) == []
    assert tell(dispatcher, arrived(0, 0), WorkerLost(0, 0, 0, "again")) == [Discard("b0")]
    tell(dispatcher, *ready(0, generation=1))
    assert tell(dispatcher, arrived(0, 0)) == [Discard("b0")]
    assert tell(dispatcher, arrived(0, 0, generation=1)) == [Deliver(0, "b0"), Assign(0, 1, 2, 2, FIRST)]


def test_a_batch_that_comes_twice_or_from_the_wrong_slot_is_discarded() -> None:
    dispatcher = make(2)
    opened(dispatcher, 4, 0, 1)
    tell(dispatcher, arrived(0, 0))
    assert tell(dispatcher, arrived(0, 0), arrived(0, 1)) == [Discard("b0"), Discard("b1")]


def test_an_ended_slot_fails_what_it_has_and_is_skipped_from_then_on() -> None:
    dispatcher = make(3, credit=1, narrow_window=6, max_restarts=0)
    opened(dispatcher, 6, 0, 1, 2)
    assert tell(dispatcher, WorkerLost(1, 0, 1, "died"), arrived(0, 0)) == [
        Deliver(0, "b0"),
        Raise(1, "died"),
        Assign(0, 0, 3, 3, FIRST),
    ]
    assert tell(dispatcher, arrived(2, 2)) == [Deliver(2, "b2"), Assign(2, 0, 5, 5, FIRST)]
    assert tell(dispatcher, arrived(0, 3)) == [Deliver(3, "b3"), Raise(4, "died")]
    assert tell(dispatcher, *ready(1), WorkerLost(1, 0, 4, "again"), arrived(1, 4)) == [Discard("b4")]
    tell(dispatcher, Consumed(0), Consumed(1))
    assert assigned(tell(dispatcher, *drawn(6, 7))) == [(0, 6)]
    assert assigned(tell(dispatcher, arrived(2, 5))) == [(2, 7)]


def test_without_order_the_tickets_of_an_ended_slot_go_to_the_others() -> None:
    dispatcher = make(2, in_order=False, max_restarts=0)
    opened(dispatcher, 4, 0, 1)
    assert tell(dispatcher, WorkerLost(0, 0, 0, "died")) == [Raise(0, "died")]
    assert assigned(tell(dispatcher, arrived(1, 1))) == [(1, 2)]


@pytest.mark.parametrize("in_order", [True, False])
def test_when_the_last_slot_ends_each_outstanding_ticket_is_raised_once_and_that_is_all(in_order: bool) -> None:
    dispatcher = make(1, max_restarts=0, in_order=in_order)
    tell(dispatcher, Opened(), *ready(0), *drawn("a", "b", "c"))
    assert tell(dispatcher, WorkerLost(0, 0, 0, "died")) == [Raise(seq, "died") for seq in (0, 1, 2)]
    assert tell(dispatcher, *drawn("d")) == [Raise(3, "died")]
    assert tell(dispatcher, *(Consumed(seq) for seq in range(4))) == [Finish()]


def test_an_epoch_whose_workers_have_all_ended_never_seems_complete() -> None:
    """Everything drawn had arrived: one more ticket is drawn, so that its error says what happened."""
    dispatcher = make(1, credit=4, max_restarts=0, narrow_window=1)
    opened(dispatcher, 1, 0)
    tell(dispatcher, arrived(0, 0))
    assert tell(dispatcher, WorkerLost(0, 0, None, "died")) == []
    assert tell(dispatcher, Consumed(0)) == [Draw(1)]
    assert tell(dispatcher, *drawn("b"), Consumed(1)) == [Raise(1, "died"), Finish()]


def test_workers_that_never_started_are_an_error_and_not_an_empty_epoch() -> None:
    dispatcher = make(1, max_restarts=1, narrow_window=1)
    assert tell(dispatcher, WorkerLost(0, 0, None, "x"), WorkerLost(0, 1, None, "y")) == [Restart(0, 1)]
    assert tell(dispatcher, Opened(), *drawn("a")) == [Draw(1), Raise(0, "y")]


def test_without_order_the_others_take_at_once_what_a_lost_worker_held() -> None:
    dispatcher = make(2, credit=2, in_order=False, narrow_window=3)
    assert assigned(opened(dispatcher, 3, 0, 1)) == [(0, 0), (1, 1), (0, 2)]
    assert tell(dispatcher, WorkerLost(0, 0, None, "died")) == [Restart(0, 1), Assign(1, 0, 0, 0, FIRST)]


def test_a_ticket_whose_worker_is_lost_does_not_wait_for_memory_any_more() -> None:
    dispatcher = make(2, credit=1, memory_limit=100, first_allowance=60)
    opened(dispatcher, 4, 0, 1)
    assert dispatcher.statistics().waiting_for_memory == 1
    assert tell(dispatcher, WorkerLost(1, 0, None, "died")) == [Restart(1, 1)]
    assert dispatcher.statistics().waiting_for_memory == 0
    assert tell(dispatcher, *ready(1, generation=1)) == []
    assert assigned(tell(dispatcher, TicketFailed(0, 0, 0, "e"))) == [(1, 1)]


# -- closing ----------------------------------------------------------------------------------------------------------


def test_closing_discards_what_was_not_delivered_and_nothing_happens_afterwards() -> None:
    dispatcher = make(2)
    opened(dispatcher, 4, 0, 1)
    tell(dispatcher, arrived(0, 0), arrived(1, 3), TicketFailed(0, 0, 2, "e"))
    assert tell(dispatcher, Closed()) == [Discard("b3")], "batch 0 is the driver's"
    late: list[Event] = [Closed(), *ready(0), *drawn("e"), Exhausted(), Consumed(0), WorkerLost(1, 0, 1, "died")]
    assert tell(dispatcher, *late) == []
    assert tell(dispatcher, arrived(1, 1), BatchArrived(0, 9, 9, 9, "old")) == [Discard("b1"), Discard("old")]
    assert dispatcher.statistics().reserved == 0


def test_an_epoch_can_be_closed_before_it_opens() -> None:
    assert tell(make(), Closed(), Opened(), *ready(0)) == []


# -- what it keeps and shows ------------------------------------------------------------------------------------------


def test_it_holds_no_batch_that_it_has_handed_out() -> None:
    class Batch:
        pass

    dispatcher, batch = make(1), Batch()
    opened(dispatcher, 1, 0)
    seen = weakref.ref(batch)
    gc.disable()
    try:
        dispatcher.handle(BatchArrived(0, 0, 0, 1, batch))
        del batch
        assert seen() is None
    finally:
        gc.enable()


def test_statistics_and_repr_say_where_the_tickets_are() -> None:
    dispatcher = make(2, credit=1)
    assert dispatcher.statistics().state == "new"
    opened(dispatcher, 4, 0, 1)
    tell(dispatcher, arrived(1, 1))
    now = dispatcher.statistics()
    assert (now.drawn, now.queued, now.held, now.landed, now.unconsumed) == (4, 1, (1, 1), 1, 0)
    assert (now.state, now.window, now.reserved, now.ready_slots, now.live_slots) == ("open", 4, 30, 2, 2)
    assert repr(dispatcher) == (
        "<Dispatcher open: 4 drawn, 1 queued, [1, 1] held, 1 landed, 0 unconsumed, 0 consumed; "
        "30/1000 bytes, 2 live slots>"
    )


# -- who is waited for -------------------------------------------------------------------------------------------------


def test_what_is_waited_for_is_the_next_in_order_and_whose_it_is() -> None:
    d = make()
    assert d.awaited() is None
    tell(d, Opened(), *drawn("a", "b", "c", "d"))
    assert d.awaited() == Awaited(0, "a", 0), "its worker is starting"
    tell(d, *ready(0, 1), arrived(1, 1), arrived(0, 0))
    assert d.awaited() == Awaited(2, "c", 0)
    tell(d, arrived(0, 2))
    assert d.awaited() == Awaited(3, "d", 1)


def test_without_order_it_is_the_lowest_that_somebody_holds() -> None:
    d = make(in_order=False)
    tell(d, Opened(), *drawn("a", "b", "c", "d"))
    assert d.awaited() is None
    tell(d, *ready(1))
    assert d.awaited() == Awaited(1, "b", 1)
    tell(d, arrived(1, 1))
    assert d.awaited() == Awaited(3, "d", 1)
