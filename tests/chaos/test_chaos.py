"""A few scenarios of the chaos suite, one of each sort that is quick. Hundreds: `make chaos`."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from .run import Ground, run
from .scenario import scenario

pytestmark = [pytest.mark.slow, pytest.mark.cold]  # the children of a template are counted

SEEDS = (27, 34, 46, 67, 73, 82)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    ground = Ground([child.pid for child in psutil.Process().children()])  # such as a server that other tests use
    yield ground
    ground.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scenario_is_survived(ground: Ground, seed: int) -> None:
    outcome = run(scenario(seed), ground)
    assert not outcome.complaints, f"again: make chaos ARGS='--seed {seed} -v'"
