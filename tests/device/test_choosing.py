"""A device as users name it becomes an accelerator, and nothing is initialised by that."""

from __future__ import annotations

import pytest
import torch

from aloader.device import choosing
from aloader.device.accelerators import assumed
from aloader.device.choosing import accelerator_for, current
from aloader.device.cuda import Cuda
from aloader.device.plain import Plain
from aloader.testing import SimulatedAccelerator
from tests.loader.programs import Program


@pytest.mark.parametrize("name", ["cpu", torch.device("cpu"), "mps", "xpu:1"])
def test_devices_without_streams_of_ours(name):
    accelerator = accelerator_for(name)
    assert type(accelerator) is Plain
    assert accelerator.device == torch.device(name)


def test_cuda_with_and_without_an_index():
    assert accelerator_for("cuda:3").device == torch.device("cuda", 3)
    assert accelerator_for(torch.device("cuda", 1)).device == torch.device("cuda", 1)
    if not torch.cuda.is_initialized():
        accelerator = accelerator_for("cuda")
        assert type(accelerator) is Cuda
        assert accelerator.device == torch.device("cuda", 0)
        assert not torch.cuda.is_initialized()


def test_where_cuda_is_initialised_it_is_the_current_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert accelerator_for("cuda").device == torch.device("cuda", 3)


@pytest.mark.gpu
def test_cuda_without_an_index_is_the_current_device():
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(last):
        assert accelerator_for("cuda").device.index == accelerator_for(last).device.index == last
        found = current()
    assert found is not None
    assert found.device.index == last


def test_an_accelerator_is_given_back():
    accelerator = Plain(torch.device("cpu"))
    assert accelerator_for(accelerator) is accelerator


def test_the_one_that_is_assumed_stands_for_torchs_current_one():
    if not torch.cuda.is_available():
        assert current() is None
    accelerator = Plain(torch.device("cpu"))
    token = assumed.set(accelerator)
    try:
        assert current() is accelerator
    finally:
        assumed.reset(token)


POISONED = """
    import torch

    def refuse():
        raise SystemExit("CUDA is initialised")

    def poison():
        torch.cuda._lazy_init = refuse

    poison()
    from aloader import DataLoader
    from aloader.device import choosing, cuda, drawing, pinning, plain, structure

    data = [torch.full((2,), float(n)) for n in range(8)]
    if torch.version.cuda is not None:
        DataLoader(data, device="cuda")
    repr(choosing.accelerator_for("cuda:1"))
    for more in ({}, {"num_workers": 1, "multiprocessing_context": "fork"}):  # a fork is as poisoned as this process
        with DataLoader(data, 4, device="cpu", **more) as loader:
            assert [batch.sum().item() for batch in loader] == [12, 44]
    assert not torch.cuda.is_initialized()
    print("done")
"""


@pytest.mark.slow
def test_importing_making_and_the_cpu_never_initialise_cuda(tmp_path):
    with Program(tmp_path, POISONED) as program:
        ended = program.end()
    assert (ended.code, ended.out, ended.err) == (0, "done\n", "")


def test_what_is_on_the_cpu_needs_no_moving_where_there_is_nothing_else(monkeypatch):
    cpu = accelerator_for("cpu")
    monkeypatch.setattr(choosing, "kind", lambda: "")
    assert choosing.is_everywhere(cpu)
    assert not choosing.is_everywhere(accelerator_for("meta"))
    assert not choosing.is_everywhere(SimulatedAccelerator())
    monkeypatch.setattr(choosing, "kind", lambda: "cuda")
    assert not choosing.is_everywhere(cpu)
