"""What is drawn inside follows from the number, and outside all numbers go on as if nothing had been drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aloader.channel.states import Generators
from aloader.device.drawing import drawn
from aloader.device.plain import Plain
from aloader.device.residence import Residence
from aloader.settings import way_of


class Drawing(Plain):
    """A CPU with a second generator, which stands for the device's."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.generator = torch.Generator()

    def random_state(self) -> Any:
        return self.generator.get_state()

    def set_random_state(self, state: Any) -> None:
        self.generator.set_state(state)

    def seed(self, number: int) -> None:
        self.generator.manual_seed(number)

    def draw(self) -> list[Any]:
        """From all four, also what keeps a deviate for the next call."""
        mine = torch.rand(2, generator=self.generator).tolist()
        ours = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(3).tolist()]
        return [mine, *ours]


@pytest.fixture(autouse=True)
def as_they_were() -> Iterator[None]:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


def everything(device: Drawing) -> list[Any]:
    keys, words, *rest = np.random.get_state()
    return [device.random_state().tolist(), random.getstate(), keys, list(words), rest, torch.get_rng_state().tolist()]


@pytest.mark.parametrize("generators", [None, Generators(shared=True)], ids=["made", "kept"])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_inside_the_number_decides_and_outside_nothing_has_happened(generators, before):
    device, seen = Drawing(), []
    for number in (7, 7, 7 << 40, 2**64 - 1):
        for _ in range(before):
            device.draw()
        outside = everything(device)
        with drawn(device, number, generators):
            seen.append(device.draw())
        assert everything(device) == outside
    assert seen[0] == seen[1]
    for one, other in ((0, 2), (0, 3), (2, 3)):
        assert all(a != b for a, b in zip(seen[one], seen[other], strict=True))


def test_ranks_draw_numbers_of_their_own():
    def drawn_by(rank: int) -> list[float]:
        settings: Any = SimpleNamespace(
            device="cpu",
            device_prefetch=1,
            device_transform=lambda batch: torch.rand(2).tolist(),
            ranks=SimpleNamespace(rank=rank),
        )
        way = way_of(settings, Residence(Plain(torch.device("cpu"))), 1, 0, None)
        assert way is not None
        return way.give(way.begin(None, 0))

    assert drawn_by(0) == drawn_by(0)
    assert drawn_by(0) != drawn_by(1)


def test_after_an_error_too_all_is_as_it_was():
    device = Drawing()
    outside = everything(device)
    with pytest.raises(ZeroDivisionError), drawn(device, 1):
        device.draw()
        1 / 0  # noqa: B018
    assert everything(device) == outside


class Unseedable(Drawing):
    def seed(self, number: int) -> None:
        raise RuntimeError("no")


class Forgetful(Drawing):
    def set_random_state(self, state: Any) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize("kind", [Unseedable, Forgetful])
def test_where_the_device_fails_the_programs_own_are_put_back(kind):
    device = kind()
    outside = everything(device)[1:]
    with pytest.raises(RuntimeError, match="no"), drawn(device, 1):
        device.draw()
    assert everything(device)[1:] == outside


class Lost(Generators):
    def put(self, state: Any) -> None:
        raise RuntimeError("no")


def test_where_the_programs_own_cannot_be_put_back_the_devices_is():
    device = Drawing()
    outside = everything(device)[0]
    with pytest.raises(RuntimeError, match="no"), drawn(device, 1, Lost(shared=True)):
        device.draw()
    assert everything(device)[0] == outside


def test_one_inside_another():
    device, own = Drawing(), []
    with drawn(device, 1):
        own.append(device.draw())
        own.append(device.draw())
    with drawn(device, 1):
        again = [device.draw()]
        with drawn(device, 2):
            device.draw()
        again.append(device.draw())
    assert again == own
