"""Bytes in words, and how much of a machine's memory a loader may take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aloader.pool import limits
from aloader.pool.limits import default_memory_limit, parse_bytes


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (1, 1),
        (8 << 30, 8 << 30),
        ("1", 1),
        ("8GiB", 8 << 30),
        (" 500 MB ", 500_000_000),
        ("0.5kib", 512),
        ("1.5 TB", 1_500_000_000_000),
        ("2tib", 2 << 40),
        ("7b", 7),
        ("3 Kb", 3000),
    ],
)
def test_numbers_and_words(value, nbytes):
    assert parse_bytes(value) == nbytes


@pytest.mark.parametrize(
    "value", [0, -1, True, 1.5, None, "", "GiB", "8 GiBs", "-8GiB", "0 GB", "0.4 B", "1e9", "8,5GB", "0x10"]
)
def test_what_is_no_amount_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"memory_limit.*but got"):
        parse_bytes(value)
    with pytest.raises(ValueError, match="cache_size should be"):
        parse_bytes(value, "cache_size")


def test_the_ranks_of_a_machine_share_a_quarter_of_it(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = default_memory_limit()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < alone <= max(64 << 20, physical // 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert default_memory_limit() == max(64 << 20, alone // 2)
    for nothing in ("", "0"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", nothing)
        assert default_memory_limit() == alone
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000000")
    assert default_memory_limit() == 64 << 20  # less than that would be no use


@pytest.mark.parametrize(("text", "counts"), [("1073741824\n", True), ("max\n", False), ("", False)])
def test_a_containers_limit_counts_where_there_is_one(monkeypatch, tmp_path, text, counts):
    file = tmp_path / "memory.max"
    file.write_text(text)

    class Redirected(type(Path())):  # type: ignore[misc]
        def __new__(cls, path: Any) -> Any:
            return Path(file if str(path) == "/sys/fs/cgroup/memory.max" else tmp_path / "missing")

    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(limits, "Path", Redirected)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    expected = min(physical, 1 << 30) if counts else physical
    assert default_memory_limit() == max(64 << 20, expected // 4)
