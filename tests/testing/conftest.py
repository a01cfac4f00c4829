"""A fault server in a process of its own, for all tests of this folder that change nothing about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aloader.testing import FaultServer

OBJECTS = {f"a/{number:02}": bytes([number]) * 1000 for number in range(30)} | {"b c/ü&<x>": b"odd", "top": b"12345"}


@pytest.fixture(scope="session")
def process() -> Iterator[FaultServer]:
    with FaultServer(OBJECTS) as server:
        yield server
