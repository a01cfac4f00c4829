"""Who replaces a lost worker makes what that one would have made: the same random numbers, with and without `seed=`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from aloader import DataLoader, WorkerPool

from .draws import drawn
from .dying import Fate, Mortal, restarts
from .samples import as_list

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

N = 24


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


class Drawing(Mortal):
    """A sample is what was drawn for it; its worker may die before, or in the midst of that. Some draw nothing."""

    def __init__(self, fate: Fate, n: int = N, draws: bool = True) -> None:
        super().__init__(fate, n)
        self.draws = draws

    def __getitem__(self, index: int) -> Any:
        numbers = drawn() if self.draws or index % 3 == 0 else []
        self.fate.meet(index)
        return index, numbers + drawn() if self.draws else numbers


def begun(number: int) -> None:
    """For `worker_init_fn`: draws, too."""
    drawn()


def of_all(dataset: Drawing, workers: int, **more: Any) -> list[Any]:
    """The batches; whoever has died is told of."""
    torch.manual_seed(3)
    arguments = {"num_workers": workers, "collate_fn": as_list, "worker_init_fn": begun, "max_worker_restarts": 30}
    with DataLoader(dataset, 2, **arguments, **more) as loader, restarts() as told:
        batches = list(loader)
    assert len(told) == dataset.fate.deaths
    return batches


def test_a_replacement_goes_on_where_the_lost_worker_was(pool, tmp_path):
    for draws in (True, False):
        whole = of_all(Drawing(Fate(tmp_path / f"whole{draws}"), N, draws), 1, pool=pool)
        for fatal in ((0,), (9,)) if draws else ((5, 6, 7),):
            dying = Drawing(Fate(tmp_path / f"dead{draws}{fatal[0]}", fatal), N, draws)
            assert of_all(dying, 1, pool=pool) == whole
            assert dying.fate.deaths == len(fatal)


@pytest.mark.parametrize("seed", [None, 7], ids=["as torch", "seed"])
def test_after_many_deaths_every_number_is_what_it_would_have_been(pool, tmp_path, seed):
    """Ten deaths: two at one batch, which is suspected then, and goes to a worker of its own."""
    fatal = [*random.Random(5).sample(range(40), 8), 40, 41]
    arguments: dict[str, Any] = {"seed": seed, "pool": pool}
    whole = of_all(Drawing(Fate(tmp_path / "whole"), 48), 2, **arguments)
    dying = Drawing(Fate(tmp_path / "dead", fatal), 48)
    assert of_all(dying, 2, **arguments) == whole
    assert dying.fate.deaths == 10


@pytest.mark.usefixtures("nothing_left")
def test_also_where_workers_are_forked_as_torchs(tmp_path):
    arguments: dict[str, Any] = {"multiprocessing_context": "fork"}
    whole = of_all(Drawing(Fate(tmp_path / "whole")), 1, **arguments)
    assert of_all(Drawing(Fate(tmp_path / "dead", (9, 20))), 1, **arguments) == whole
