"""Large reads in parts: in virtual time."""

from __future__ import annotations

import asyncio
import pickle
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aloader.errors import BadRange, Corrupted, ObjectChanged, ServerFailed
from aloader.storage import Parted, Request, Response
from aloader.testing.simloop import simulate
from tests.storage.wrappers.fakes import Scripted

DATA = bytes(range(256)) * 4


def answer(store: Parted, request: Request, seed: int = 0) -> Any:
    async def main() -> Any:
        async with store:
            return (await asyncio.gather(store.fetch(request), return_exceptions=True))[0]

    return simulate(main, seed)


@settings(max_examples=60, deadline=None)
@example(size=0, start=1, length=2, most=None, part=1, large=0, at_once=1, seed=0)
@given(
    size=st.integers(0, 200), start=st.integers(0, 200), length=st.none() | st.integers(1, 400),
    most=st.none() | st.integers(1, 400), part=st.integers(1, 60), large=st.integers(0, 60), at_once=st.integers(1, 5),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_the_answer_is_the_one_that_the_store_inside_would_give(
    size: int, start: int, length: int | None, most: int | None, part: int, large: int, at_once: int, seed: int
) -> None:
    inner = Scripted(k=DATA[:size])
    request = Request("k", start, None if length is None else start + length, most=most)
    store = Parted(inner, part + large, part, at_once=at_once)
    got = answer(store, request, seed)
    try:
        assert got == inner.answer(request)
    except BadRange:
        assert type(got) is BadRange
    assert inner.most_in_flight <= at_once
    if size > part + large:  # a small object comes whole
        assert all(each.end(size) - each.start <= part + large for each in inner.requests)


def test_a_known_range_is_asked_for_at_once_and_an_unknown_one_after_its_first_part() -> None:
    inner = Scripted([1.0] * 9, k=DATA[:40])
    store = Parted(inner, 20, 10)
    assert answer(store, Request("k", 0, 40)).data == DATA[:40]
    assert inner.requests == [Request("k", start, start + 10) for start in (0, 10, 20, 30)]
    inner = Scripted([1.0] * 9, k=DATA[:40])
    assert answer(Parted(inner, 20, 10), Request("k")).data == DATA[:40]
    assert inner.requests == [Request("k", most=10), *(Request("k", i, i + 10, "1") for i in (10, 20, 30))]


@pytest.mark.parametrize("stop", [None, 40])
def test_a_store_that_sends_all_from_its_front_is_read_at_once(stop: int | None) -> None:
    class Front(Scripted):
        """A byte takes a second."""

        sent = 0
        from_front = False

        async def fetch(self, request: Request) -> Response:
            for _ in range(request.end(40)):
                await asyncio.sleep(1)  # sleep: virtual
                self.sent += 1
            self.from_front = True
            return await super().fetch(request)

    async def main() -> None:
        inner = Front(k=DATA[:40])
        async with Parted(inner, 20, 10) as store:
            assert (await store.fetch(Request("k", 0, stop))).data == DATA[:40]
            assert inner.sent <= 40 + (10 if stop is None else 4 * 10)
            inner.requests.clear()
            assert (await store.fetch(Request("k", 0, stop))).data == DATA[:40]
            assert inner.requests == [Request("k", 0, stop)]

    simulate(main)


def test_what_is_not_large_is_left_as_it_is() -> None:
    inner = Scripted(k=DATA)
    request = Request("k", 5, 25, "1")
    assert answer(Parted(inner, 20, 10), request).data == DATA[5:25]
    assert inner.requests == [request]


def test_an_object_that_is_replaced_meanwhile_is_read_from_the_front_once() -> None:
    def replace(request: Request, old: Response) -> Response:
        inner.replace("k", DATA[100:140])
        return old

    inner = Scripted([0.5, replace], k=DATA[:40])
    assert answer(Parted(inner, 20, 10, at_once=2), Request("k")).data == DATA[100:140]
    inner = Scripted([replace] * 9, k=DATA[:40])
    assert type(answer(Parted(inner, 20, 10), Request("k", 0, 40))) is ObjectChanged
    inner = Scripted([replace], k=DATA[:40])
    assert type(answer(Parted(inner, 20, 10), Request("k", version="1"))) is ObjectChanged
    assert len(inner.requests) < 5


def test_a_part_that_is_too_short_is_no_hole_in_the_bytes() -> None:
    def shortened(request: Request, good: Response) -> Response:
        return good._replace(data=good.data[:-1])

    inner = Scripted([(), shortened], k=DATA[:40])
    assert answer(Parted(inner, 20, 10), Request("k")).data == DATA[:40]
    assert len(inner.requests) == 5
    inner = Scripted([()] + [shortened] * 9, k=DATA[:40])
    error = answer(Parted(inner, 20, 10), Request("k"))
    assert type(error) is Corrupted
    assert "came, twice, 9 bytes where " in str(error)


def test_the_first_failure_is_raised_as_it_is_and_ends_the_other_parts() -> None:
    failed = ServerFailed("500")
    inner = Scripted([(1.0, failed), 9.0, 9.0, 9.0], k=DATA[:40])
    assert answer(Parted(inner, 20, 10), Request("k", 0, 40), seed=3) is failed
    assert (inner.in_flight, inner.cancelled) == (0, 3)


@pytest.mark.parametrize("stop", [None, 8 << 20])
def test_the_bytes_are_kept_once(stop: int | None) -> None:
    size, part = 8 << 20, 1 << 18
    store = Parted(Scripted(k=bytes(size)), part, part, at_once=4)

    async def main() -> None:
        async with store:
            tracemalloc.start()
            try:
                got = await store.fetch(Request("k", 0, stop))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert len(got.data) == size
        assert peak < size + 6 * part

    simulate(main)


@pytest.mark.parametrize("wrong", [{"part": 0}, {"large": 1, "part": 2}, {"at_once": 0}])
def test_numbers_without_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"part <= large|at_once="):
        Parted(Scripted(), **wrong)


def test_it_pickles_and_shows_what_is_inside() -> None:
    copy = pickle.loads(pickle.dumps(Parted(Scripted(), 20, 10)))
    assert (copy.large, copy.part, repr(copy)) == (20, 10, "Parted(Scripted())")
