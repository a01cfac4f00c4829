"""What counts as being on the device: what waits, what the user was given last, and what the device still reads."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from aloader.device.residence import Residence
from aloader.testing import SimulatedAccelerator


@pytest.fixture
def sim() -> SimulatedAccelerator:
    made = SimulatedAccelerator()
    made.open()
    return made


def given(residence: Residence) -> torch.Tensor:
    """A batch that the user has now."""
    sim = residence.accelerator
    tensor = sim.copy(sim.pin(torch.ones(1)))
    residence.given([tensor], sim.current())
    return tensor


def test_of_what_the_user_keeps_only_the_latest_counts(sim):
    residence = Residence(sim)
    kept = [given(residence) for _ in range(3)]
    assert not residence.full(0, 2)
    assert residence.full(1, 2)
    del kept


def test_what_is_dropped_counts_until_its_stream_is_done_and_then_nothing_is_left_of_it(sim):
    residence = Residence(sim)
    sim.launch("step", 1.0)
    for _ in range(2):
        given(residence)
    assert residence.full(0, 2)
    assert not residence.full(0, 3)
    sim.synchronize()
    assert not residence.full(0, 1)
    assert not residence._given
    assert not residence._leaving


def test_room_is_there_as_soon_as_the_device_is_done_with_what_was_dropped_first(sim):
    residence = Residence(sim)
    for _ in range(2):
        sim.launch("step", 1.0)
        given(residence)
    residence.make_room()
    assert 1.0 < sim.now < 1.1
    assert not residence.full(0, 2)
    assert residence.full(0, 1)


def test_another_epoch_that_looks_in_another_thread_is_no_harm(sim, monkeypatch):
    """It has seen the event pass, too, and was faster."""
    residence, passed, faster = Residence(sim), sim.passed, []
    given(residence)
    sim.synchronize()

    def overtaken(event: Any) -> bool:
        monkeypatch.setattr(sim, "passed", passed)
        faster.append(not residence.full(0, 1))
        return passed(event)

    monkeypatch.setattr(sim, "passed", overtaken)
    assert not residence.full(0, 1)
    assert faster == [True]


def test_tensors_without_a_storage_of_their_own_are_given_too(sim):
    residence = Residence(sim)
    sparse = torch.eye(2).to_sparse()
    residence.given([sparse, torch.ones(1)], sim.current())
    assert not residence.full(0, 1)


def test_what_is_given_does_not_keep_it(sim):
    residence = Residence(sim)
    tensor, dead = given(residence), weakref.ref(residence)
    del residence
    assert dead() is None
    del tensor


def test_on_a_device_that_has_failed_nobody_waits_and_nothing_counts(sim):
    residence, tensors = Residence(sim), []
    sim.launch("step", 1.0)
    given(residence)
    tensors.append(given(residence))

    def fail(*of: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    sim.join = sim.passed = sim.record = fail  # type: ignore[method-assign]
    residence.make_room()
    tensors.clear()
    assert not residence.full(0, 1)
