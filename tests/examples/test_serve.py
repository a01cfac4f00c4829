"""`examples/serve_and_evaluate.py` as its users meet it: over HTTP, from outside, with signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import httpx
import psutil
import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PROGRAM = EXAMPLES / "serve_and_evaluate.py"
FLAGS = ("-W", "error")
VARIABLES = {"PYTHONPATH": str(EXAMPLES.parent)}

#: With one worker, since it takes all that it gets for as long as others take to begin.
ENDLESS = {"variants": 10_000, "num_workers": 1}
VARIANTS = 2

# Ten times what was measured: until an evaluation's processes have gone, and until the server has, which gives open
# streams a second.
CANCELLED, STOPPED = 3.0, 15.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


class Server:
    """The program on a free port. A session of its own, so that Ctrl-C can be had as a terminal sends it."""

    def __init__(self, warm: SimpleNamespace) -> None:
        self.process = warm.Popen(
            [sys.executable, *FLAGS, str(PROGRAM), "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | VARIABLES,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def children(self) -> set[psutil.Process]:
        return set(psutil.Process(self.process.pid).children(recursive=True))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Client:
    """What one may ask the server for. Evaluations that a test has started do not outlive it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.Client(base_url=server.url, timeout=60)
        self._keys: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.server.process.poll() is None:
            for key in self._keys:
                self.cancel(key)
        self.http.close()

    def start(self, **order: Any) -> str:
        self._keys.append(self.http.post("/evaluations", json=order).raise_for_status().json()["id"])
        return self._keys[-1]

    def look(self, key: str) -> Any:
        return self.http.get(f"/evaluations/{key}").raise_for_status().json()

    def cancel(self, key: str) -> Any:
        return self.http.delete(f"/evaluations/{key}").raise_for_status().json()

    @contextmanager
    def watch(self, key: str) -> Iterator[Iterator[Any]]:
        """Its reports as they come; leaving hangs up."""
        with self.http.stream("GET", f"/evaluations/{key}/stream") as stream:
            yield map(json.loads, stream.iter_lines())

    def digit(self, pixels: list[float]) -> int:
        return self.http.post("/score", json={"pixels": pixels}).raise_for_status().json()["digit"]


@pytest.fixture(scope="module")
def warm(warm_with: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    """`subprocess`, for programs that import what the server does."""
    return warm_with("sklearn.datasets", "fastapi", "uvicorn", flags=FLAGS, variables=VARIABLES)


@pytest.fixture(scope="module")
def server(warm: SimpleNamespace) -> Iterator[Server]:
    """One for all tests that do not end it."""
    server = Server(warm)
    yield server
    server.end()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server) as client:
        yield client


@pytest.fixture
def own_client(warm: SimpleNamespace) -> Iterator[Client]:
    """Of a server that the test may end."""
    server = Server(warm)
    with Client(server) as client:
        yield client
    server.end()


class Expected(NamedTuple):
    """What a plain loop makes of `VARIANTS` of each digit, and of five digits as they are."""

    total: int
    right: int
    pixels: list[list[float]]
    digits: list[int]


EXPECTED = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
import serve_and_evaluate as example
torch.set_num_threads(1)  # as it has there
dataset, model = example.Distorted(*example.scans(), int(sys.argv[2])), example.trained()
plain = torch.utils.data.DataLoader(dataset, batch_size=256)
right = sum(int((example.probabilities(model, images).argmax(1) == labels).sum()) for images, labels in plain)
images = torch.tensor(example.load_digits().images[:5], dtype=torch.float32)
digits = example.probabilities(model, images / 16).argmax(1).tolist()
print(json.dumps([len(dataset), right, images.flatten(1).tolist(), digits]))
"""


@pytest.fixture(scope="module")
def expected(warm: SimpleNamespace) -> Expected:
    command = [sys.executable, *FLAGS, "-c", EXPECTED, str(EXAMPLES), str(VARIANTS)]
    done = warm.run(command, env=os.environ | VARIABLES, stdout=subprocess.PIPE, text=True, check=True)
    return Expected(*json.loads(done.stdout))


def within(seconds: float, holds: Callable[[], Any]) -> bool:
    """Whether something becomes true in time, looked at from outside."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)  # sleep: whoever looks all the time takes the server's cores
    return True


def flows(client: Client, key: str) -> bool:
    return within(60, lambda: client.look(key)["samples"] > 0)


def test_requests_are_answered_during_an_evaluation_that_counts_what_a_plain_loop_counts(client, expected):
    key, answered = client.start(variants=VARIANTS, batch_size=50), 0
    assert flows(client, key)
    while (before := client.look(key))["state"] == "running":
        assert [client.digit(pixels) for pixels in expected.pixels] == expected.digits
        after = client.look(key)
        answered += after["state"] == "running" and 0 < before["samples"] < after["samples"]
    report = client.look(key)
    assert (report["state"], report["samples"], report["right"]) == ("done", expected.total, expected.right)
    assert answered
    assert report["accuracy"] > 0.7
    assert within(CANCELLED, lambda: not client.server.children())


def test_who_hangs_up_on_the_stream_cancels_that_evaluation_and_no_other(client):
    kept, key = client.start(**ENDLESS), client.start(**ENDLESS)
    with client.watch(key) as reports:
        assert any(report["samples"] for report in reports)
        assert flows(client, kept)
        both = client.server.children()
        assert len(both) >= 4
    assert within(CANCELLED, lambda: client.look(key)["state"] == "cancelled")
    assert within(CANCELLED, lambda: len(client.server.children()) == len(both) // 2)
    before = client.look(kept)["samples"]
    assert within(60, lambda: client.look(kept)["samples"] > before)
    assert client.server.children() < both
    assert client.cancel(kept)["state"] == "cancelled"
    assert not client.server.children()
    assert client.digit([0.0] * 64) in range(10)


def test_the_stream_ends_with_the_result(client):
    key = client.start(variants=1)
    with client.watch(key) as stream:
        reports = list(stream)
    counts = [report["samples"] for report in reports]
    assert counts == sorted(counts)
    assert reports[-1] == client.look(key)
    assert (reports[-1]["state"], counts[-1]) == ("done", 1797)


def test_evaluations_can_be_cancelled_before_they_flow_and_there_are_not_too_many(client):
    keys = [client.start(**ENDLESS) for _ in range(4)]
    refused = client.http.post("/evaluations", json={})
    assert refused.status_code == 429
    assert "DELETE" in refused.json()["detail"]
    assert {client.cancel(key)["state"] for key in keys} == {"cancelled"}
    assert within(CANCELLED, lambda: not client.server.children())


@pytest.mark.parametrize(("number", "watched"), [(signal.SIGTERM, False), (signal.SIGINT, True)], ids=str)
def test_a_signal_in_the_middle_of_an_evaluation_ends_the_server_cleanly(own_client, number, watched):
    server = own_client.server
    key = own_client.start(**ENDLESS)
    assert flows(own_client, key)
    processes = server.children()
    assert len(processes) >= 2
    if watched:
        with own_client.watch(key) as reports:
            next(reports)
            began = stop(server, number)
            assert list(reports)[-1]["state"] == "cancelled"
    else:
        began = stop(server, number)
    _, errors = server.process.communicate(timeout=STOPPED)
    assert time.monotonic() - began < STOPPED
    assert server.process.returncode == 0, errors
    assert not any(process.is_running() for process in processes)
    assert errors == ""


def stop(server: Server, number: int) -> float:
    """As a supervisor does, or as a terminal does: to every process of the group. When."""
    began = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(server.process.pid, number)
    else:
        os.kill(server.process.pid, number)
    return began
