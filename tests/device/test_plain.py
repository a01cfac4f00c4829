"""Without streams everything is done at once, and on the CPU nothing is copied."""

from __future__ import annotations

import pytest
import torch

from aloader.device.accelerators import LockRefusedError, is_accelerator
from aloader.device.plain import Plain

CPU = Plain(torch.device("cpu"))


def test_on_the_cpu_a_tensor_is_handed_out_itself():
    CPU.open()
    for tensor in (torch.ones(2), torch.ones(1, requires_grad=True), torch.eye(2).to_sparse()):
        assert CPU.copy(tensor) is tensor
        assert CPU.pin(tensor) is tensor
        assert CPU.is_pinned(tensor)


def test_there_is_nothing_to_wait_for():
    assert is_accelerator(CPU)
    assert not CPU.locks
    with CPU.on(CPU.side):
        event = CPU.record(CPU.current())
    assert event is None
    CPU.wait(None, event)
    CPU.join(event)
    CPU.record_stream(torch.ones(1), None)
    assert CPU.passed(event)


def test_nothing_is_page_locked():
    with pytest.raises(LockRefusedError, match='not page-locked for device="cpu"'):
        CPU.lock(4096, 4096)
    CPU.unlock(4096)


def test_the_cpus_generator_is_torchs_and_left_to_whoever_keeps_that():
    before = torch.get_rng_state()
    CPU.seed(3)
    CPU.set_random_state(CPU.random_state())
    assert torch.equal(torch.get_rng_state(), before)


def test_on_another_device_a_copy_keeps_what_the_tensor_is():
    other = Plain(torch.device("meta"))  # the only one that every machine has
    other.open()
    made = other.copy(torch.ones(2, 3, requires_grad=True))
    assert made.device == other.device
    assert made.requires_grad
    assert made.is_leaf
    assert other.copy(made) is made
    assert other.random_state() is None
    other.seed(1)
    other.set_random_state(None)


@pytest.mark.parametrize("name", ["mps", "xpu"])
def test_a_device_that_is_not_there_is_refused_with_torchs_words(name):
    module = torch.backends.mps if name == "mps" else torch.xpu
    if module.is_available():
        pytest.skip(f"there is {name}")
    with pytest.raises(RuntimeError, match=f'device="{name}" cannot be used: torch says ".+"') as caught:
        Plain(torch.device(name)).open()
    assert caught.value.__cause__ is not None
