"""Iterable-style datasets: batches that workers cut and drop by themselves, uneven ends, lengths, epochs, errors.

Where our loader refuses them, torch's is compared with itself: which shows that these tests can be passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import ChainDataset, ConcatDataset
from torch.utils.data import DataLoader as TorchDataLoader

import aloader

from . import data, streams
from .grids import Choice, pairwise
from .kit import WAYS, Case, assert_alike, compare, observe

WORKERS = (0, 1, 2, 3)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def _are_taken() -> bool:
    try:
        aloader.DataLoader(streams.Stream())
    except NotImplementedError:
        return False
    return True


def rows(*names: str) -> frozenset[str]:
    """Rows of `DIFFERENCES` that are seen, where streams are taken."""
    return frozenset(names if _are_taken() else ())


def assert_same(case: Case, *, ways: tuple[str, ...] = WAYS, fork: bool = True) -> None:
    """`assert_alike`; or, where our loader refuses streams, that two runs of torch's are alike."""
    if _are_taken():
        assert_alike(case, ways=ways, fork=fork)
        return
    forked = {"multiprocessing_context": "fork"} if case.make().get("num_workers") else {}
    one, other = (observe(TorchDataLoader, case, **forked) for _ in range(2))
    assert compare(one, other, frozenset()) == (set(), [])
    assert any("batch" in entry.what for entry in one) or "end" in one[-1].what or len(one) == 1


STREAMS: dict[str, Callable[[], Any]] = {
    "same": streams.Stream,
    "sharded": lambda: streams.Sharded(11),
    "uneven": lambda: streams.Uneven(13),
    "late uneven": lambda: streams.LateUneven(13),
    "drawing": lambda: streams.Drawing(12),
    "informed": lambda: streams.Informed(7),
    "large": lambda: streams.Large(5),
    "empty": lambda: streams.Stream(0),
    "itself": streams.Itself,
    "sized": lambda: streams.SizedSharded(10),
    "sized too short": lambda: streams.Sized(10, 3),
    "chain": lambda: ChainDataset([streams.Sharded(5), streams.Uneven(4), streams.Stream(0)]),
    "sum": lambda: streams.Sharded(3) + streams.Sharded(4),
}

FACTORS: dict[str, tuple[Any, ...]] = {
    "workers": WORKERS,
    "batches": ((1, False), (3, False), (3, True), (None, False)),
    "stream": tuple(STREAMS),
    "persistent": (False, True),
    "prefetch": (None, 1, 3),
    "init": (None, "draws"),
    "collate": (None, "with_info"),
    "epochs": ((None,), (None, None, None), (2, None), (1, 0, None)),
}


def allowed(choice: Choice) -> bool:
    """What torch takes; without what kept workers hold after a break, which has its own test below."""
    if not choice["workers"]:
        return not (choice["persistent"] or choice["prefetch"] or choice["init"])
    return not choice["persistent"] or choice["epochs"][0] is None


def case_of(choice: Choice) -> Case:
    """The arguments that a choice stands for."""
    batch_size, drop_last = choice["batches"]

    def make() -> dict[str, Any]:
        arguments = {"dataset": STREAMS[choice["stream"]](), "batch_size": batch_size, "drop_last": drop_last}
        arguments |= {"num_workers": choice["workers"]}
        arguments |= {"collate_fn": getattr(data, choice["collate"])} if choice["collate"] else {}
        if choice["workers"]:
            init = getattr(data, choice["init"]) if choice["init"] else None
            arguments |= {"persistent_workers": choice["persistent"], "prefetch_factor": choice["prefetch"]}
            arguments |= {"worker_init_fn": init}
        return arguments

    asks = choice["stream"] != "itself" or choice["collate"] == "with_info"
    unshared = not asks and choice["workers"] > 1
    return Case(make, choice["epochs"], allow=rows("unshared streams") if unshared else frozenset())


CHOICES = pairwise(FACTORS, allowed, most=len(STREAMS) * len(WORKERS))


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: "-".join(str(level).replace(" ", "") for level in c.values()))
def test_streams(choice: Choice) -> None:
    assert_same(case_of(choice))


@pytest.mark.parametrize("batched", [True, False])
def test_streams_with_the_default_start(batched: bool) -> None:
    def make() -> dict[str, Any]:
        return {"dataset": streams.Drawing(17), "batch_size": 3 if batched else None, "num_workers": 2}

    assert_same(Case(make, (None, None, 2, None)), ways=WAYS[batched:][:1], fork=False)


