"""Workers die in the midst of everything, and nothing is lost: every batch comes, whole, once, in its place."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from aloader import DataLoader, WorkerLost, WorkerPool

from .dying import Async, AsyncStream, Fate, Mortal, Stream, Together, restarts, run, run_async
from .samples import Numbers, Stamped, check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(4) as pool:
        yield pool


N = 24
IN_ORDER = [[i, i + 1] for i in range(0, N, 2)]
#: Of two workers, each with its share.
SHARES = [[i + worker, i + worker + 2] for i in range(0, N, 4) for worker in (0, 1)]

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ordinary": (Mortal, {}),
    "together": (Together, {}),
    "async": (Async, {}),
    "threads": (Mortal, {"concurrency": 4}),
    "iterable": (Stream, {}),
    "async iterable": (AsyncStream, {}),
}


def in_place(kind: str, got: list[Any]) -> bool:
    return got == (SHARES if "iterable" in kind else IN_ORDER)


def all_there(kind: str, got: list[Any]) -> bool:
    return sorted(got) == sorted(SHARES if "iterable" in kind else IN_ORDER)


def test_every_kind_in_two_epochs_of_the_same_workers(pool, tmp_path):
    for kind, (dataset, more) in KINDS.items():
        fate = Fate(tmp_path / kind, once=(5, 14))
        arguments = {"batch_size": 2, "num_workers": 2, "persistent_workers": True, "pool": pool, **more}
        with DataLoader(dataset(fate), **arguments) as loader:
            with restarts() as told:
                got = run(loader)
            assert in_place(kind, got), (kind, got)
            assert len(told) == fate.deaths > 0, (kind, told)
            fate.again(5)
            with restarts() as told:
                got = run(loader)
            assert in_place(kind, got), (kind, got)
            assert len(told) == 1, (kind, told)


@pytest.mark.asyncio
async def test_every_kind_on_a_loop_as_the_batches_arrive(pool, tmp_path):
    for kind, (dataset, more) in KINDS.items():
        fate = Fate(tmp_path / kind, once=(0, 9, 22))
        arguments = {"batch_size": 2, "num_workers": 2, "pool": pool, "in_order": False, **more}
        async with DataLoader(dataset(fate), **arguments) as loader:
            with restarts() as told:
                got = await run_async(loader)
        assert all_there(kind, got), (kind, got)
        assert len(told) == fate.deaths > 0, (kind, told)


@pytest.mark.usefixtures("nothing_left")
def test_workers_that_are_forked_as_torchs(tmp_path):
    fate = Fate(tmp_path / "fate", once=(0, 14, 15))
    with DataLoader(Mortal(fate), 2, num_workers=2, multiprocessing_context="fork") as loader, restarts() as told:
        assert run(loader) == IN_ORDER
    assert len(told) == fate.deaths == 3


@pytest.mark.usefixtures("nothing_left")
def test_what_all_workers_are_forked_from_is_killed_and_that_counts_once(children, tmp_path):
    others = children()
    data = Mortal(Fate(tmp_path / "fate", once=(8,), how={8: "wait"}), 160)  # not before it is killed
    with DataLoader(data, 2, num_workers=4, max_worker_restarts=1) as loader, restarts() as told:
        batches = iter(loader)
        got = [next(batches).tolist() for _ in range(3)]
        (template,) = children() - others
        data.fate.await_one()
        template.kill()
        got += run(batches)
    assert got == [[i, i + 1] for i in range(0, 160, 2)]
    assert 1 <= len(told) <= 4


# -- when nobody expects it --------------------------------------------------------------------------------------------


def begins(fate: Fate, worker: int) -> None:
    """For `worker_init_fn`."""
    fate.meet(worker)


def test_a_worker_that_dies_before_it_is_ready(pool, tmp_path):
    fate = Fate(tmp_path / "fate", once=(0, 1))
    arguments = {"num_workers": 2, "pool": pool, "worker_init_fn": partial(begins, fate)}
    with DataLoader(Numbers(N), 2, **arguments) as loader, restarts() as told:
        assert run(loader) == IN_ORDER
    assert len(told) == fate.deaths == 2


def pids_of(loader: DataLoader[Any]) -> list[int]:
    return [worker.pid for worker in loader._iterator._workers]


def test_workers_that_die_between_epochs_are_replaced(pool):
    with DataLoader(Numbers(N), 2, num_workers=2, pool=pool, persistent_workers=True) as loader, restarts() as told:
        assert run(loader) == IN_ORDER
        before = pids_of(loader)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert run(loader) == IN_ORDER
        assert not set(before) & set(pids_of(loader))
        assert run(loader) == IN_ORDER
    assert len(told) <= 2, "who was missed before the epoch began is not told of"


def test_who_has_died_between_epochs_is_none_of_those_that_an_epoch_may_lose():
    arguments = {"num_workers": 1, "persistent_workers": True, "max_worker_restarts": 0}
    with DataLoader(Numbers(N), 2, **arguments) as loader, restarts() as told:
        assert run(loader) == IN_ORDER
        reports = select.poll()
        for fd in loader._runtime._pool.starter.watched().values():
            reports.register(fd, select.POLLIN)
        os.kill(*pids_of(loader), signal.SIGKILL)
        assert reports.poll(5000), "somebody has seen it"
        assert run(loader) == IN_ORDER
    assert told == []


def test_what_a_dead_worker_has_made_stays_what_it_was(pool):
    with DataLoader(Stamped(48), 4, num_workers=2, pool=pool) as loader, restarts() as told:
        batches = iter(loader)
        kept = [next(batches) for _ in range(3)]
        copies = [[tensor.clone() for tensor in batch] for batch in kept]
        for worker in batches._workers:
            os.kill(worker.pid, signal.SIGKILL)
        kept += list(batches)
        copies += [[tensor.clone() for tensor in batch] for batch in kept[3:]]
    assert [index for batch in kept for index in check(batch)] == list(range(48))
    for batch, copy in zip(kept, copies, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(batch, copy, strict=True))
    assert 1 <= len(told) <= 2


# -- how often ---------------------------------------------------------------------------------------------------------


def outcomes(dataset: Any, pool: WorkerPool, **more: Any) -> tuple[int, int]:
    """Of a dataset whose first worker is lost: batches lost with it, and times that another one has come."""
    with DataLoader(dataset, 2, num_workers=2, pool=pool, **more) as loader, restarts() as told:
        got = run(loader)
    lost = [seq for seq, one in enumerate(got) if isinstance(one, WorkerLost)]
    assert len(got) == len(IN_ORDER)
    assert all(one == IN_ORDER[seq] for seq, one in enumerate(got) if seq not in lost)
    assert lost == list(range(0, 2 * len(lost), 2)), "those that had been drawn for it"
    return len(lost), len(told)


def test_who_is_replaced_no_more_takes_along_what_was_given_to_it(pool, tmp_path):
    lost, told = outcomes(Mortal(Fate(tmp_path / "none", once=(0,))), pool, max_worker_restarts=0)
    assert lost > 1
    assert told == 0
    lost, told = outcomes(Mortal(Fate(tmp_path / "one", once=(0, 1))), pool, max_worker_restarts=1)
    assert lost > 1
    assert told == 1
    assert outcomes(Mortal(Fate(tmp_path / "two", once=(0, 1))), pool, max_worker_restarts=2) == (0, 2)
    unwilling = Mortal(Fate(tmp_path / "unwilling", once=(0,)))
    unwilling.restartable = False
    lost, told = outcomes(unwilling, pool)
    assert lost > 1
    assert told == 0


def test_each_epoch_has_its_own_count(pool, tmp_path):
    fate = Fate(tmp_path / "fate", once=(3,))
    arguments = {"num_workers": 1, "pool": pool, "persistent_workers": True, "max_worker_restarts": 1}
    with DataLoader(Mortal(fate, 6), 2, **arguments) as loader, restarts() as told:
        for _ in range(3):
            assert run(loader) == IN_ORDER[:3]
            fate.again(3)
    assert len(told) == 3


def test_a_share_that_is_lost_for_good_says_why(pool, tmp_path):
    dataset = Stream(Fate(tmp_path / "fate", once=(5, 9)))
    with DataLoader(dataset, 2, num_workers=2, pool=pool, max_worker_restarts=1) as loader, restarts() as told:
        got = run(loader)
    (lost,) = [one for one in got if isinstance(one, WorkerLost)]
    assert any("as often as max_worker_restarts allows" in note for note in lost.__notes__)
    assert [batch for batch in got if batch is not lost and not batch[0] % 2] == SHARES[::2]
    assert len(told) == 1
