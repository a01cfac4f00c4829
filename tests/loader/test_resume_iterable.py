"""Iterable datasets go on where they were left, each worker in its share: by their own state, or by reading again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from aloader import DataLoader, WorkerPool

from .resuming import in_parts, plain, read, through_json, whole
from .streams import AsyncCounting, Counting, share

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create")]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(3) as pool:
        yield pool


class Uneven(Counting):
    """Worker i gives a share of 2 + 5 i numbers."""

    def numbers(self) -> list[int]:
        worker = next(iter(share(range(100))))
        return [100 * worker + at for at in range(self.n + 5 * worker)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numbers())


class Placed(Uneven):
    """Its state lies on itself. It says how often it was begun, too."""

    at = 0
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1] + 1000 * self.epoch
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Numbering:
    """An iterator with a state, of every kind that states are made of."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.at = 0

    def __iter__(self) -> Numbering:
        return self

    def __next__(self) -> int:
        if self.at >= len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self) -> dict[Any, Any]:
        return {
            1: torch.tensor([self.at]),
            "array": np.arange(self.at),
            "tuple": (self.at, {2, 3}),
            "nan": float("nan"),
        }

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        assert type(state["tuple"]) is tuple
        assert state["tuple"][1] == {2, 3}
        assert np.array_equal(state["array"], np.arange(state["tuple"][0]))
        self.at = int(state[1].item())


class ByIterator(Uneven):
    """Its iterators have a state."""

    def __iter__(self) -> Iterator[Any]:
        return Numbering(self.numbers())


class Both(ByIterator):
    """It has one, and its iterators, too: how often it was read, and how far."""

    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        return Counted([number + 1000 * self.epoch for number in self.numbers()], self)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


class Counted(Numbering):
    """Tells its dataset of its end."""

    def __init__(self, numbers: list[int], dataset: Both) -> None:
        super().__init__(numbers)
        self.dataset = dataset

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            self.dataset.epoch += 1
            raise


class AsyncUneven:
    """Read by `async for`, and nothing of torch's."""

    def __init__(self, n: int) -> None:
        self.n = n

    async def __aiter__(self) -> AsyncIterator[Any]:
        for number in Uneven(self.n).numbers():
            await asyncio.sleep(0)
            yield number


