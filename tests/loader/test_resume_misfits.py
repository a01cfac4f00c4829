"""A state of something else is an error that says what differs and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DistributedSampler, RandomSampler

from aloader import DataLoader

from .resuming import Backwards, read
from .samples import Numbers
from .streams import Counting


class Named(Numbers):
    """Says what is in it."""

    def __init__(self, n: int, name: str) -> None:
        super().__init__(n)
        self.fingerprint = name


class Asked(Numbers):
    """Says it when it is asked."""

    def __init__(self, n: int, name: str) -> None:
        super().__init__(n)
        self.name = name

    def fingerprint(self) -> str:
        return self.name


def state_of(**arguments: Any) -> dict[str, Any]:
    return read(DataLoader(**ARGUMENTS | arguments), 2)[1]


ARGUMENTS: dict[str, Any] = {"dataset": Numbers(40), "batch_size": 4, "shuffle": True, "seed": 3}
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "length": ({"dataset": Numbers(41)}, "length was 40 and is 41 here"),
    "batch size": ({"batch_size": 5}, "batch_size was 4 and is 5 here"),
    "no batches": ({"batch_size": None}, "batch_size was 4 and is None here"),
    "rest": ({"drop_last": True}, "drop_last was False and is True here"),
    "seed": ({"seed": 4}, "seed was 3 and is 4 here"),
    "no seed": ({"seed": None}, "seed was 3 and is None here"),
    "order": ({"shuffle": False}, "sampler was 'ShuffledSampler' and is 'SequentialSampler' here"),
    "sampler": ({"shuffle": None, "sampler": Backwards()}, "sampler was 'ShuffledSampler' and is 'Backwards' here"),
    "name": ({"dataset": Named(40, "b")}, "fingerprint was None and is 'b' here"),
    "kind": ({"dataset": Counting(40), "shuffle": None}, "kind was 'map' and is 'iterable' here"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_differs_is_named_with_the_remedy(name: str) -> None:
    other, words = MISFITS[name]
    loader: DataLoader[Any] = DataLoader(**ARGUMENTS | other)
    with pytest.raises(ValueError, match="does not fit this loader") as raised:
        loader.load_state_dict(state_of())
    assert words in str(raised.value)
    if name != "kind":
        assert "strict=False" in str(raised.value)
    assert loader.epoch == 0, "a state that was refused is forgotten"
    assert loader.state_dict()["batches"] == 0


@pytest.mark.parametrize("kind", [Named, Asked])
def test_a_dataset_may_say_what_is_in_it(kind: Any) -> None:
    state = state_of(dataset=kind(40, "a"))
    DataLoader(**ARGUMENTS | {"dataset": kind(40, "a")}).load_state_dict(state)
    with pytest.raises(ValueError, match="fingerprint was 'a' and is 'b' here"):
        DataLoader(**ARGUMENTS | {"dataset": kind(40, "b")}).load_state_dict(state)


def test_several_differences_are_all_named() -> None:
    with pytest.raises(ValueError) as raised:
        DataLoader(**ARGUMENTS | {"dataset": Numbers(41), "seed": 8}).load_state_dict(state_of())
    assert "length was 40 and is 41 here; " in str(raised.value)
    assert "seed was 3 and is 8 here" in str(raised.value)


def test_without_strict_the_same_order_goes_on_all_the_same() -> None:
    class Others(Numbers):
        """The same samples, under another name."""

        fingerprint = "new"

    expected = [batch.tolist() for batch in DataLoader(**ARGUMENTS)]
    loader: DataLoader[Any] = DataLoader(**ARGUMENTS | {"dataset": Others(40)})
    with pytest.raises(ValueError):
        loader.load_state_dict(state_of())
    loader.load_state_dict(state_of(), strict=False)
    assert [batch.tolist() for batch in loader] == expected[2:]


@pytest.mark.parametrize("other", [{"dataset": Numbers(41)}, {"seed": 4}, {"shuffle": None, "sampler": range(40)}])
def test_without_strict_another_order_is_an_error_when_it_begins(other: dict[str, Any]) -> None:
    loader: DataLoader[Any] = DataLoader(**ARGUMENTS | other)
    loader.load_state_dict(state_of(), strict=False)
    with pytest.raises(ValueError, match=r"was .* and (is|this one is) "):
        next(iter(loader))


def test_what_is_no_state_of_ours() -> None:
    loader: DataLoader[Any] = DataLoader(**ARGUMENTS)
    state = state_of()
    theirs = {"_snapshot": {"_snapshot_step": 2}, "_steps_since_snapshot": 0, "_iterator_finished": False}
    for wrong, error, words in (
        (theirs, ValueError, "StatefulDataLoader have another layout"),
        (state | {"version": 99}, ValueError, "version 99"),
        ({"version": 1}, ValueError, "no state of aloader.DataLoader"),
        ({key: state[key] for key in state if key != "sampler"}, ValueError, "no state of aloader.DataLoader"),
        ([1, 2], TypeError, "got list"),
        (None, TypeError, "got NoneType"),
        ("text", TypeError, "got str"),
    ):
        with pytest.raises(error, match=words):
            loader.load_state_dict(wrong)  # type: ignore[arg-type]


def test_set_epoch_that_contradicts_a_loaded_state() -> None:
    loader: DataLoader[Any] = DataLoader(**ARGUMENTS)
    loader.load_state_dict(state_of())
    with pytest.raises(ValueError, match=r"in epoch 0, after 2 batches, and set_epoch\(1\)"):
        loader.set_epoch(1)
    loader.set_epoch(0)
    assert len(list(loader)) == 8
    loader.load_state_dict(state_of())
    loader.load_state_dict({})
    loader.set_epoch(1)
    other: DataLoader[Any] = DataLoader(**ARGUMENTS)
    other.set_epoch(1)
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in other]


def test_a_state_between_epochs_may_be_told_another_one() -> None:
    def make() -> Any:
        return DataLoader(Numbers(40), 4, sampler=DistributedSampler(range(40), 1, 0))

    loader = make()
    list(loader)
    state = loader.state_dict()
    told = make()
    told.load_state_dict(state)
    told.set_epoch(7)
    other = make()
    other.set_epoch(7)
    assert [batch.tolist() for batch in told] == [batch.tolist() for batch in other]


def test_a_state_is_the_callers_own() -> None:
    loader: DataLoader[Any] = DataLoader(**ARGUMENTS)
    state = state_of()
    loader.load_state_dict(state)
    state["sampler"]["samples"] = 0
    loader.state_dict()["sampler"]["samples"] = 0
    assert loader.state_dict()["sampler"]["samples"] == 8


def test_a_state_of_a_sampler_with_other_arguments_is_refused() -> None:
    def make(many: int) -> Any:
        return DataLoader(Numbers(40), 4, sampler=RandomSampler(range(40), num_samples=many))

    _, state = read(make(30), 2)
    loader = make(20)
    loader.load_state_dict(state)  # the loader's length is not asked for: a sampler's may cost
    with pytest.raises(ValueError, match="number of samples was 30 and is 20"):
        next(iter(loader))


# -- epochs that are set ---------------------------------------------------------------------------------------------


def test_an_epoch_that_is_set_after_a_break_is_the_next_one():
    loader = DataLoader(range(20), batch_size=4, shuffle=True, seed=0)
    next(iter(loader))
    loader.set_epoch(5)
    assert (loader.epoch, loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (5, 5, 0)


def test_passes_that_are_read_in_turns_keep_their_epochs():
    loader = DataLoader(range(20), batch_size=4, shuffle=True, seed=0)
    alone = [[batch.tolist() for batch in loader] for _ in range(2)]
    again = DataLoader(range(20), batch_size=4, shuffle=True, seed=0)
    first, second = iter(again), iter(again)
    turns = [(next(first).tolist(), next(second).tolist()) for _ in range(5)]
    assert [list(batches) for batches in zip(*turns, strict=True)] == alone


def test_one_that_is_set_while_a_pass_goes_on_is_the_one_after_it():
    loader = DataLoader(range(20), batch_size=4, shuffle=True, seed=0)
    batches = iter(loader)
    loader.set_epoch(5)
    next(batches)
    assert (loader.epoch, loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (0, 0, 1)
    list(batches)
    assert (loader.epoch, loader.state_dict()["epoch"]) == (5, 5)
