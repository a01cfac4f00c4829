"""A packed list is a sequence of the strings it was made of, in one piece of memory that nobody's reading grows."""

from __future__ import annotations

import copy
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader import DataLoader
from aloader.channel.job import Carried, Job, load
from aloader.datasets import PackedList
from tests.loader.samples import as_list

#: Every string there is: halves of surrogate pairs, which `os.fsdecode` makes of other bytes than UTF-8, too.
TEXTS = st.lists(st.text(st.characters(exclude_categories=()), max_size=12), max_size=40)
BYTES = st.lists(st.binary(max_size=12), max_size=40)
ODD = ["", "a", "ä€😀", os.fsdecode(b"caf\xe9/\xff"), "\ud800", "\x00", "", "line\nline"]


@given(TEXTS | BYTES)
def test_it_is_the_list_it_was_made_of(items):
    packed = PackedList(iter(items))
    assert list(packed) == items
    assert len(packed) == len(items)
    for place in range(-len(items), len(items)):
        assert packed[place] == items[place]
        assert type(packed[place]) is type(items[place])
    for beyond in (len(items), -len(items) - 1):
        with pytest.raises(IndexError, match=f"index {beyond} is out of range for a PackedList of {len(items)} items"):
            packed[beyond]
    assert list(reversed(packed)) == items[::-1]


@given(TEXTS | BYTES, st.slices(40), st.slices(40))
def test_slices_are_those_of_the_list(items, first, second):
    packed = PackedList(items)
    assert list(packed[first]) == items[first]
    assert list(packed[first][second]) == items[first][second]
    assert packed[first] == PackedList(items[first])
    assert pickle.loads(pickle.dumps(packed[first][second])) == PackedList(items[first][second])


@given(TEXTS | BYTES, st.data())
def test_what_is_found_is_what_a_list_finds(items, data):
    packed = PackedList(items)
    part = packed[data.draw(st.slices(len(items)))]
    for value in [*items[:5], *ODD, *(text.encode("utf-8", "surrogatepass") for text in ODD), 3, None]:
        assert (value in packed) == (value in items)
        assert packed.count(value) == items.count(value)
        assert (value in part) == (value in list(part))
    for value in items[:5]:
        assert packed.index(value) == items.index(value)
    if items:
        start = data.draw(st.integers(-len(items), len(items)))
        if items[-1] in items[start:]:
            assert packed.index(items[-1], start) == items.index(items[-1], start)


@given(TEXTS | BYTES, st.data())
def test_any_items_can_be_taken_in_any_order(items, data):
    places = data.draw(st.lists(st.integers(-len(items), len(items) - 1), max_size=20)) if items else []
    part = PackedList([*items, *items])[len(items) :]  # a view that does not begin at the beginning
    assert list(part.take(places)) == [items[place] for place in places]
    assert list(part.take(np.array(places, np.int32))) == [items[place] for place in places]


@given(TEXTS | BYTES, TEXTS | BYTES)
def test_two_are_equal_if_their_items_are(one, other):
    assert (PackedList(one) == PackedList(other)) == (one == other)
    assert PackedList(one) == PackedList(PackedList(one))
    assert PackedList(["x", *one] if one[:1] != [b""] and all(isinstance(i, str) for i in one) else one) != one


def test_what_ends_in_the_same_place_is_not_the_same():
    assert PackedList(["ab", "c"]) != PackedList(["a", "bc"])
    assert PackedList(["ab"]) != PackedList([b"ab"])
    assert PackedList(["ab"]) != ["ab"]


@pytest.mark.parametrize(
    ("items", "says"),
    [
        (["a", 3], "item 1 of a PackedList must be str or bytes, got int"),
        ([None], "item 0 of a PackedList must be str or bytes, got NoneType"),
        (["a"] * 20_000 + [b"b"], "item 20000 of a PackedList must be str, as the first one is, got bytes"),
        ([b"a", "b"], "item 1 of a PackedList must be bytes, as the first one is, got str"),
        ([b"a", bytearray(b"b")], "item 1 of a PackedList must be str or bytes, got bytearray"),
        ([Path("a")], r"item 0 .* got PosixPath; of paths: map\(os.fspath, paths\)"),
    ],
)
def test_an_item_that_is_something_else_is_named(items, says):
    with pytest.raises(TypeError, match=says):
        PackedList(iter(items))


