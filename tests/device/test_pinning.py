"""`pin_memory=True` pins by the accelerator that there is, and warns as torch does where there is none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from aloader import options
from aloader.channel.leaves import LEASE
from aloader.device import choosing, pinning
from aloader.device.accelerators import assumed
from aloader.device.plain import Plain
from aloader.device.staying import Staying
from aloader.testing import SimulatedAccelerator


class Pinning(Plain):
    """A CPU that page-locks."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return False

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 1


@pytest.fixture
def accelerator() -> Iterator[Pinning]:
    made = Pinning(torch.device("cpu"))
    token = assumed.set(made)
    yield made
    assumed.reset(token)


def said(pin_memory_device: str = "") -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pinning.warn(pin_memory_device, stacklevel=1)
    return [str(warning.message) for warning in caught]


def test_batches_are_pinned_by_the_accelerator(accelerator):
    pin = pinning.pinner(True)
    assert pin is not None
    assert pin({"a": torch.ones(1), "b": "text"}) == {"a": torch.ones(1) + 1, "b": "text"}
    assert said() == []
    assert "pin_memory_device is deprecated" in said("cuda")[0]
    assert pinning.pinner(False) is None


@pytest.mark.parametrize("change", [torch.Tensor.to_sparse, torch.Tensor.to_mkldnn], ids=["sparse", "opaque"])
def test_what_is_pinned_already_and_has_no_storage_of_its_own_stays(accelerator, monkeypatch, change):
    """As torch's pinning has it: such a tensor has no storage that could be asked whose memory it is."""
    monkeypatch.setattr(accelerator, "is_pinned", lambda tensor: True)
    pin, tensor = pinning.pinner(True), change(torch.eye(2))
    assert pin is not None
    assert pin([tensor])[0] is tensor


def test_what_pins_itself_is_taken_out_of_a_workers_memory_before(accelerator, monkeypatch):
    """`pin_memory()` gives back what is pinned already, and the worker's memory may be, for epochs with `device=`."""
    monkeypatch.setattr(accelerator, "is_pinned", lambda tensor: True)
    monkeypatch.setattr(accelerator, "pin", lambda tensor: tensor)
    tensor = torch.eye(2).to_sparse()
    leased = tensor._values()
    setattr(leased.untyped_storage(), LEASE, object())
    pin = pinning.pinner(True)
    assert pin is not None
    (made,) = pin([tensor])
    assert made.to_dense().equal(torch.eye(2))
    assert made._values().data_ptr() != leased.data_ptr()


class Box:
    """Pins itself as it likes."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def pin_memory(self) -> Box:
        return self


def test_of_what_an_object_has_pinned_itself_only_a_workers_memory_is_copied(accelerator, monkeypatch):
    leased, other = torch.ones(1), torch.ones(1)
    setattr(leased.untyped_storage(), LEASE, object())
    monkeypatch.setattr(accelerator, "is_pinned", lambda tensor: tensor is leased)
    pin = pinning.pinner(True)
    assert pin is not None
    (made,) = pin([Box(leased, other)])
    assert made.tensors[0].tolist() == [2.0]
    assert made.tensors[1] is other


@pytest.mark.parametrize("nbytes", [options.PIN_AT_ONCE_BYTES, options.PIN_AT_ONCE_BYTES + 1])
@pytest.mark.parametrize("pinned", [False, True])
def test_of_views_of_an_arena_only_what_is_large_and_not_pinned_is_left_to_a_thread(nbytes, pinned):
    sim = SimulatedAccelerator()
    sim.open()
    tensor = torch.empty(nbytes, dtype=torch.uint8)
    batch = [torch.eye(2).to_sparse(), sim.pin(tensor) if pinned else tensor]
    way = Staying(sim, pinning.in_arena(sim), arena=True)
    assert way.needs_thread(batch) is (nbytes > options.PIN_AT_ONCE_BYTES and not pinned)


def test_copies_of_batches_are_left_to_a_thread(accelerator):
    pin = pinning.pinner(True)
    assert pin is not None
    assert Staying(accelerator, pin).needs_thread([torch.ones(1)])


def test_without_an_accelerator_nothing_is_pinned():
    if choosing.kind():
        pytest.skip("there is an accelerator")
    assert pinning.pinner(True) is None
    assert "no accelerator is found" in said()[0]


def test_on_mps_nothing_is_pinned_and_torchs_words_say_so(monkeypatch):
    monkeypatch.setattr(choosing, "kind", lambda: "mps")
    assert pinning.pinner(True) is None
    assert said() == [
        "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't be used."
    ]


def test_for_other_accelerators_torch_pins(monkeypatch):
    monkeypatch.setattr(choosing, "kind", lambda: "xpu")
    from torch.utils.data._utils.pin_memory import pin_memory

    assert pinning.pinner(True) is pin_memory
