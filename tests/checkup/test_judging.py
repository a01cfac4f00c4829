"""What is made of facts: of each subject, machines on which something is wrong, and one on which nothing is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from aloader.checkup import accelerator, counts, cpus, kernel, memory, place, skew, software, surroundings, trial
from aloader.checkup.report import Check
from aloader.options import GIB, MIB

EXTRAS = {"s3": {"aiobotocore": "2.13", "httptools": ""}, "http": {"aiohttp": "3.9"}}

FINE: dict[Any, Any] = {
    software: software.Facts(
        (3, 11, 7), "Linux 6.1 x86_64", "0.1.0", "2.5.1+cu124", "", "2.0", "", "0.20", "", EXTRAS
    ),
    cpus: cpus.Facts(8, 8),
    memory: memory.Facts(
        64 * GIB, 60 * GIB, 16 * GIB, swap=0, swap_free=0, promised=GIB, most_promised=32 * GIB, shm=32 * GIB,
        shm_free=32 * GIB,
    ),
    counts: counts.Facts(8, 20_000, None, 12),
    kernel: kernel.Facts("", True, "", "", ""),
    surroundings: surroundings.Facts("/tmp", "", 50 * GIB, 1e-9, ("fork", "spawn")),
    trial: trial.Facts(1.3, 0.01),
    accelerator: accelerator.Facts("12.4", (("H100", 80 * GIB),), seconds=0.02),
    place: place.Facts("S3Store('s3://b')", listed=0.03, key="k", nbytes=MIB, first_byte=0.03, took=0.05, skew=0.2),
}  # fmt: skip


@pytest.mark.parametrize("subject", FINE, ids=lambda subject: subject.__name__.split(".")[-1])
def test_nothing_is_wrong_with_a_good_machine(subject: Any) -> None:
    found = list(subject.judge(FINE[subject]))
    assert found
    assert [check for check in found if check.state != "ok"] == []


WRONG: list[tuple[Any, dict[str, Any], str, str]] = [
    # subject, what is different there, the check's name and state, and words that are in it
    (software, {"python": (3, 10, 1)}, "python problem", "3.11 or newer"),
    (software, {"platform": "win32"}, "python warning", "num_workers=0"),
    (software, {"torch_error": "ImportError: libcudart.so"}, "torch problem", "libcudart"),
    (software, {"torch": "2.3.1"}, "torch problem", "torch>=2.4"),
    (software, {"numpy": "", "numpy_error": "ModuleNotFoundError"}, "numpy problem", "pip install numpy"),
    (software, {"numpy_error": "RuntimeError: Numpy is not available"}, "numpy problem", "numpy<2"),
    (software, {"uvloop": "", "uvloop_error": "ModuleNotFoundError: no"}, "uvloop warning", "pip install uvloop"),
    (cpus, {"affinity": 1}, "cpus warning", "--cpus-per-task"),
    (cpus, {"quota": 2}, "cpus warning", "2 CPUs for this process, of 8: a cgroup's quota"),
    (memory, {"available": 3 * GIB}, "memory warning", 'memory_limit="1536MiB"'),
    (memory, {"cgroup": 8 * GIB, "batches": 2 * GIB, "cgroup_used": 7 * GIB}, "memory warning", "the machine has 64"),
    (memory, {"swap": 8 * GIB, "swap_free": GIB}, "memory warning", "7.0 GiB of 8.0 GiB of swap"),
    (memory, {"strict": True}, "overcommit warning", "vm.overcommit_memory=0"),
    (memory, {"address_space": 2 * GIB}, "limits problem", "ulimit -v unlimited"),
    (memory, {"data": 20 * GIB}, "limits warning", "RLIMIT_DATA (ulimit -d) is 20.0 GiB"),
    (memory, {"shm": 64 * MIB, "shm_free": 64 * MIB}, "/dev/shm warning", "--shm-size=8g"),
    (memory, {"shm": None}, "/dev/shm warning", "aloader needs none"),
    (counts, {"soft": 256, "open": 100}, "descriptors warning", "ulimit -n 65536"),
    (counts, {"soft": 200, "open": 100, "hard": 300}, "descriptors problem", "raise the hard limit, which is 300"),
    (counts, {"nproc": 100, "tasks": 50}, "processes warning", "50 of the 100 processes and threads that this user"),
    (counts, {"nproc": 999, "pids_max": 64, "pids": 60}, "processes problem", "--pids-limit"),
    (kernel, {"memory": "PermissionError: refused"}, "memfd problem", "seccomp"),
    (kernel, {"sealed": False}, "memfd warning", "temp folder"),
    (kernel, {"passing": "OSError: no"}, "sockets problem", "num_workers=0"),
    (kernel, {"life": "FileNotFoundError: /proc"}, "life pipe problem", "mount /proc"),
    (surroundings, {"temp_error": "read-only"}, "temp folder warning", "TMPDIR"),
    (surroundings, {"temp_free": 5 * MIB}, "temp folder warning", "5.0 MiB free"),
    (surroundings, {"resolution": 0.015}, "clock warning", "15 ms"),
    (trial, {"error": "WorkerLost: killed"}, "workers problem", "killed"),
    (trial, {"error": "no batch after 30.0 s", "late": True}, "workers problem", "import torch"),
    (trial, {"debug": True}, "workers warning", "unset ALOADER_DEBUG"),
    (trial, {"first": 12.0}, "workers warning", "loader.start()"),
    (accelerator, {"pinning": "out of memory", "memlock": 64 << 10}, "page-locking problem", "allows 64.0 KiB"),
    (accelerator, {"devices": (), "error": "driver too old", "hardware": True}, "accelerator warning", "too old"),
    (accelerator, {"devices": (), "build": "", "hardware": True}, "accelerator warning", "the CPU alone"),
    (place, {"error": "no such bucket", "step": "list"}, "storage problem", "S3Store('s3://b'): no such bucket"),
    (place, {"first_byte": None}, "storage warning", "nothing in it"),
    (place, {"listable": False}, "storage warning", "URL of one object"),
    (place, {"first_byte": 0.9}, "storage warning", "region"),
    (place, {"file_system": "nfs4", "device": "server:/x"}, "file system warning", 'profile="nfs"'),
    (place, {"file_system": "fuse.gcsfuse", "device": "gcsfuse"}, "file system warning", "read the bucket itself"),
    (place, {"skew": -120.0}, "store's clock warning", "120 s behind the store"),
    (place, {"skew": 1000.0}, "store's clock problem", "1,000 s ahead of the store"),
]


@pytest.mark.parametrize(("subject", "different", "expected", "words"), WRONG)
def test_what_is_wrong_is_said_with_its_remedy(subject: Any, different: Any, expected: str, words: str) -> None:
    found = named(subject.judge(replace(FINE[subject], **different)), expected.rpartition(" ")[0])
    assert found.state == expected.rpartition(" ")[2]
    assert words in f"{found.finding} → {found.remedy}"
    assert found.remedy or found.name in ("memfd", "clock")  # (nobody can change these)


def named(checks: Iterable[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


def test_no_accelerator_is_as_it_should_be() -> None:
    for different in {"build": ""}, {"error": "Found no NVIDIA driver on your system."}, {"other": "mps"}:
        facts = replace(FINE[accelerator], devices=(), **different)  # type: ignore[arg-type]
        assert [check.state for check in accelerator.judge(facts)] == ["ok"]


def test_an_extra_that_the_url_needs_is_named_with_its_command() -> None:
    missing = named(software.judge(FINE[software], "s3"), "extras")
    assert missing.state == "problem"
    assert "httptools is missing" in missing.finding
    assert missing.remedy == 'pip install "aloader[s3]"'
    there = named(software.judge(FINE[software], "http"), "extras")
    assert there.state == "ok"
    assert there.finding == "http (aiohttp 3.9); not installed: s3"
    urls = ["s3://b/p", "https://h/x", "http://h", "gs://b", "/folder", "file:///folder", "memory://"]
    assert [software.extra_for(url) for url in urls] == ["s3", "http", "http", "fsspec", "", "", ""]


def test_ranks_share_the_cpus() -> None:
    assert cpus.Facts(16, 16, None, 4).usable == 4
    assert cpus.Facts(16, 16, 6, 4).usable == 1
    assert cpus.Facts(4, 4, None, 8).usable == 1


def test_whose_clock_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3":
        monkeypatch.delenv(name, raising=False)
    assert skew.server_of("s3://b/p") == "https://s3.amazonaws.com/"
    assert skew.server_of("s3://b/p?endpoint_url=http://127.0.0.1:9&region=r") == "http://127.0.0.1:9"
    assert skew.server_of("https://user:secret@host:8443/x?token=secret") == "https://host:8443/"
    assert skew.server_of("/folder") is skew.server_of("gs://b") is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert skew.server_of("s3://b/p") == "http://minio:9000"


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /data nfs4 rw 0 0
tmpfs /data/with\\040space tmpfs rw 0 0
/dev/sdb1 /data-local xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/etc", "ext4"), ("/data", "nfs4"), ("/data/x/y", "nfs4"), ("/data-local/x", "xfs"), ("/datum", "ext4"),
     ("/data/with space/x", "tmpfs")],
)  # fmt: skip
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert place.mounted_at(path, MOUNTS)[1] == kind
    assert place.mounted_at(path, "") == ("", "")


def test_a_url_of_one_object_is_read_and_a_folder_is_listed(tmp_path: Any) -> None:
    file = tmp_path / "with space.bin"
    file.write_bytes(b"x")
    assert place.aimed("https://h:1/a/b%20c.npy?sig=1") == ("https://h:1/a?sig=1", "b c.npy")
    assert place.aimed("https://h/a/") == ("https://h/a", "")
    assert place.aimed(str(file)) == (str(tmp_path), "with space.bin")
    assert place.aimed(f"file://{tmp_path}/with%20space.bin") == (str(tmp_path), "with space.bin")
    assert place.aimed("s3://b/p") == ("s3://b/p", "")
    assert place.aimed(str(tmp_path)) == (str(tmp_path), "")
