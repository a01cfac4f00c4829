"""`on_error` and `max_errors`: the same batches, counts and warnings in every way of running."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from aloader import DataLoader, SampleError, SampleWarning, WorkerPool

from . import bad
from .samples import as_list

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.filterwarnings("ignore::aloader.SampleWarning")]

EXPECTED = {
    "skip": [[0, 1, 2, 3], [4, 6, 6, 7], [8, 9, 10, 11], SampleError, [16, 17, 16, 17], [20, 21, 22, 23]],
    "drop": [[0, 1, 2, 3], [4, 6, 7], [8, 9, 10, 11], [16, 17], [20, 21, 22, 23]],
    bad.negative: [
        [0, 1, 2, 3], [4, -5, 6, 7], [8, 9, 10, 11], [-12, -13, -14, -15], [16, 17, -18, -19], [20, 21, 22, 23]
    ],
}  # fmt: skip

KINDS = [bad.Bad, bad.AsyncBad, bad.TogetherBad, bad.AsyncTogetherBad, bad.Stream, bad.AsyncStream]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """One template for all the loaders of a test: that takes most of the time."""
    with WorkerPool(2) as one:
        yield one


def taken(batches: Any) -> list[Any]:
    """What iterating gives; the types of errors in their places."""
    got = []
    while True:
        try:
            got.append(next(batches))
        except StopIteration:
            return got
        except Exception as error:
            got.append(type(error))


async def taken_async(loader: DataLoader[Any]) -> list[Any]:
    got: list[Any] = []
    async with loader:
        batches = aiter(loader)
        while True:
            try:
                got.append(await anext(batches))
            except StopAsyncIteration:
                return got
            except Exception as error:
                got.append(type(error))


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **({"batch_size": 4, "collate_fn": as_list} | options))


def expected(kind: type, policy: Any) -> list[Any]:
    """Samples of a stream are known by their positions."""
    if policy is not bad.negative or (not hasattr(kind, "__iter__") and not hasattr(kind, "__aiter__")):
        return EXPECTED[policy]
    return [[-at if n < 0 else n for at, n in enumerate(batch)] for batch in EXPECTED[policy]]


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", EXPECTED, ids=["skip", "drop", "function"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_workers(kind: type, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (None, 1):
        with loader_of(kind(), on_error=policy, seed=seed) as loader:
            assert taken(iter(loader)) == expected(kind, policy)
            assert loader.stats().samples_failed == (3 if policy == "skip" else 7)
        assert asyncio.run(taken_async(loader_of(kind(), on_error=policy, seed=seed))) == expected(kind, policy)
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    for workers in (0, 1):
        with loader_of(kind(), on_error=policy, num_workers=workers, seed=workers or None) as loader:
            assert taken(iter(loader)) == expected(kind, policy)
            assert loader.stats().samples_failed == (3 if policy == "skip" else 7)
    assert asyncio.run(taken_async(loader_of(kind(), on_error=policy))) == expected(kind, policy)


@pytest.mark.slow
def test_with_workers(pool: WorkerPool) -> None:
    for kind in (*KINDS, bad.ReturnsAwaitables, bad.AwaitableStream):
        for policy in EXPECTED:
            workers = 2 if kind in KINDS[:4] else 1
            with loader_of(kind(), on_error=policy, pool=pool, num_workers=workers, seed=1) as loader:
                assert taken(iter(loader)) == expected(kind, policy), (kind, policy)
                assert loader.stats().samples_failed == (3 if policy == "skip" else 7)


@pytest.mark.slow
def test_in_threads_and_one_of_many_with_a_function_that_is_awaited(pool: WorkerPool) -> None:
    for policy in EXPECTED:
        with loader_of(bad.Bad(), on_error=policy, pool=pool, num_workers=2, concurrency=4) as loader:
            assert taken(iter(loader)) == EXPECTED[policy]
    data = bad.AsyncBad(64, bad=[17])
    with loader_of(data, batch_size=64, on_error=bad.late_negative, pool=pool, num_workers=2) as loader:
        (batch,) = loader
    assert batch == [-n if n == 17 else n for n in range(64)]


# -- a single sample; none at all --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bad.Bad, bad.AsyncBad, bad.Stream])
def test_samples_that_are_not_batched(kind: type) -> None:
    options: Any = {"batch_size": None, "collate_fn": None}
    good = [n for n in range(24) if n not in bad.BAD]
    assert taken(iter(loader_of(kind(), on_error="drop", **options))) == good
    got = taken(iter(loader_of(kind(), on_error="skip", **options)))
    assert [n for n in got if n is not SampleError] == good
    assert len(got) == 24


@pytest.mark.slow
def test_batches_that_come_to_nothing_are_left_out(pool: WorkerPool) -> None:
    data = bad.Bad(80, bad=range(8, 72))
    for in_order in (True, False):
        with loader_of(data, on_error="drop", pool=pool, num_workers=2, in_order=in_order) as loader:
            got = [(info.seq, batch) for batch, info in loader.with_info()]
            assert loader.stats().samples_failed == 64
            assert loader.stats().batches == 4
        assert sorted(got) == [(n, list(range(4 * n, 4 * n + 4))) for n in (0, 1, 18, 19)]
        assert not in_order or got == sorted(got)
    with loader_of(bad.AsyncBad(16, bad=range(16)), on_error="drop", pool=pool, num_workers=2) as loader:
        assert list(loader) == []


def test_a_thousand_that_come_to_nothing_are_no_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bad.Bad(1100, bad=range(1099))
    assert list(loader_of(data, batch_size=None, on_error="drop", collate_fn=None)) == [1099]
    assert asyncio.run(taken_async(loader_of(data, batch_size=1, on_error="drop"))) == [[1099]]
    monkeypatch.setenv("ALOADER_DEBUG", "1")
    assert list(loader_of(data, batch_size=1, on_error="drop")) == [[1099]]


def test_none_is_a_sample_unless_it_is_skipped_or_dropped() -> None:
    def run(policy: Any) -> Any:
        return next(iter(loader_of(bad.Bad(4, bad=(), none=[1]), on_error=policy)))

    assert run("raise") == [0, None, 2, 3]
    assert run(bad.negative) == [0, None, 2, 3]
    assert run("skip") == [0, 2, 2, 3]
    assert run("drop") == [0, 2, 3]


def test_memory_that_runs_out_for_a_sample() -> None:
    for kind in (bad.Bad, bad.AsyncBad):
        loader = loader_of(kind(4, bad=[1], error=MemoryError), on_error="drop")
        assert list(loader) == [[0, 2, 3]]


def test_errors_while_collating_are_the_batchs() -> None:
    def collate(samples: Any) -> Any:
        raise LookupError("collate")

    assert taken(iter(loader_of(bad.Bad(4, bad=()), on_error="drop", collate_fn=collate))) == [LookupError]


@pytest.mark.parametrize("kind", [bad.Bad, bad.AsyncBad])
def test_a_function_that_fails_or_has_no_answer(kind: type) -> None:
    with loader_of(kind(), on_error=bad.refuse) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(LookupError, match="nothing instead of 5") as caught:
            next(batches)
        assert "sample 5 of batch 1" in "".join(caught.value.__notes__)
        assert str(caught.value.__context__) == "bad 5"
        assert next(batches) == [8, 9, 10, 11]
    with loader_of(kind(), on_error=bad.nothing) as loader:
        assert taken(iter(loader)) == EXPECTED["skip"]


# -- iterable datasets -------------------------------------------------------------------------------------------------


def test_a_generator_says_why_it_cannot_go_on() -> None:
    batches = iter(loader_of(bad.Generating(), on_error="drop"))
    next(batches)
    with pytest.raises(ValueError, match="bad 5") as caught:
        next(batches)
    assert "a generator, which cannot go on after an error" in "".join(caught.value.__notes__)
    assert next(batches, None) is None


def test_an_iterator_that_never_gives_a_sample_again_is_an_error() -> None:
    batches = iter(loader_of(bad.Hopeless(), on_error="drop"))
    with pytest.raises(ValueError, match="never again"):
        next(batches)


# -- counting ----------------------------------------------------------------------------------------------------------


def test_what_failed_is_told_with_the_batch_and_once_by_a_warning() -> None:
    for workers, kind in ((0, bad.Bad), (0, bad.AsyncBad)):
        with loader_of(kind(), on_error="drop", num_workers=workers) as loader:
            with pytest.warns(SampleWarning) as told:
                left_out = {info.seq: info.left_out for _, info in loader.with_info()}
        assert left_out == {0: (), 1: (5,), 2: (), 4: (18, 19), 5: ()}
        first, last = [str(one.message) for one in told]
        assert "sample 5 of batch 1 failed: ValueError: bad 5" in first
        assert "7 samples failed (7 ValueError)" in last


@pytest.mark.slow
def test_the_first_that_goes_beyond_is_the_same_in_every_run(pool: WorkerPool) -> None:
    def errors(**options: Any) -> list[Any]:
        found = []
        with loader_of(bad.Bad(), on_error="drop", **options) as loader:
            batches = iter(loader)
            while True:
                try:
                    found.append(next(batches)[0])
                except StopIteration:
                    return found
                except SampleError as error:
                    found.append((error.batch, error.index, str(error.__cause__)))

    assert errors(max_errors=7) == [0, 4, 8, 16, 20]
    for options in ({}, {"pool": pool, "num_workers": 2}):
        assert errors(max_errors=3, **options) == [0, 4, 8, (3, 14, "bad 14"), (4, 18, "bad 18"), 20]
        assert errors(max_errors=0.25, **options) == [0, 4, 8, (4, 19, "bad 19"), 20]


def test_an_epoch_without_a_good_sample_ends_at_once_where_errors_are_bounded() -> None:
    loader = loader_of(bad.AsyncBad(10_000, bad=range(10_000)), on_error="drop", max_errors=100)
    with loader, pytest.raises(SampleError, match="max_errors=100"):
        next(iter(loader))


# -- ranks, resuming, random numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["skip", bad.negative])
def test_ranks_stay_equal_and_nobody_gets_anothers_sample(policy: Any) -> None:
    data = bad.Bad(32, bad=[3, 4, 5, 20])
    of_rank = [list(DistributedSampler(data, 2, rank, seed=1)) for rank in range(2)]  # type: ignore[arg-type]
    for rank, mine in enumerate(of_rank):
        sampler = DistributedSampler(data, 2, rank, seed=1)  # type: ignore[var-annotated,arg-type]
        batches = list(loader_of(data, sampler=sampler, on_error=policy))
        assert [len(batch) for batch in batches] == [4] * 4
        assert all(abs(sample) in mine[4 * n : 4 * n + 4] for n, batch in enumerate(batches) for sample in batch)


@pytest.mark.parametrize("policy", EXPECTED, ids=["skip", "drop", "function"])
@pytest.mark.parametrize("kind", [bad.Bad, bad.AsyncBad, bad.Stream])
def test_what_comes_after_a_state_is_what_would_have_come(kind: type, policy: Any) -> None:
    whole = expected(kind, policy)
    for had in range(len(whole)):
        with loader_of(kind(), on_error=policy) as first:
            batches = iter(first)
            got = [outcome for _, outcome in zip(range(had), _outcomes(batches), strict=False)]
            state = first.state_dict()
        with loader_of(kind(), on_error=policy) as second:
            second.load_state_dict(state)
            rest = taken(iter(second))
        if got and got[-1] is SampleError:
            assert rest[0] is SampleError, "what failed last is tried again"
            rest = rest[1:]
        assert got + rest == whole


def _outcomes(batches: Any) -> Iterator[Any]:
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return
        except Exception as error:
            yield type(error)


class Drawing(bad.Bad):
    def __getitem__(self, index: int) -> Any:
        import random

        number = random.random()
        self.got(index)
        return index, number


class AsyncDrawing(Drawing):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0)
        return Drawing.__getitem__(self, index)


def drawn(error: Any) -> Any:
    import random

    return error.index, random.random()


@pytest.mark.parametrize("kind", [Drawing, AsyncDrawing])
def test_a_sample_that_fails_changes_nobody_elses_numbers(kind: type) -> None:
    def numbers(bad_ones: Any, policy: Any) -> dict[int, float]:
        loader = loader_of(kind(bad=bad_ones), on_error=policy, seed=3)
        with loader:
            return dict(sample for batch in loader for sample in batch)

    undisturbed = numbers((), "raise")
    for policy in ("skip", "drop"):
        got = numbers([5, 18], policy)
        assert got == {index: number for index, number in undisturbed.items() if index not in (5, 18)}
    assert numbers([5, 18], drawn) == undisturbed, "a function draws what the sample would have"


def test_one_warning_for_each_epoch() -> None:
    loader = loader_of(bad.Bad(bad=[5]), on_error="drop")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            list(loader)
    assert [str(one.message)[:11] for one in caught] == ["In epoch 1,", "In epoch 2,"]


class TwoWords(SampleError):
    """Made from more than its message, so that it cannot be copied."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Refusing(bad.AsyncBad):
    async def __getitem__(self, index: int) -> int:
        raise TwoWords("not", "today")


def test_an_error_of_the_users_that_is_a_sample_error_is_raised_as_it_is() -> None:
    with loader_of(Refusing(4)) as loader, pytest.raises(TwoWords, match="not today") as caught:
        next(iter(loader))
    assert caught.traceback[-1].name == "__getitem__"


@pytest.mark.parametrize("debugging", ["0", "1"])
def test_where_warnings_are_errors_no_batch_is_lost_for_one(debugging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALOADER_DEBUG", debugging)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SampleWarning)
        got = taken(iter(loader_of(bad.Bad(), on_error="drop")))
        assert got == asyncio.run(taken_async(loader_of(bad.Bad(), on_error="drop")))
    assert [batch for batch in got if batch is not SampleWarning] == EXPECTED["drop"]
    assert got[1] is SampleWarning
    assert got[-1] is SampleWarning, "the number of all, at the end"
