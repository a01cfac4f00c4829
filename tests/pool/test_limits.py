"""Bytes in words, and how much of a machine's memory a loader may take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from aloader import DataLoader
from aloader.options import parse_bytes
from aloader.pool.limits import (
    cpus_allowed,
    default_memory_limit,
    memory_available,
    memory_of_cgroup,
    too_many_workers,
)


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


def cgroup(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "own", "limit"),
    [
        ({"memory.max": "1073741824\n"}, "0::/\n", 1 << 30),
        ({"memory.max": "max\n"}, "0::/\n", None),
        ({"memory.max": ""}, "0::/\n", None),
        ({"a/memory.max": "1073741824\n", "a/b/memory.max": "max\n"}, "0::/a/b\n", 1 << 30),
        ({"memory/x/memory.limit_in_bytes": "1073741824\n"}, "4:memory:/x\n3:cpu:/y\n", 1 << 30),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "4:memory:/\n", None),
    ],
)
def test_a_containers_limit_counts_where_there_is_one(monkeypatch, tmp_path, files, own, limit):
    root = cgroup(tmp_path / "root", files)
    (tmp_path / "own").write_text(own)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert default_memory_limit(root, tmp_path / "own") == max(64 << 20, min(physical, limit or physical) // 4)


MEMINFO = "MemTotal:  1000 kB\nMemAvailable: 600 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\nHugePages_Total: 0\n"
MACHINE = 1050 * 1024, 620 * 1024
V1_STAT = "cache 9\ninactive_file 1\ntotal_cache 99\ntotal_inactive_file 1000\ntotal_active_file 200\n"


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/\n", MACHINE),
        ({"memory.max": "max\n", "memory.current": "7\n"}, "0::/\n", MACHINE),
        ({"memory.max": "5000\n"}, "0::/\n", MACHINE),  # nobody knows how much of it is used
        (  # the narrowest limit, and the least that is left: not of the same
            {
                "a/memory.max": "50000\n",
                "a/memory.current": "49000\n",
                "a/memory.swap.max": "0\n",
                "a/memory.swap.current": "0\n",
                "a/b/memory.max": "9000\n",
                "a/b/memory.current": "6000\n",
                "a/b/memory.stat": "anon 5\nshmem 77\ninactive_file 300\nactive_file 20\nslab_reclaimable 1\n",
                "a/b/memory.swap.max": "100\n",
                "a/b/memory.swap.current": "60\n",
            },
            "0::/a/b\n",
            (9040, 1000),
        ),
        (  # more used than allowed, as after the limit was lowered
            {"memory.max": "100\n", "memory.current": "400\n", "memory.swap.max": "0", "memory.swap.current": "0"},
            "0::/\n",
            (100, 0),
        ),
        (
            {
                "memory/x/memory.limit_in_bytes": "9000\n",
                "memory/x/memory.usage_in_bytes": "8000\n",
                "memory/x/memory.stat": V1_STAT,
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "999\n",
            },
            "4:memory:/x\n3:cpu:/y\n",
            (9000 + 20 * 1024, 2200 + 20 * 1024),
        ),
    ],
)
def test_what_memory_there_is_and_what_of_it_can_be_had(tmp_path, files, own, expected):
    root = cgroup(tmp_path / "root", files)
    root.mkdir(exist_ok=True)
    (tmp_path / "own").write_text(own)
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert memory_available(root, tmp_path / "own", tmp_path / "meminfo") == expected


def test_where_nothing_is_known_of_memory_there_is_any_amount(tmp_path):
    missing = tmp_path / "missing"
    assert memory_available(missing, missing, missing).available >= 1 << 50


def test_this_machine_has_some_memory():
    limit, available = memory_available()
    assert 0 < available <= limit


@pytest.mark.parametrize(
    ("files", "own", "allowed"),
    [
        ({}, "0::/\n", None),
        ({"memory.max": "1073741824\n"}, "0::/\n", 1 << 30),
        ({"memory.max": "max\n"}, "0::/\n", None),
        ({"memory.max": ""}, "0::/\n", None),
        ({"a/memory.max": "2048\n", "a/b/memory.max": "max\n"}, "0::/a/b\n", 2048),  # a job's, around its steps
        ({"a/memory.max": "2048\n", "a/b/memory.max": "1024\n", "c/memory.max": "1"}, "0::/a/b\n", 1024),
        ({"memory/memory.limit_in_bytes": "4096\n"}, "9:memory:/docker/unseen\n", 4096),
        ({"memory/x/memory.limit_in_bytes": "512\n"}, "9:memory:/x\n4:cpu:/y\n", 512),
    ],
)
def test_a_limit_of_memory_is_found(monkeypatch, tmp_path, files, own, allowed):
    root = cgroup(tmp_path / "root", files)
    (tmp_path / "own").write_text(own)
    assert memory_of_cgroup(root, tmp_path / "own") == allowed
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert default_memory_limit(root, tmp_path / "own") == max(64 << 20, min(physical, allowed or physical) // 4)


@pytest.mark.parametrize(
    ("files", "own", "allowed"),
    [
        ({}, "0::/\n", None),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "200000 100000\n"}, "0::/\n", 2),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 2),  # a part of a CPU is a CPU
        ({"a/cpu.max": "max 100000\n", "a/b/cpu.max": "300000 100000\n"}, "0::/a/b\n", 3),
        ({"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "300000 100000\n"}, "0::/a/b\n", 1),  # the narrowest
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/\n", None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/\n", 4),
        ({"cpu/x/cpu.cfs_quota_us": "50000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, "3:cpu:/x\n5:memory:/y\n", 1),
        ({"cpu.max": "200000 100000\n"}, "0::/docker/what-the-container-cannot-see\n", 2),
        ({"cpu.max": "nonsense"}, "0::/\n", None),
    ],
)
def test_a_quota_of_cpu_time_is_found(tmp_path, files, own, allowed):
    root = cgroup(tmp_path / "root", files)
    root.mkdir(exist_ok=True)
    (tmp_path / "own").write_text(own)
    assert cpus_allowed(root, tmp_path / "own") == allowed
    assert cpus_allowed(root, tmp_path / "missing") in (allowed, None)


def test_more_workers_than_the_quota_allows_are_named_with_both_counts(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(48)), raising=False)
    text = too_many_workers(16, 4)
    assert text is not None
    assert "num_workers=4" in text
    assert "48" in text
    assert too_many_workers(4, 4) is None
    assert too_many_workers(16, None) is None
    assert too_many_workers(64, 48) is None  # torch has said that


def test_torchs_own_warning_comes_first_and_unchanged(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr("torch.utils.data.dataloader.torch._utils.cpu_count", lambda: 6, raising=False)
    monkeypatch.setattr("aloader.loader.cpus_allowed", lambda: 2)
    with pytest.warns(UserWarning, match="worker processes") as ours:
        DataLoader(list(range(4)), num_workers=8)
    with pytest.warns(UserWarning, match="worker processes") as torchs:
        torch.utils.data.DataLoader(list(range(4)), num_workers=8)
    (expected,) = [str(w.message) for w in torchs]
    assert str(ours[0].message) == expected
    assert "num_workers=2" in str(ours[1].message)
    assert len(ours) == 2