# -- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, None])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_length_that_is_passed_warns_at_every_batch(workers: int, batch_size: int | None, drop_last: bool) -> None:
    """Ten numbers from each worker, and the dataset says it has two: torch counts batches against samples."""
    order = {"batch_size": batch_size, "num_workers": workers, "drop_last": drop_last and batch_size is not None}
    case = Case(lambda: {"dataset": streams.Sized(10, 2)} | order, (None, None))
    seen = [entry for entry in observe(TorchDataLoader, case, **_fork(workers)) if "warnings" in entry.what]
    assert seen
    assert "Length of IterableDataset Sized(10) was reported to be 2" in str(seen)
    assert_same(case)


def _fork(workers: int) -> dict[str, Any]:
    return {"multiprocessing_context": "fork"} if workers else {}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_length_that_nobody_asked_for_does_not_warn(workers: int) -> None:
    case = Case(lambda: {"dataset": streams.Sized(10, 2), "num_workers": workers}, ask_length=False)
    assert not [entry for entry in observe(TorchDataLoader, case, **_fork(workers)) if "warnings" in entry.what]
    assert_same(case)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_length_that_is_asked_for_between_epochs(workers: int) -> None:
    def between(epoch: int, loader: Any) -> None:
        loader.dataset.said = 20 if epoch == 0 else 4
        if epoch != 1:
            len(loader)

    for persistent in (False, True) if workers else (False,):
        order = {"num_workers": workers, "persistent_workers": persistent}

        def make(order: dict[str, Any] = order) -> dict[str, Any]:
            return {"dataset": streams.Sized(6, 1)} | order

        assert_same(Case(make, (None,) * 3, between, ask_length=False))


# -- what is given beside the stream ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_start_function_that_cuts_the_stream(workers: int) -> None:
    def make() -> dict[str, Any]:
        order = {"batch_size": 2, "num_workers": workers, "worker_init_fn": streams.cut}
        return {"dataset": streams.Cut(3, 17)} | order

    assert_same(Case(make, (None, None)))


@pytest.mark.parametrize(
    "more",
    [
        *({"shuffle": True}, {"shuffle": False}, {"shuffle": 0}, {"sampler": [1]}, {"batch_sampler": [[1]]}),
        *({"batch_size": None, "drop_last": True}, {"batch_size": 0}, {"batch_size": 2.5}),
        {"shuffle": 1, "sampler": [1]},
    ],
    ids=str,
)
def test_arguments_that_streams_refuse(more: dict[str, Any]) -> None:
    assert_same(Case(lambda: {"dataset": streams.Stream()} | more))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_chain_of_what_is_no_stream(workers: int) -> None:
    def make() -> dict[str, Any]:
        return {"dataset": ChainDataset([streams.Stream(2), data.Made("number", 2)]), "num_workers": workers}

    assert_same(Case(make, (3,), allow=rows("the original error") if workers else frozenset()))
    with pytest.raises(AssertionError):
        ConcatDataset([streams.Stream(2)])


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, None])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_error_that_the_stream_goes_on_after(workers: int, batch_size: int | None) -> None:
    """Of a batch, what was fetched before the error is lost, and the next one begins after it."""

    def make() -> dict[str, Any]:
        return {"dataset": streams.Failing(10, (4, 9)), "batch_size": batch_size, "num_workers": workers}

    seen = {0: (), 1: ("the original error",), 2: ("the original error", "unshared streams")}[workers]
    assert_same(Case(make, (None, None), allow=rows(*seen)))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_generator_that_fails_is_over(workers: int, batch_size: int) -> None:
    def make() -> dict[str, Any]:
        return {"dataset": streams.Broken(10), "batch_size": batch_size, "num_workers": workers}

    assert_same(Case(make, (None, None), allow=rows("the original error") if workers else frozenset()))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_that_cannot_be_opened(workers: int) -> None:
    """Each worker's first batch is the error; without workers it is raised by `iter`."""
    row = rows("the original error" if workers else "opened at the first step")
    assert_same(Case(lambda: {"dataset": streams.Unopened(), "num_workers": workers}, (workers or 1,), allow=row))


@pytest.mark.xfail(reason="kept workers drop what torch's would still read of an abandoned epoch", strict=False)
@pytest.mark.parametrize("stream", ["drawing", "itself"])
def test_what_kept_workers_hold_after_an_abandoned_epoch(stream: str) -> None:
    """Torch's workers read to the end of what was given to them: position, epochs and random state are those."""

    def make() -> dict[str, Any]:
        return {"dataset": STREAMS[stream](), "num_workers": 1, "persistent_workers": True}

    assert_same(Case(make, (1, 0, None)))
