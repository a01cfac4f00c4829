"""What becomes of samples that fail, decided by position alone: no loader, no worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aloader.channel.faults import pack_fault, unpack_fault
from aloader.channel.messages import Ticket
from aloader.errors import SampleError
from aloader.worker.each import fetch_carefully
from aloader.worker.faulty import BAD, AllLost, Failed, Losses, Policy, refilled
from aloader.worker.fetch import Fetcher
from tests.loader.samples import Numbers


def losses(
    word: str, function: Any = None, indices: Any = range(6), batched: bool = True, iterable: bool = False, **rest: Any
) -> Losses:
    made = Policy(word, function, 3).losses(Ticket(0, 0, 7, indices, 0, **rest), batched, iterable, None)
    assert made is not None
    return made


def fetched(dataset: Any, found: Losses) -> tuple[Any, list[int]]:
    """What is fetched of a dataset; and what was told of before."""
    told = Told()
    return fetch_carefully(dataset, found, told, None), told.positions


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.positions: list[int] = []

    def __setitem__(self, at: int, position: int) -> None:
        self.positions.append(position)


class Bad(Numbers):
    """Some samples fail; knows what was asked for."""

    def __init__(self, *bad: int, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.bad = bad
        self.error = error
        self.asked: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if index in self.bad:
            raise self.error(f"bad {index}")
        return index


class Together(Bad):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(list(indices))
        return [Bad.__getitem__(self, index) for index in indices]


class OnlyTogether:
    def __init__(self, *bad: int) -> None:
        self.inner = Together(*bad)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return self.inner.__getitems__(indices)


# -- refilling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "filled"),
    [
        ([1], [0, 2, 2, 3, 4, 5]),
        ([5], [0, 1, 2, 3, 4, 0]),
        ([0, 1, 2], [3, 4, 5, 3, 4, 5]),
        ([1, 4], [0, 2, 2, 3, 3, 5]),
        ([0, 1, 2, 4, 5], [3, 3, 3, 3, 3, 3]),
        ([1, 2, 3, 4], [0, 5, 0, 5, 0, 5]),
    ],
)
def test_places_are_filled_in_turn_beginning_behind_the_first_bad_one(bad: list[int], filled: list[int]) -> None:
    assert refilled(range(6), bad) == filled


def test_every_good_sample_comes_as_often_as_any_other_or_once_more() -> None:
    for mask in range(1, (1 << 8) - 1):
        good = [at for at in range(8) if mask >> at & 1]
        filled = refilled(range(8), [at for at in range(8) if at not in good])
        counts = [filled.count(at) for at in good]
        assert sum(counts) == 8
        assert max(counts) - min(counts) <= 1
        assert [filled[at] for at in good] == good


# -- settling ----------------------------------------------------------------------------------------------------------


def test_a_policy_that_raises_looks_after_nothing() -> None:
    assert Policy().losses(Ticket(0, 0, 0, [1], 0), True, False, None) is None


def test_skipping_keeps_the_size_and_dropping_does_not() -> None:
    for word, expected in (("skip", [0, 2, 2, 3, 4, 5]), ("drop", [0, 2, 3, 4, 5])):
        found = losses(word)
        samples, told = fetched(Bad(1), found)
        assert samples == [0, BAD, 2, 3, 4, 5]
        assert told == [0, 1, 2, 3, 4, 5]
        assert found.settled(samples) == expected
        ((position, error),) = found.left_out()
        assert (position, str(error)) == (1, "bad 1")
        assert error.__notes__ == [  # type: ignore[union-attr]
            "while fetching sample 1 of batch 7\nTo fetch it again in this process: loader.replay(1)"
        ]


def test_the_type_of_the_batch_is_kept() -> None:
    found = losses("drop")
    found.fell(1, ValueError())
    assert found.settled((0, BAD, 2)) == (0, 2)
    assert losses("skip").settled({"whatever": None}) == {"whatever": None}


def test_nothing_left_is_an_error_where_places_are_to_be_filled() -> None:
    found = losses("skip", indices=[4, 5])
    samples, _ = fetched(Bad(4, 5), found)
    with pytest.raises(SampleError, match=r"samples \[4, 5\].*bad 4.*on_error=.drop.") as caught:
        found.settled(samples)
    assert (caught.value.index, caught.value.batch, caught.value.worker) == (4, 7, 3)
    assert str(caught.value.__cause__) == "bad 4"
    alone = losses("skip", indices=5, batched=False)
    with pytest.raises(SampleError, match="sample 5 of batch 7 failed, the only one"):
        alone.settled(fetched(Bad(5), alone)[0])


def test_nothing_left_is_nothing_where_samples_are_dropped() -> None:
    found = losses("drop", indices=[4, 5])
    with pytest.raises(AllLost) as caught:
        found.settled(fetched(Bad(4, 5), found)[0], b"mark")
    assert caught.value.mark == b"mark"
    assert [one.position for one in caught.value.losses.left_out()] == [0, 1]
    one = losses("drop", indices=5, batched=False)
    with pytest.raises(AllLost):
        one.settled(fetched(Bad(5), one)[0])


@pytest.mark.parametrize("word", ["skip", "drop"])
def test_none_is_no_sample(word: str) -> None:
    found = losses(word, indices=[4, 5])
    assert found.settled([None, 5]) == ([5, 5] if word == "skip" else [5])
    ((position, error),) = found.left_out()
    assert position == 0
    assert isinstance(error, SampleError)
    assert "returned None" in str(error)
    assert error.index == 4


def test_none_may_be_a_sample_where_a_function_decides() -> None:
    assert losses("call", lambda error: 1).settled([None, 5]) == [None, 5]


def test_memory_that_ran_out_is_a_sample_that_failed_and_an_interrupt_is_not() -> None:
    found = losses("drop", indices=[1, 2])
    assert found.settled(fetched(Bad(1, error=MemoryError), found)[0]) == [2]
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(Failed) as caught:
            fetched(Bad(1, error=kind), losses("drop", indices=[1, 2]))
        assert isinstance(caught.value.cause, kind)


# -- a function --------------------------------------------------------------------------------------------------------


def test_a_function_is_asked_with_what_is_known() -> None:
    asked: list[SampleError] = []
    found = losses("call", lambda error: asked.append(error) or "other", indices=[4, 5])
    assert found.settled(fetched(Bad(5), found)[0]) == [4, "other"]
    (error,) = asked
    assert (error.index, error.batch, error.worker, str(error.__cause__)) == (5, 7, 3, "bad 5")
    assert error.__cause__ is not None
    assert error.__cause__.__traceback__ is not None
    assert "sample 5 of batch 7 failed: ValueError: bad 5" in str(error)
    assert len(found.left_out()) == 1, "it failed, whatever stands in its place"


def test_a_function_without_an_answer_skips() -> None:
    found = losses("call", lambda error: None, indices=[4, 5])
    assert found.settled(fetched(Bad(5), found)[0]) == [4, 4]


def test_what_a_function_raises_is_the_batchs_error() -> None:
    def refuse(error: SampleError) -> Any:
        raise LookupError("no other")

    with pytest.raises(Failed) as caught:
        fetched(Bad(5), losses("call", refuse, indices=[4, 5]))
    assert (caught.value.position, str(caught.value.cause)) == (1, "no other")
    assert str(caught.value.cause.__context__) == "bad 5"


def test_an_awaitable_is_refused_where_nobody_awaits() -> None:
    async def late(error: SampleError) -> int:
        return 1

    with pytest.raises(Failed) as caught:
        fetched(Bad(5), losses("call", late, indices=[4, 5]))
    assert "the dataset is not async" in str(caught.value.cause)


@pytest.mark.asyncio
async def test_an_awaitable_is_awaited_where_somebody_does() -> None:
    async def late(error: SampleError) -> Any:
        await asyncio.sleep(0)
        return -error.index  # type: ignore[operator]

    found = losses("call", late, indices=[4, 5])
    samples = await Fetcher(Bad(5), True, 4).fetch([4, 5], lambda position: None, losses=found)
    assert found.settled(samples) == [4, -5]


# -- fetched together, alone, not at all -------------------------------------------------------------------------------


def test_samples_that_fail_together_are_fetched_each_by_itself() -> None:
    data, found = Together(5), losses("drop", indices=[4, 5, 6])
    samples, told = fetched(data, found)
    assert found.settled(samples) == [4, 6]
    assert (data.asked, told) == ([[4, 5, 6], 4, 5, 4, 5, 6], [-1, 0, 1, 2])


@pytest.mark.asyncio
async def test_a_dataset_that_has_nothing_else_is_asked_for_one_together() -> None:
    found = losses("drop", indices=[4, 5, 6])
    assert found.settled(fetched(OnlyTogether(5), found)[0]) == [4, 6]
    found = losses("drop", indices=[4, 5, 6])
    samples = await Fetcher(OnlyTogether(5), True, 4).fetch([4, 5, 6], lambda position: None, losses=found)
    assert found.settled(samples) == [4, 6]


@pytest.mark.asyncio
@pytest.mark.parametrize("word", ["raise", "skip"])
async def test_a_ticket_that_is_alone_fetches_one_after_the_other_and_says_which(word: str) -> None:
    data, found = Together(), losses(word, indices=[4, 5], alone=True)
    samples, told = fetched(data, found)
    assert (found.settled(samples), data.asked, told) == ([4, 5], [4, 5], [0, 1])
    order: list[str] = []

    class Slow(Numbers):
        async def __getitem__(self, index: int) -> int:  # type: ignore[override]
            await asyncio.sleep(0)
            order.append(f"got {index}")
            return index

    found = losses(word, indices=[4, 5], alone=True)
    await Fetcher(Slow(), True, 4).fetch([4, 5], lambda position: order.append(f"at {position}"), losses=found)
    assert order == ["at 0", "got 4", "at 1", "got 5"]


@pytest.mark.asyncio
async def test_what_must_not_be_fetched_is_not() -> None:
    fault = pack_fault(OSError(5, "it ends workers"), "worker 0")
    for word, expected in (("skip", [4, 4]), ("drop", [4]), ("call", [4, "other"])):
        for fetch in ("inline", "async"):
            data = Together()
            found = losses(word, lambda error: "other", indices=[4, 5], without=((1, fault),))
            samples = (
                fetched(data, found)[0]
                if fetch == "inline"
                else await Fetcher(data, True, 4).fetch([4, 5], lambda position: None, losses=found)
            )
            assert (found.settled(samples), data.asked) == (expected, [4])
            ((position, error),) = found.left_out()
            assert (position, type(error)) == (1, OSError)
    with pytest.raises(Failed) as caught:
        fetched(Together(), losses("raise", indices=[4, 5], without=((1, fault),)))
    assert (caught.value.position, type(caught.value.cause)) == (1, OSError)


def test_what_travels_stays_small_and_names_every_sample() -> None:
    found = losses("drop", indices=list(range(200)))
    for position in range(200):
        found.fell(position, ValueError("x" * 5000))
    packed = found.packed("worker 0")
    assert sum(len(fault) for _, fault in packed) < 400_000  # type: ignore[arg-type]
    errors = [unpack_fault(fault) for _, fault in packed]  # type: ignore[arg-type]
    assert isinstance(errors[0], ValueError)
    assert isinstance(errors[-1], SampleError)
    assert "sample 199" in "".join(errors[-1].__notes__)
