"""Who keeps more of a loader's batches than the limit is told so once, and who holds them."""

from __future__ import annotations

import inspect
import itertools
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aloader import DataLoader, options
from aloader.pool.holders import Holder, Span, holders
from aloader.pool.keeping import Excess, Keeping, Kept, in_words

MB = 10**6


def leaves(count: int, nbytes: int = 10 * MB) -> list[Kept]:
    return [Kept(nbytes, (1, seq), float(seq)) for seq in range(count)]


def test_it_is_told_once_and_only_after_a_while() -> None:
    excess = Excess(25 * MB)
    told = [now for now in range(40) if excess.look(leaves(3), now + 100.0)]
    assert told == [options.KEEPING_GRACE]


def test_less_than_the_limit_and_what_is_in_hand_is_nobodys_business() -> None:
    excess = Excess(25 * MB)
    assert not any(excess.look(leaves(2), float(now)) for now in range(40))
    excess = Excess(1)
    assert not any(excess.look(leaves(count), float(now)) for now in range(40) for count in (1, 2))


def test_time_counts_anew_after_something_was_let_go() -> None:
    excess = Excess(25 * MB)
    assert not any(excess.look(leaves(3 if now % 8 else 2), float(now)) for now in range(80))


def test_leaves_are_not_counted_where_all_memory_there_is_would_not_be_too_much() -> None:
    """There may be a hundred thousand of them, and this is once a second, on somebody's loop."""
    counted = []
    memory = SimpleNamespace(nbytes=25 * MB, held=lambda: counted.append(memory.nbytes) or [])
    crew = SimpleNamespace(latest={0: SimpleNamespace(mappings=memory)})
    keeping = Keeping(crew, None, Excess(25 * MB), pytest.fail)
    keeping.look(0.0)
    memory.nbytes += 1
    keeping.look(1.0)
    assert counted == [memory.nbytes]


class Cache:
    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}


def span_of(tensor: torch.Tensor) -> Span:
    return Span(tensor.untyped_storage().data_ptr(), tensor.nbytes)


def test_variables_and_attributes_are_named_through_containers_and_views() -> None:
    with ThreadPoolExecutor(1) as thread:  # whose calls are few: how far one looks is bounded, and pytest holds much
        thread.submit(hold_and_look).result()


def hold_and_look() -> None:
    cache, kept = Cache(), []
    tensors = [torch.zeros(100 + n) for n in range(6)]
    spans = [span_of(tensor) for tensor in tensors]
    kept += [{"x": tensors[0][10:20]}, (tensors[1].numpy(),)]
    cache.seen[3] = [tensors[2], tensors[3]]
    alone = tensors[4].view(2, 52)
    del tensors
    first, second, third = holders(spans, inspect.currentframe())
    name = "hold_and_look (test_keeping.py:"
    assert first.name.startswith(f"dict `cache.seen` in {name}")
    assert (first.nbytes, first.largest) == (4 * (102 + 103), "float32 (103,)")
    assert second.name.startswith(f"list `kept` in {name}")
    assert (second.nbytes, second.largest) == (4 * (100 + 101), "float32 (101,)")
    assert third.name.startswith(f"Tensor `alone` in {name}")
    assert alone.shape == (2, 52)
    assert holders([Span(8, 8)], inspect.currentframe()) == []


def test_looking_for_holders_holds_nothing_afterwards() -> None:
    tensor = torch.zeros(100)
    (holder,) = holders([span_of(tensor)], inspect.currentframe())
    assert "`tensor`" in holder.name
    gone = weakref.ref(tensor)
    del tensor
    assert gone() is None


def test_the_dict_that_locals_gave_somebody_is_left_as_it_is() -> None:
    tensor, rate = torch.zeros(100), 0.5
    arguments = locals()
    (holder,) = holders([span_of(tensor)], inspect.currentframe())
    assert "`tensor`" in holder.name
    assert arguments["rate"] == rate


class Endless(list[int]):
    """Longer than anybody can look through, as a list of a hundred million numbers is."""

    def __iter__(self) -> Any:
        return itertools.count()


def test_of_long_containers_no_more_is_looked_at_than_there_is_time_for() -> None:
    long, kept = [Endless() for _ in range(9)], [torch.zeros(100)]
    (holder,) = holders([span_of(kept[0])], inspect.currentframe())
    assert "`kept`" in holder.name
    assert len(long) == 9


def test_odd_objects_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("never")

    around: list[Any] = [Odd(), torch.empty(3, device="meta"), sys]
    around.append(around)
    assert holders([Span(8, 8)], inspect.currentframe()) == []
    assert around


def test_the_words() -> None:
    text = in_words(leaves(3), [Holder("list `kept` in __main__", 20 * MB, "float32 (2, 2)")], 25 * MB, 12.4)
    assert text.startswith("the program keeps 30 MB of batches that it was given: 3 tensors of 3 batches, the oldest")
    assert "the oldest for 12 s. That is more than memory_limit (25 MB)" in text
    assert "\n  list `kept` in __main__: 20 MB (such as float32 (2, 2))\n  10 MB by none of the variables" in text
    assert text.endswith("or give memory_limit= more.")
    assert "by none" not in in_words(leaves(3), [Holder("list `kept` in __main__", 30 * MB, "?")], 25 * MB, 12.4)


class Rows:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((40_000,), float(index))


@pytest.mark.usefixtures("nothing_left")
def test_a_program_that_keeps_its_batches_is_told_in_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aloader.options.KEEPING_GRACE", 0.0)
    monkeypatch.setattr("aloader.options.KEEPING_PACE", 0.0)
    with DataLoader(Rows(), batch_size=2, num_workers=1, memory_limit=1_500_000) as loader:
        with pytest.warns(UserWarning, match=r"5 tensors of 5 batches") as warned:
            assert len(keeping(loader)) == 6
    assert len(warned) == 1
    assert "list `kept` in keeping (test_keeping.py:" in str(warned[0].message)
    assert "1 MB (such as float32 (2, 40000))" in str(warned[0].message), "and one is held by `batch`"


def keeping(loader: Any) -> list[Any]:
    kept = []
    for batch in loader:
        kept.append(batch)
    return kept
