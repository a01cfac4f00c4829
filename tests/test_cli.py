"""The command line: what `aloader warm` reads and says, and with which status it ends."""

from __future__ import annotations

import asyncio
import io
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from aloader.cli import main
from aloader.cli.warm import Budget, Progress
from aloader.datasets import ObjectDataset
from aloader.storage import Cached, LocalStore, MemoryStore
from aloader.testing.simloop import simulate


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02}.bin").write_bytes(bytes([number]) * 3000)
    (folder / "notes.txt").write_text("x")
    return folder


def test_a_folder_is_read_once(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", str(data)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("21 objects, 58.6 KiB in 0.")
    assert out.endswith(" MB/s\n")
    assert err == ""


def test_what_is_warm_is_in_the_cache_that_a_loader_uses(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["warm", str(data), "--cache", str(tmp_path / "cache"), "--suffix", ".bin", "--concurrency", "3"]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("20 objects, 58.6 KiB in")
    for file in data.iterdir():
        file.unlink()

    async def read() -> list[bytes]:
        async with Cached(LocalStore(data), tmp_path / "cache") as cached:
            return await cached.get_many(f"{number:02}.bin" for number in range(20))

    assert asyncio.run(read()) == [bytes([number]) * 3000 for number in range(20)]


def test_a_manifest_is_written_and_used_and_says_what_was_in_the_cache(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, manifest = str(tmp_path / "cache"), str(tmp_path / "m")
    command = ["warm", str(data), "--manifest", manifest, "--cache", cache, "--prefix", "0"]
    assert main(command) == 0
    (data / "00.new").write_text("not in the manifest")
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("MB/s, 10 of them from the cache")


def test_what_is_on_a_web_server_is_what_a_manifest_says_that_was_made_elsewhere(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp")
    from tests.web import FileServer

    manifest = str(tmp_path / "m")
    ObjectDataset.from_prefix(data, suffix=".bin", manifest=manifest)
    with FileServer(data) as server:
        assert main(["warm", server.url, "--manifest", manifest]) == 0
        assert capsys.readouterr().out.startswith("20 objects, 58.6 KiB in")
        assert main(["warm", server.url, "--manifest", manifest, "--suffix", ".bin"]) == 1
        assert "leave out --prefix and --suffix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--prefix", "x"], "no objects with keys that begin with 'x' in LocalStore("),
        (["--cache", "{data}"], "is no cache of aloader: it has '00.bin' in it"),
        (["--cache", "{data}/../cache", "--limit", "much"], "limit should be a positive number of bytes"),
        (["--cache", "{data}/../c", "--limit", "80KiB"], "58.6 KiB in 21 objects do not fit into a cache of 80.0 KiB"),
        (["--manifest", "{data}/notes.txt"], "notes.txt' is no manifest, or damaged"),
    ],
)
def test_an_error_is_one_sentence(data: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str) -> None:
    assert main(["warm", str(data), *(each.replace("{data}", str(data)) for each in more)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("aloader warm: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_file_system_whose_package_is_missing_is_one_sentence_too(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fsspec")
    assert main(["warm", "dropbox://folder"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("aloader warm: ")
    assert err.count("\n") == 1


def test_objects_that_fail_are_named_and_the_others_are_read(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = str(data.parent / "m")
    assert main(["warm", str(data), "--manifest", manifest]) == 0
    (data / "07.bin").unlink()
    capsys.readouterr()
    assert main(["warm", str(data), "--manifest", manifest]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("20 objects")
    assert out.endswith("; 1 failed\n")
    assert err.startswith("aloader warm: no object '07.bin' in LocalStore")
    for file in data.iterdir():
        file.unlink()
    assert main(["warm", str(data), "--manifest", manifest, "--concurrency", "1"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "aloader warm: given up after 10 failures"


def test_a_disk_that_refuses_is_said_and_is_no_success(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    assert main(["warm", str(data), "--cache", str(cache), "--prefix", "notes"]) == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # no file may grow beyond that, as on a full disk
    try:
        assert main(["warm", str(data), "--cache", str(cache)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    out, err = capsys.readouterr()
    assert "20 could not be kept" in out
    assert err.startswith(f"aloader warm: the cache in '{cache}' cannot be written to: File too large")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [[], ["warm"], ["chill", "x"], ["warm", "x", "--concurrency", "0"]])
def test_a_wrong_command_line_has_status_2(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "usage: aloader" in capsys.readouterr().err


def test_progress_is_shown_on_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    async def show(stream: io.StringIO) -> str:
        progress = Progress(10, 2048, stream, read=3, bytes_read=1024)
        shown = asyncio.create_task(progress.run())
        await asyncio.sleep(2)  # sleep: of virtual time
        shown.cancel()
        await asyncio.wait([shown])
        return stream.getvalue()

    text = simulate(lambda: show(Terminal()))
    assert text.startswith("\r3 of 10 objects, 1.0 KiB of 2.0 KiB, ")
    assert text.endswith("\r\x1b[K")
    assert 4 <= text.count("3 of 10") <= 5
    assert simulate(lambda: show(io.StringIO())) == ""


@pytest.mark.parametrize("seed", range(5))
def test_objects_in_flight_are_bounded_in_bytes(seed: int) -> None:
    async def read() -> None:
        budget, taken, most = Budget(10), 0, 0

        async def one(size: int) -> None:
            nonlocal taken, most
            await budget.take(size)
            taken += size
            assert taken <= 10 or taken == size
            most = max(most, taken)
            await asyncio.sleep(1)  # sleep: of virtual time
            taken -= size
            await budget.give(size)

        await asyncio.gather(*map(one, [3, 4, 5, 30, 2, 2, 10, 1]))
        assert most == 30

    simulate(read, seed)


@pytest.mark.slow
def test_it_is_a_program(data: Path) -> None:
    command = [sys.executable, "-m", "aloader", "warm", str(data), "--suffix", ".bin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("20 objects, 58.6 KiB in ")


def test_what_fits_a_cache_is_known_beforehand(tmp_path: Path) -> None:
    cached = Cached(MemoryStore(), tmp_path, 100 * 4096)
    assert cached.has_room_for([3000] * 90)
    assert not cached.has_room_for([3000] * 91)
    assert not cached.has_room_for([4000] * 90)  # with what an entry begins with, it takes a second page
