"""Ranks share an order: each sample is one rank's, all have as many batches, and others can go on from any position."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aloader.sampling.orders import Straight, indices_of
from aloader.sampling.shares import ENDS, Ends, Share

#: A share's arguments, but for the rank: total, start, world size, ends, batch size, drop_last.
PLANS = st.tuples(
    st.integers(0, 150),
    st.integers(0, 150),
    st.integers(1, 12),
    st.sampled_from(ENDS),
    st.integers(1, 20),
    st.booleans(),
).map(lambda plan: (plan[0], min(plan[1], plan[0]), *plan[2:]))


def shares(total: int, start: int, world_size: int, ends: Ends, batch_size: int | None, drop_last: bool) -> list[Share]:
    return [Share(total, start, rank, world_size, ends, batch_size, drop_last) for rank in range(world_size)]


def batches(share: Share) -> list[list[int]]:
    return [indices_of(Straight(), share, *share.bounds(ticket)) for ticket in range(share.tickets)]


def everything(of: list[Share]) -> Counter[int]:
    return Counter(index for share in of for batch in batches(share) for index in batch)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(PLANS)
@example((10, 0, 4, "even", 3, False))
@example((3, 0, 4, "even", 3, False))
@example((3, 0, 8, "pad", 2, False))
@example((0, 0, 4, "even", 2, False))
def test_all_ranks_have_as_many_batches_of_the_right_size(plan):
    size, drop_last = plan[4], plan[5]
    of = shares(*plan)
    assert len({share.tickets for share in of}) == 1
    for share in of:
        sizes = [len(batch) for batch in batches(share)]
        assert sum(sizes) == share.samples
        assert all(length == size for length in sizes[:-1])
        most = size + (plan[3] == "even" and not drop_last)
        assert all(size if drop_last else 1 <= length <= most for length in sizes[-1:])
        assert not drop_last or all(length == size for length in sizes)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(PLANS)
@example((3, 0, 4, "even", 3, False))
@example((3, 0, 8, "pad", 2, False))
def test_each_sample_comes_once_but_for_what_the_end_repeats_or_leaves_out(plan):
    total, start, world_size, ends, batch_size, _ = plan
    seen = everything(shares(total, start, world_size, ends, batch_size, False))
    left = total - start
    if ends == "drop":
        assert seen == Counter(range(start, total - left % world_size))
    elif ends == "even" and not 0 < left < world_size:
        assert seen == Counter(range(start, total))
    else:
        repeated = -left % world_size
        assert seen == Counter(range(start, total)) + Counter(at % total for at in range(repeated) if total)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(PLANS)
def test_without_batches_ranks_differ_by_one_sample_at_most(plan):
    total, start, world_size, ends, _, _ = plan
    of = shares(total, start, world_size, ends, None, False)
    left, counts = total - start, {share.samples for share in of}
    expected = {"pad": {-(-left // world_size)}, "drop": {left // world_size}}
    assert counts <= expected.get(ends, {left // world_size, -(-left // world_size)})
    assert all(share.tickets == share.samples for share in of)
    if ends == "even":
        assert everything(of) == Counter(range(start, total))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(PLANS)
@example((10, 0, 3, "drop", 3, False))  # one is left out
def test_after_the_last_batch_nothing_is_left(plan):
    for share in shares(*plan):
        if share.tickets:
            assert share.after(share.tickets) == share.total
            assert share.after(share.tickets + 1) == share.total


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(PLANS, st.integers(0, 30))
def test_after_so_many_batches_just_the_first_positions_are_gone(plan, ticket):
    total, start, *_ = plan
    of = shares(*plan)
    position = of[0].after(ticket)
    assert {share.after(ticket) for share in of} == {position}
    assert start <= position <= total
    if ticket >= max(1, of[0].tickets):
        assert position == total
        return
    used = Counter(index for share in of for batch in batches(share)[:ticket] for index in batch)
    assert used == Counter(range(start, position))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 10)), max_size=4),
    st.sampled_from(ENDS),
)
@example(200, [(4, 3, 2), (2, 5, 3), (3, 7, 1)], "even")
def test_other_numbers_of_ranks_go_on_without_a_gap_or_a_repeat(total, chain, ends):
    """Any number of ranks and any batch size, one after the other; the last ones have all that is left."""
    seen: Counter[int] = Counter()
    position = 0
    for world_size, batch_size, tickets in chain:
        of = shares(total, position, world_size, ends, batch_size, False)
        tickets = min(tickets, max(0, of[0].tickets - 1))  # not the end, which may repeat or leave out
        for share in of:
            seen.update(index for batch in batches(share)[:tickets] for index in batch)
        position = of[0].after(tickets)
    seen += everything(shares(total, position, 1, ends, 4, False))
    assert seen == Counter(range(total))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("pad", [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]),
        ("drop", [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
        ("even", [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]),
    ],
)
def test_ten_samples_on_three_ranks(ends, expected):
    of = shares(10, 0, 3, ends, 3, False)
    assert [[index for batch in batches(share) for index in batch] for share in of] == expected
    assert [share.tickets for share in of] == [2 if ends == "pad" else 1] * 3


def test_fewer_samples_than_ranks():
    """Where nothing may be left out, every rank has one, from the beginning of the order where there is none left."""
    for ends, expected in {"pad": [8, 9, 0, 1], "even": [8, 9, 0, 1], "drop": []}.items():
        of = shares(10, 8, 4, ends, 5, False)
        assert [index for share in of for batch in batches(share) for index in batch] == expected
    assert [share.samples for share in shares(10, 8, 4, "even", None, False)] == [1, 1, 0, 0], "without batches"
