"""What the tests of examples share: programs that have imported already what examples take so long to import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from tests.warm import Warmth

WarmWith = Callable[..., SimpleNamespace]


@pytest.fixture(scope="module")
def warm_with(request: pytest.FixtureRequest) -> Iterator[WarmWith]:
    """Makes a `subprocess` whose interpreters have imported these modules, too; for a fixture of the whole module.

    Imports that one file's programs have in common are for its own keeper: others' would be the larger for nothing.
    `flags` and `variables` are those that its commands will have: so the keeper is there before any test looks round.
    """

    def make(*modules: str, flags: tuple[str, ...] = (), variables: Mapping[str, str]) -> SimpleNamespace:
        warmth = Warmth("torch", "aloader", "aloader.worker.template", *modules)
        warmth.cold = request.config.getoption("--cold")
        opened.callback(warmth.close)
        warmth.subprocess.run([sys.executable, *flags, "-c", ""], env=os.environ | dict(variables), check=True)
        return warmth.subprocess

    with ExitStack() as opened:
        yield make
