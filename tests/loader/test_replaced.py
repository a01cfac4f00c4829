"""Without `seed=`, who replaces a lost worker goes on drawing where that one was after its last ticket."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from aloader import DataLoader, WorkerLost

from .draws import drawn
from .samples import Numbers, as_list

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

N = 24


class Dying(Numbers):
    """A sample is what was drawn for it. Those in `fatal` kill their worker, once each."""

    def __init__(self, folder: Path, fatal: tuple[int, ...] = (), draws: bool = True) -> None:
        super().__init__(N)
        self.folder = folder
        self.fatal = fatal
        self.draws = draws

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        numbers = drawn() if self.draws or index % 3 == 0 else []
        if index in self.fatal and not (self.folder / str(index)).exists():
            (self.folder / str(index)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return numbers


def begun(number: int) -> None:
    """For `worker_init_fn`: draws, too."""
    drawn()


def of_workers(dataset: Dying, workers: int, **more: Any) -> tuple[list[list[Any]], int]:
    """What each worker has drawn for the batches that came, in their order; and how many were lost."""
    torch.manual_seed(3)
    found: list[list[Any]] = [[] for _ in range(workers)]
    lost = 0
    with DataLoader(dataset, 2, num_workers=workers, collate_fn=as_list, worker_init_fn=begun, **more) as loader:
        batches = iter(loader.with_info())
        while True:
            try:
                batch, info = next(batches)
            except StopIteration:
                return found, lost
            except WorkerLost:
                lost += 1
            else:
                found[info.worker] += batch


@pytest.mark.parametrize(
    ("fatal", "draws"),
    [((0,), True), ((9,), False), ((5, 6, 7), True)],
    ids=["first", "idle", "three"],
)
def test_a_replacement_goes_on_where_the_lost_worker_was(tmp_path, fatal, draws):
    [whole], _ = of_workers(Dying(tmp_path, draws=draws), 1)
    [numbers], lost = of_workers(Dying(tmp_path, fatal, draws), 1)
    tickets = {index // 2 for index in fatal}
    assert lost == len(tickets)
    assert len(numbers) == N - 2 * lost
    drawn_in_turn, expected = ([one for one in some if one] for some in (numbers, whole))
    assert drawn_in_turn == expected[: len(drawn_in_turn)]


def test_the_other_worker_does_not_notice(tmp_path):
    whole, _ = of_workers(Dying(tmp_path), 2)
    numbers, lost = of_workers(Dying(tmp_path, (9,)), 2)
    assert lost == 1
    assert numbers[1] == whole[1]
    assert numbers[0] == whole[0][: len(numbers[0])]
    assert len(numbers[0]) == N // 2 - 2


def test_also_where_workers_are_forked_as_torchs(tmp_path):
    [whole], _ = of_workers(Dying(tmp_path), 1, multiprocessing_context="fork")
    [numbers], lost = of_workers(Dying(tmp_path, (9,)), 1, multiprocessing_context="fork")
    assert lost == 1
    assert numbers == whole[: N - 2]
