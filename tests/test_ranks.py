"""Which rank a process is, as far as its surroundings say."""

from __future__ import annotations

import pytest

from aloader import ranks


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_nobody_says_anything() -> None:
    assert ranks.current() == (0, 1)


def test_as_torchrun_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    assert ranks.current() == (0, 1), "of how many?"
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks.current() == (2, 4)


@pytest.mark.parametrize(("rank", "world_size"), [("4", "4"), ("-1", "4"), ("x", "4"), ("0", "")])
def test_an_environment_that_contradicts_itself(monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(ValueError, match=rf"RANK='{rank}'.*unset them, or give\s+distributed="):
        ranks.current()