def test_indices_of_a_wrong_kind_are_refused():
    packed = PackedList(["a", "b"])
    for wrong in ([0.5], [[1]], ["a"], [True]):
        with pytest.raises(TypeError, match="take needs a sequence of integers"):
            packed.take(wrong)
    with pytest.raises(IndexError, match="index 2 is out of range"):
        packed.take([0, 2])
    with pytest.raises(TypeError):
        packed["a"]
    with pytest.raises(TypeError):
        packed[0] = "c"


def test_subclasses_come_back_as_what_they_derive_from():
    packed = PackedList([np.str_("a"), "b"])
    assert [type(item) for item in packed] == [str, str]
    assert packed[np.int64(1)] == "b"


def test_a_repr_is_short():
    assert repr(PackedList()) == "<PackedList of 0 str in 4 bytes: []>"
    shown = repr(PackedList(["x" * 1000] * 5000))
    assert shown.startswith("<PackedList of 5,000 str in 5,020,004 bytes: ['xxx")
    assert shown.endswith("…, …]>")
    assert len(shown) < 300


def test_copies_are_the_same_memory():
    packed = PackedList(["a", "b"])
    assert copy.copy(packed) is packed is copy.deepcopy(packed)
    assert np.shares_memory(PackedList(packed)._data, packed._data)


def test_slices_are_views_and_carry_only_their_stretch():
    packed = PackedList(f"{k:06d}" for k in range(100_000))
    part = packed[40_000:60_000]
    assert np.shares_memory(part._data, packed._data)
    assert np.shares_memory(part._offsets, packed._offsets)
    assert part.nbytes == 20_000 * 10 + 4
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(part, 5, buffer_callback=buffers.append)
    assert sum(buffer.raw().nbytes for buffer in buffers) == part.nbytes
    assert len(body) < 1000
    assert pickle.loads(body, buffers=buffers) == part


def test_making_one_holds_no_second_copy():
    items, each = 100_000, 100
    tracemalloc.start()
    packed = PackedList(f"{k:0{each}d}" for k in range(items))
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packed.nbytes == items * (each + 4) + 4
    assert now < 1.3 * packed.nbytes  # growing, a buffer takes somewhat more than it is asked for
    assert peak < 1.5 * packed.nbytes  # a list of the strings would take half as much again, and both together 2.4


def test_offsets_are_wide_where_there_is_more_than_they_hold():
    """4 GiB of text, without the text."""
    packed = PackedList._on(str, np.broadcast_to(np.uint8(97), (5 << 30) - 7), np.array([7, 8, 5 << 30], np.int64))
    assert packed[0] == "a"
    assert len(packed) == 2
    assert packed[:1] == PackedList(["a"])


def test_a_job_carries_it_beside_the_pickle_and_workers_read_it_from_there():
    items = [f"folder/{k}" for k in range(20_000)]
    carried = Carried(Job(PackedList(items), as_list, None, {}), b"")
    assert len(carried._parts[0]) < 2000, "the items are in the pickle itself"
    carried.write()
    back = load(carried.fd, carried.size).dataset
    assert list(back) == items
    assert not back._data.flags.owndata
    carried.close()


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=40), min_size=200, max_size=300))
def test_many_items_of_every_kind(items):
    many = items * 100
    packed = PackedList(many)
    assert list(packed) == many
    assert packed.index(many[-1]) == many.index(many[-1])
    assert list(packed[3::7]) == many[3::7]


# -- memory of workers ------------------------------------------------------------------------------------------------


class Paths:
    """Sample i reads every item of a list in an order of its own, and says how much its process has written to."""

    def __init__(self, items) -> None:
        self.items = items
        self.last = ""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 0:
            return 0, written_bytes()
        total = 0
        for at in range(len(self.items)):
            self.last = self.items[at * 7919 % len(self.items)]
            total += len(self.last)
        return total, written_bytes()


def written_bytes() -> int:
    """This process's share of pages that it has made, or written to. (A mapped memfd that is only read has none.)"""
    fields = dict(line.split()[:2] for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Pss_Anon:"]) << 10


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("context", [None, "fork"])
@pytest.mark.parametrize(("kind", "grows"), [(PackedList, False), (list, True)])
def test_a_worker_that_reads_all_items_does_not_grow(context, kind, grows):
    """With a list it does: each reading writes a reference count into the pages that the workers share."""
    items = kind(f"train/{k % 1000:04d}/{k:042d}.jpg" for k in range(200_000))
    size = 200_000 * 57
    loader = DataLoader(Paths(items), batch_size=None, num_workers=1, collate_fn=tuple, multiprocessing_context=context)
    with loader:
        (_, before), (total, after) = loader
    assert total == size
    growth = (after - before) / size
    assert growth > 0.5 if grows else growth < 0.05, f"by {growth:.0%} of the items' bytes"
