"""Calls in a worker: before the next ticket that begins, in their order, each once."""

from __future__ import annotations

import threading

import pytest
from torch.utils.data import ConcatDataset, StackDataset, Subset

from aloader.channel.messages import Call
from aloader.worker import inline
from aloader.worker.calls import holders, written
from tests.loader.samples import Numbers
from tests.worker.bench_kit import bench_of, in_a_thread

pytestmark = pytest.mark.usefixtures("nothing_left")


class Slow(Numbers):
    """Sample 0 waits until it is let go. Each sample is what has been called."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()
        self.called: list[int] = []

    def note(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"no {value}")
        self.called.append(value)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        if index == 0:
            self.begun.set()
            assert self.go.wait(5)
        return str(self.called)


def test_tickets_that_are_held_but_not_begun_see_it():
    data = Slow()
    with bench_of(data) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([0], [1])
        assert data.begun.wait(5)
        parent.tell(*(Call(0, written("note", (value,))) for value in (1, -1, 2, 3)))
        parent.ask([2], first=2)
        data.go.set()
        assert parent.open(parent.next()) == ["[]"]
        with pytest.raises(ValueError, match="no -1") as caught:
            parent.open(parent.next())
        assert "batch 1" in "\n".join(caught.value.__notes__)
        assert parent.open(parent.next()) == ["[1, 2, 3]"]


class Has(Numbers):
    def __init__(self, dataset: object = None) -> None:
        super().__init__()
        self.dataset = dataset

    def note(self) -> None: ...


def test_whose_method_it_is():
    one, two = Has(), Has()
    assert holders(one, "note") == [one]
    assert holders(Has(one), "note") != [one]
    both = ConcatDataset([Subset(one, [0]), Numbers(), StackDataset(a=two, b=one)])
    assert sorted(map(id, holders(both, "note"))) == sorted(map(id, (one, two)))
    outer = Has(one)
    assert holders(Subset(outer, [0]), "note") == [outer]
    assert holders(Numbers(), "note") == []
    assert holders([1, 2], "append") != []
