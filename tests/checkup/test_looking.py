"""Real looks: at this machine, at a folder, at a bucket and at a web server, and the whole report of the command."""

from __future__ import annotations

import asyncio
import functools
import http.server
import json
import logging
import threading
from pathlib import Path

import pytest

import aloader
from aloader.checkup import accelerator, counts, cpus, doctor, kernel, memory, place, surroundings, trial
from aloader.checkup.report import Check
from aloader.cli import main
from aloader.testing import FaultServer

pytestmark = pytest.mark.usefixtures("nothing_left")


def states(url: str) -> dict[str, Check]:
    return {check.name: check for check in place.judge(place.look(url))}


def test_this_machine_can_be_looked_at() -> None:
    for subject in (cpus, memory, counts, kernel, surroundings):
        assert [check.name for check in subject.judge(subject.look())]  # type: ignore[attr-defined]
    assert kernel.look().memory == kernel.look().passing == kernel.look().life == ""


def test_a_folder_is_listed_and_the_first_file_that_is_not_empty_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b").write_bytes(b"x" * 300_000)
    found = states(str(tmp_path))
    assert found["storage"].state == "ok"
    assert "b: first byte after" in found["storage"].finding
    assert "293.0 KiB in" in found["storage"].finding
    assert "file system" in found
    assert states(str(tmp_path / "b"))["storage"].state == "ok"
    gone = states(str(tmp_path / "gone"))
    assert list(gone) == ["storage"]
    assert "there is no folder" in gone["storage"].finding


@pytest.mark.asyncio
async def test_a_bucket_is_read_and_what_it_refuses_is_said_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiobotocore")
    async with FaultServer({"x/0": b"1" * 1000}, allowed=["good"], in_process=True) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        good = await asyncio.to_thread(states, server.url())
        empty = await asyncio.to_thread(states, server.url(prefix="y/"))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "bad-one")
        bad = await asyncio.to_thread(states, server.url())
    assert good["storage"].state == "ok"
    assert "x/0: first byte" in good["storage"].finding
    assert "nothing in it" in empty["storage"].finding
    assert bad["storage"].state == "problem"
    assert "does not know the access key" in bad["storage"].finding
    assert "bad-one" not in str(bad)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def date_time_string(self, timestamp: float | None = None) -> str:
        return "Mon, 01 Jan 2024 00:00:00 GMT"


def test_a_web_servers_object_is_read_and_its_clock_compared_without_the_query(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "a.bin").write_bytes(b"x" * 1000)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found = states(f"http://127.0.0.1:{server.server_port}/a.bin?signature=secret")
        server.shutdown()
        thread.join()
    assert found["storage"].state == "ok"
    assert found["store's clock"].state == "problem"
    assert "ahead of the store" in found["store's clock"].finding
    assert "secret" not in str(found)


@pytest.mark.slow
def test_the_command_looks_at_everything_and_starts_a_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").write_bytes(b"x" * 1000)
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {check["name"]: check for check in report["checks"]}
    assert report["ok"]
    assert "the first batch" in found["workers"]["finding"]
    assert not [check for check in report["checks"] if "could not be looked at" in check["finding"]]
    assert {"python", "torch", "extras", "cpus", "memory", "descriptors", "memfd", "clock", "storage"} < set(found)


@pytest.mark.slow
def test_what_is_told_of_the_programs_surroundings_is_no_problem_of_the_machine() -> None:
    logger = logging.getLogger("of-the-users")
    handler = logging.StreamHandler()
    handler.formatter = logging.Formatter(defaults={"lock": threading.Lock()})  # cannot be made again in a worker
    logger.addHandler(handler)
    try:
        assert trial.look().error == ""
    finally:
        logger.removeHandler(handler)


def test_a_problem_is_the_commands_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only = [exam for exam in doctor.exams(str(tmp_path / "gone")) if exam.name == "storage"]
    monkeypatch.setattr(doctor, "exams", lambda url: only)
    assert main(["doctor", str(tmp_path / "gone")]) == 1
    assert capsys.readouterr().out.startswith("problem  storage  LocalStore(")
    assert not aloader.doctor(tmp_path / "gone").ok


def test_what_is_wrong_with_a_url_is_said_without_what_is_secret_in_it() -> None:
    for url in ("s3://key:hush@bucket/prefix", "http://user:hush@[half/x", "http://user:hush\u2100@host/x"):
        (check,) = place.judge(place.look(url))
        assert check.state == "problem"
        assert check.remedy
        assert "hush" not in repr(check)


def test_a_device_that_does_not_answer_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", "12.4")
    facts = accelerator.look(deadline=0.001)
    assert facts.error == "no answer after 1 ms"
