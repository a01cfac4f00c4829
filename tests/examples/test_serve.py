"""`examples/serve_and_evaluate.py` as its users meet it: over HTTP, from outside, with signals."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PROGRAM = EXAMPLES / "serve_and_evaluate.py"
ENDLESS = {"variants": 10_000}

# Ten times what was measured: until an evaluation's processes have gone, and until the server has, which gives open
# streams a second.
CANCELLED, STOPPED = 3.0, 15.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


class Server:
    """The program on a free port. A session of its own, so that Ctrl-C can be had as a terminal sends it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(PROGRAM), "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.client = httpx.Client(base_url=self.process.stdout.readline().strip(), timeout=60)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def start(self, **order: Any) -> str:
        return self.client.post("/evaluations", json=order).raise_for_status().json()["id"]

    def look(self, key: str) -> Any:
        return self.client.get(f"/evaluations/{key}").raise_for_status().json()

    def digit(self, pixels: list[float]) -> int:
        return self.client.post("/score", json={"pixels": pixels}).raise_for_status().json()["digit"]

    def end(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all tests that do not end it."""
    server = Server()
    yield server
    server.end()


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The program as a module, and torch with one thread, as it has there."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("serve_and_evaluate", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # the annotations of its models are looked up there
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def within(seconds: float, holds: Callable[[], Any]) -> bool:
    """Whether something becomes true in time, looked at from outside again and again."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        os.sched_yield()
    return True


def flows(server: Server, key: str) -> bool:
    return within(60, lambda: server.look(key)["samples"] > 0)


def test_requests_are_answered_during_an_evaluation_that_counts_what_a_plain_loop_counts(server, example):
    dataset, model = example.Distorted(8), example.trained()
    plain = torch.utils.data.DataLoader(dataset, batch_size=256)
    right = sum(int((example.probabilities(model, images).argmax(1) == labels).sum()) for images, labels in plain)
    images = torch.tensor(example.load_digits().images[:50], dtype=torch.float32)
    digits = example.probabilities(model, images / 16).argmax(1).tolist()

    key, answered = server.start(variants=8), 0
    while (before := server.look(key))["state"] == "running":
        answers = [server.digit(image.flatten().tolist()) for image in images[:5]]
        assert answers == digits[:5]
        after = server.look(key)
        answered += after["state"] == "running" and 0 < before["samples"] < after["samples"]
    report = server.look(key)
    assert (report["state"], report["samples"], report["right"]) == ("done", len(dataset), right)
    assert answered
    assert report["accuracy"] > 0.7
    assert within(CANCELLED, lambda: not server.children())


def test_who_hangs_up_on_the_stream_cancels_that_evaluation_and_no_other(server):
    kept, key = server.start(**ENDLESS, num_workers=1), server.start(**ENDLESS)
    assert flows(server, kept)
    others = set(server.children())
    with server.client.stream("GET", f"/evaluations/{key}/stream") as stream:
        for line in stream.iter_lines():
            if json.loads(line)["samples"]:
                break
        mine = set(server.children()) - others
        assert len(mine) >= 2
    assert within(CANCELLED, lambda: server.look(key)["state"] == "cancelled")
    assert not any(process.is_running() for process in mine)
    assert all(process.is_running() for process in others)
    assert server.look(kept)["state"] == "running"
    assert server.client.delete(f"/evaluations/{kept}").json()["state"] == "cancelled"
    assert not server.children()
    assert server.digit([0.0] * 64) in range(10)


def test_the_stream_ends_with_the_result(server):
    key = server.start(variants=1)
    with server.client.stream("GET", f"/evaluations/{key}/stream") as stream:
        reports = [json.loads(line) for line in stream.iter_lines()]
    counts = [report["samples"] for report in reports]
    assert counts == sorted(counts)
    assert reports[-1] == server.look(key)
    assert (reports[-1]["state"], counts[-1]) == ("done", 1797)


def test_evaluations_can_be_cancelled_before_they_flow_and_there_are_not_too_many(server):
    keys = [server.start(**ENDLESS) for _ in range(4)]
    refused = server.client.post("/evaluations", json={})
    assert refused.status_code == 429
    assert "DELETE" in refused.json()["detail"]
    assert {server.client.delete(f"/evaluations/{key}").json()["state"] for key in keys} == {"cancelled"}
    assert within(CANCELLED, lambda: not server.children())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
@pytest.mark.parametrize("watched", [False, True])
def test_a_signal_in_the_middle_of_an_evaluation_ends_the_server_cleanly(own_server, number, watched):
    key = own_server.start(**ENDLESS)
    assert flows(own_server, key)
    processes = own_server.children()
    assert len(processes) >= 2
    began = time.monotonic()
    if watched:
        with own_server.client.stream("GET", f"/evaluations/{key}/stream") as stream:
            next(stream.iter_lines())
            began = stop(own_server, number)
            with pytest.raises(httpx.RemoteProtocolError):
                stream.read()
    else:
        began = stop(own_server, number)
    _, errors = own_server.process.communicate(timeout=STOPPED)
    assert time.monotonic() - began < STOPPED
    assert own_server.process.returncode == 0, errors
    assert not any(process.is_running() for process in processes)
    assert "Traceback" not in errors


def stop(server: Server, number: int) -> float:
    """As a supervisor does, or as a terminal does: to every process of the group. When."""
    began = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(server.process.pid, number)
    else:
        os.kill(server.process.pid, number)
    return began