class AsyncPlaced(Placed):
    """The same, with a state."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        for number in super().__iter__():
            await asyncio.sleep(0)
            yield number


#: Ours, and what torch's loader reads the same from.
KINDS: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "no state": (Uneven, Uneven),
    "state": (Placed, Placed),
    "iterator's state": (ByIterator, ByIterator),
    "both": (Both, Both),
    "async": (AsyncUneven, Uneven),
    "async, state": (AsyncPlaced, Placed),
}

BATCHES: dict[str, dict[str, Any]] = {
    "batches": {"batch_size": 3},
    "whole batches": {"batch_size": 3, "drop_last": True},
    "samples": {"batch_size": None},
}


def as_torch_reads_it(dataset: Any, workers: int, **arguments: Any) -> list[Any]:
    """An epoch by torch's loader: of each worker's share, which are then dealt out in turn."""
    if workers < 2:
        return [plain(batch) for batch in TorchLoader(dataset, **arguments)]
    shares = []
    for worker in range(workers):
        numbers = [100 * worker + at for at in range(dataset.n + 5 * worker)]
        shares.append([plain(batch) for batch in TorchLoader(numbers, **arguments)])
    longest = max(map(len, shares))
    return [one[at] for at in range(longest) for one in shares if at < len(one)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("how", ["for", "async for"])
def test_at_every_place_without_workers(kind: str, batches: str, how: str) -> None:
    ours, torchs = KINDS[kind]
    expected = as_torch_reads_it(torchs(5), 0, **BATCHES[batches])

    few = {"concurrency": 4} if "async" in kind else {}  # else a thousand tickets are begun ahead of five samples

    def make(_: int) -> Any:
        return DataLoader(ours(5), **BATCHES[batches], **few)

    once = [[cut] for cut in range(len(expected) + 1)]
    for cuts in (*once[1:], range(len(expected) + 1)):
        assert in_parts(make, list(cuts), how=how)[0] == expected, cuts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_goes_on_in_its_share_and_one_that_is_dry_stays_so(
    pool: WorkerPool, kind: str, workers: int
) -> None:
    at = list(KINDS).index(kind) + workers
    batches = [*BATCHES][at % 3]
    how = ("for", "async for")[at % 2]
    ours, torchs = KINDS[kind]
    expected = as_torch_reads_it(torchs(5), workers, **BATCHES[batches])

    def make(workers: int) -> Any:
        return DataLoader(ours(5), **BATCHES[batches], **({"pool": pool, "num_workers": workers} if workers else {}))

    last = len(expected)
    cuts = sorted({0, 1, last // 2, last - 1, last})
    assert in_parts(make, cuts, (1, 0, 1) if workers == 1 else (workers,), how)[0] == expected


@pytest.mark.parametrize("kind", ["state", "both", "async, state"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_lives_on_takes_along_what_it_counts(pool: WorkerPool, kind: str, workers: int) -> None:
    """Kept workers: each place of the second epoch, and the end of the first one, goes on in another program."""
    on = {"pool": pool, "num_workers": workers, "persistent_workers": True} if workers else {}

    def make() -> Any:
        return DataLoader(KINDS[kind][0](4), batch_size=3, **on)

    loader = make()
    epochs = whole(loader, epochs=3)
    assert epochs[0] != epochs[1]
    loader = make()
    first = [plain(batch) for batch in loader]
    between = through_json(loader.state_dict())
    iterator = iter(loader)
    second = [plain(next(iterator)), plain(next(iterator))]
    within = through_json(loader.state_dict())
    del iterator
    loader.close()
    assert [first, second] == [epochs[0], epochs[1][:2]]
    for state, rest in ((between, epochs[1]), (within, epochs[1][2:])):
        loader = make()
        loader.load_state_dict(state)
        assert loader.epoch == 1
        assert whole(loader, epochs=2) == [rest, epochs[2]], state


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_loader_goes_back_to_a_state_in_mid_epoch_and_after_the_end(pool: WorkerPool, workers: int) -> None:
    on = {"pool": pool, "num_workers": workers, "persistent_workers": True} if workers else {}
    loader = DataLoader(Both(10), batch_size=3, **on)
    iterator = iter(loader)
    before = [plain(next(iterator)) for _ in range(2)]
    state = through_json(loader.state_dict())
    rest = [plain(batch) for batch in iterator]
    for _ in range(2):
        loader.load_state_dict(state)
        assert [plain(batch) for batch in loader] == rest
    loader.load_state_dict(state)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(state)
    assert [plain(batch) for batch in loader] == rest
    assert before != rest
    del iterator
    loader.close()


class Silent(Placed):
    """It cannot say where it is."""

    def state_dict(self) -> dict[str, Any]:
        raise LookupError("no idea")


class Odd(Placed):
    """It says what JSON has no word for."""

    def state_dict(self) -> dict[str, Any]:
        return {"deep": [0, {"file": object()}]}


class Picky(Placed):
    """It takes no state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise KeyError("at")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_dataset_raises_when_it_is_asked_comes_out_of_state_dict_alone(pool: WorkerPool, workers: int) -> None:
    on = {"pool": pool, "num_workers": workers} if workers else {}
    for kind, error, words in ((Silent, LookupError, "no idea"), (Odd, TypeError, r"deep.*1.*file")):
        loader = DataLoader(kind(7), batch_size=3, **on)
        iterator = iter(loader)
        assert plain(next(iterator)) == [0, 1, 2]
        with pytest.raises(error, match=words):
            loader.state_dict()
        assert [plain(batch) for batch in iterator] == [[3, 4, 5], [6]]
        del iterator
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_refuses_its_state_is_an_error_with_a_note(pool: WorkerPool, workers: int) -> None:
    on = {"pool": pool, "num_workers": workers} if workers else {}
    _, state = read(DataLoader(Placed(7), batch_size=3, **on), 1)
    loader = DataLoader(Picky(7), batch_size=3, **on)
    loader.load_state_dict(state)
    with pytest.raises(KeyError) as raised:
        next(iter(loader))
    assert "load_state_dict of Picky" in "".join(raised.value.__notes__)
    loader.close()


class Slow(Counting):
    """Each sample takes a little while, and its state takes longer."""

    at = 0
    asked = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.n:
            _busy(0.001)
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        _busy(0.005)
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def _busy(seconds: float) -> None:
    end = time.thread_time() + seconds  # of its own: others work on this machine
    while time.thread_time() < end:
        pass


class Timed(Slow):
    """It says how much time reading it has taken in all, states included."""

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            yield [number, int(time.thread_time() * 1e6), self.asked]

    def state_dict(self) -> dict[str, int]:
        self.asked += 1
        return super().state_dict()


def test_a_state_that_takes_long_is_asked_for_seldom_and_still_exact(pool: WorkerPool) -> None:
    samples = list(DataLoader(Timed(1000), batch_size=None, pool=pool, num_workers=1))
    first, last = samples[0], samples[-1]
    used, asked = (last[1] - first[1]) / 1e6, last[2] - first[2]
    assert asked >= 1
    grace = 0.1  # seconds at the beginning
    assert asked * 0.005 <= grace + 0.005 + 0.02 * used, (asked, used)
    expected = [[at, at + 1] for at in range(0, 120, 2)]

    def make(workers: int) -> Any:
        return DataLoader(Slow(120), batch_size=2, pool=pool, num_workers=workers)

    assert in_parts(make, [20, 21, 50], (1,))[0] == expected


@pytest.mark.parametrize("dataset", [Counting(12), AsyncCounting(12)])
def test_a_state_of_what_is_read_again_is_small(dataset: Any) -> None:
    _, state = read(DataLoader(dataset, batch_size=2), 4)
    assert len(json.dumps(state)) < 2048


def test_another_number_of_workers_is_an_error_that_says_so(pool: WorkerPool) -> None:
    _, state = read(DataLoader(Uneven(4), batch_size=2, pool=pool, num_workers=2), 1)
    loader = DataLoader(Uneven(4), batch_size=2, pool=pool, num_workers=1)
    for strict in (True, False):
        with pytest.raises(ValueError, match=r"num_workers was 2 and is 1 here.*as many workers"):
            loader.load_state_dict(state, strict=strict)
    loader.close()
