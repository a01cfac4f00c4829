"""CUDA in a worker is refused with the reason and the remedy, before a GPU is looked for: none is needed here."""

from __future__ import annotations

import pytest
import torch

from aloader import DataLoader

from .samples import Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


class OnDevice(Numbers):
    """Sample i initialises CUDA in one of the ways."""

    def __getitem__(self, index: int) -> object:  # type: ignore[override]
        if index == 0:
            torch.cuda.init()
        elif index == 1:
            return torch.zeros(1, device="cuda")
        elif index == 2:
            return torch.ones(1).cuda()
        elif index == 3:
            torch.cuda.current_device()
        return index


class OnDeviceWhenLoaded(Numbers):
    """Initialises CUDA when it is unpickled."""

    def __setstate__(self, state: dict[str, object]) -> None:
        torch.cuda.init()
        self.__dict__.update(state)


def test_cuda_in_a_worker_is_refused_with_reason_and_remedy():
    with DataLoader(OnDevice(6), batch_size=None, num_workers=1) as loader:
        batches = iter(loader)
        for index in range(4):
            with pytest.raises(RuntimeError, match="workers do not touch CUDA") as caught:
                next(batches)
            text = str(caught.value)
            assert "Return CPU tensors" in text
            assert 'multiprocessing_context="spawn"' in text
            assert f"sample {index}" in "\n".join(caught.value.__notes__)
        assert list(batches) == [4, 5]


def test_a_dataset_that_needs_cuda_to_be_loaded_says_so_at_every_batch():
    with DataLoader(OnDeviceWhenLoaded(2), batch_size=None, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="workers do not touch CUDA"):
                next(batches)


class Asking(Numbers):
    """What does not need a context: asking, and seeding."""

    def __getitem__(self, index: int) -> bool:  # type: ignore[override]
        torch.manual_seed(index)
        torch.cuda.manual_seed_all(index)
        return torch.cuda.is_initialized() or (torch.cuda.is_available() and not torch.cuda.device_count())


def test_asking_and_seeding_go_on_working():
    with DataLoader(Asking(2), batch_size=None, num_workers=1) as loader:
        assert list(loader) == [False, False]


def test_torchs_ways_of_starting_keep_torchs_rules():
    with DataLoader(OnDevice(1), batch_size=None, num_workers=1, multiprocessing_context="fork") as loader:
        said = ""
        try:
            next(iter(loader))
        except (AssertionError, RuntimeError) as error:  # "not compiled with CUDA", "no NVIDIA driver"
            said = str(error)
        assert "workers do not touch CUDA" not in said
