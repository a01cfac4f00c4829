"""The template's processes come, go and are reported as they are told to, whatever a job or a signal does to them."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import psutil
import pytest

from aloader import options
from aloader.channel import context
from aloader.channel.job import Carried, Job
from aloader.channel.link import Link, pair
from aloader.channel.messages import Batch, Failure, Message, Ready, Start, Stop, Ticket
from aloader.channel.payload import unpack
from aloader.channel.status import Doing, StatusPage
from aloader.pool.starter import Exit
from aloader.pool.template import TemplateStarter
from tests.loader.samples import Numbers, Stuck, as_list

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow, pytest.mark.cold]

PATIENCE = 20.0


class Home:
    """A starter and what a crew would hold: links and exits by key."""

    def __init__(self) -> None:
        self.starter = TemplateStarter()
        self.starter.open()
        self.context = context.capture()
        self.links: dict[int, Link] = {}
        self.said: dict[int, list[Message]] = {}
        self.exits: dict[int, Exit] = {}
        self.pages: dict[int, StatusPage] = {}

    def load(self, dataset: Any) -> Any:
        carried = Carried(Job(dataset, as_list, None, {}), self.context)
        carried.write()
        return self.starter.load(Job(dataset, as_list, None, {}), carried)

    def start(self, loaded: Any, *keys: int) -> None:
        for key in keys:
            mine, theirs = pair()
            page, status = StatusPage.create()
            self.pages[key] = page
            self.links[key], self.said[key] = Link(mine), []
            self.links[key].send(Start(0, key, 0, 9, 0, 1, False, True, self.context))
            self.links[key].flush()
            self.starter.start(loaded, key, theirs, status)

    def until(self, done: Callable[[], Any]) -> None:
        """Listen to everybody until that is so."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"{self.said}, {self.exits}"
            poll = select.poll()
            for fd in self.starter.watched().values():
                poll.register(fd, select.POLLIN)
            for link in self.links.values():
                if not link.ended:
                    poll.register(link.fileno(), select.POLLIN)
            poll.poll(20)
            for exit in self.starter.reports():
                assert exit.key not in self.exits, "reported twice"
                self.exits[exit.key] = exit
            for key, link in self.links.items():
                self.said[key] += link.receive(everything=True)

    def pids(self, *keys: int) -> list[int]:
        """Their processes, once they are ready."""
        self.until(lambda: all(self.said[key] for key in keys))
        ready = [self.said[key][0] for key in keys]
        assert all(isinstance(message, Ready) for message in ready)
        return [message.pid for message in ready]  # type: ignore[union-attr]

    def ask(self, key: int, indices: list[int]) -> Any:
        """What a worker makes of these."""
        link, said = self.links[key], self.said[key]
        count = len(said)
        link.send(Ticket(0, 0, 0, indices, options.GIB))
        link.flush()
        self.until(lambda: len(said) > count)
        answer = said[count]
        assert isinstance(answer, Batch), answer
        return unpack(answer.body, [])  # type: ignore[arg-type]

    def stop(self, *keys: int, grace: float = 5.0) -> None:
        for key in keys:
            self.links[key].send(Stop())
            self.links[key].flush()
            self.starter.end(key, grace)

    def close(self) -> None:
        self.starter.close()
        for link in self.links.values():
            link.close()
        for page in self.pages.values():
            page.close()


@pytest.fixture
def home() -> Iterator[Home]:
    made = Home()
    yield made
    made.close()


def parent_of(pid: int) -> int:
    return psutil.Process(pid).ppid()


def gone(*pids: int) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids)


def wait_gone(*pids: int) -> None:
    for pid in pids:
        try:
            psutil.Process(pid).wait(5)
        except psutil.NoSuchProcess:
            pass


def test_workers_come_from_the_stage_that_has_loaded_the_job_and_exits_are_reported(home):
    job = home.load(Numbers())
    home.start(job, 1, 2)  # before it is loaded
    first, second = home.pids(1, 2)
    home.start(job, 3)  # and after
    (third,) = home.pids(3)
    template = home.starter._process.pid
    stage = parent_of(first)
    assert stage != template
    assert parent_of(stage) == template
    assert {parent_of(pid) for pid in (second, third)} == {stage}
    assert home.ask(2, [4, 5]) == [4, 5]
    home.stop(1, 3)
    home.until(lambda: len(home.exits) == 2)
    assert {key: (e.signal, e.exit_code) for key, e in home.exits.items()} == {1: (0, 0), 3: (0, 0)}
    assert home.exits[1].peak > 1 << 20
    os.kill(second, signal.SIGKILL)
    home.until(lambda: 2 in home.exits)
    assert home.exits[2][:3] == (2, signal.SIGKILL, 0)


def test_grace_is_given_and_then_a_stuck_worker_is_killed(home):
    job = home.load(Stuck(gil=True))
    home.start(job, 1, 2)
    home.pids(1, 2)
    home.links[1].send(Ticket(0, 0, 0, [5], options.GIB))
    home.links[1].flush()
    home.until(lambda: home.pages[1].read().doing is Doing.FETCHING)
    began = time.monotonic()
    home.stop(1, 2, grace=0.2)
    home.until(lambda: len(home.exits) == 2)
    assert home.exits[1].signal == signal.SIGKILL
    assert home.exits[2][1:3] == (0, 0)
    assert time.monotonic() - began >= 0.2


class StartsAThread(Numbers):
    """Whoever unpickles it has a thread more."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self.gate = threading.Event()
        threading.Thread(target=self.gate.wait, daemon=True).start()

    def __getstate__(self) -> Any:
        return {"n": self.n}


def test_a_dataset_that_starts_a_thread_is_loaded_by_each_worker_and_said_once(home):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job = home.load(StartsAThread())
        home.start(job, 1, 2)
        pids = home.pids(1, 2)
        home.start(job, 3)
        pids += home.pids(3)
    assert [w.category for w in caught] == [RuntimeWarning]
    assert "started 1 threads" in str(caught[0].message)
    assert "__aenter__" in str(caught[0].message)
    assert {parent_of(pid) for pid in pids} == {home.starter._process.pid}
    assert home.ask(3, [7]) == [7]


class Unloadable:
    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise LookupError("cannot be loaded there")


def test_a_job_that_cannot_be_loaded_is_said_by_the_workers_and_not_here(home):
    job = home.load(Unloadable())
    home.start(job, 1)
    home.pids(1)
    home.links[1].send(Ticket(0, 0, 0, [1], 0))
    home.links[1].flush()
    home.until(lambda: len(home.said[1]) == 2)
    answer = home.said[1][1]
    assert isinstance(answer, Failure)
    assert b"cannot be loaded there" in answer.fault


def test_a_stage_that_is_killed_takes_its_workers_along_and_the_next_start_works(home):
    job = home.load(Numbers())
    home.start(job, 1, 2)
    pids = home.pids(1, 2)
    template, stage = home.starter._process.pid, parent_of(pids[0])
    os.kill(stage, signal.SIGKILL)
    home.until(lambda: len(home.exits) == 2)
    assert {exit.signal for exit in home.exits.values()} == {signal.SIGKILL}
    home.start(job, 3)
    (again,) = home.pids(3)
    assert parent_of(again) != stage
    assert home.ask(3, [1]) == [1]
    wait_gone(template, *pids)
    assert gone(template, stage, *pids)


def test_a_template_that_is_killed_takes_everything_along_and_the_next_start_works(home):
    old, new = home.load(Numbers(5)), None
    home.start(old, 1)
    pids = home.pids(1)
    new = home.load(Numbers(6))
    home.start(new, 2)
    pids += home.pids(2)
    processes = [home.starter._process.pid, *map(parent_of, pids), *pids]
    os.kill(processes[0], signal.SIGKILL)
    home.until(lambda: len(home.exits) == 2)
    home.start(new, 3)
    home.pids(3)
    assert home.ask(3, [1]) == [1]
    wait_gone(*processes)
    assert gone(*processes)


def test_a_stage_goes_when_its_job_is_past_and_its_last_worker_has_gone(home):
    old = home.load(Numbers(5))
    home.start(old, 1, 2)
    stage = parent_of(home.pids(1, 2)[0])
    new = home.load(Numbers(6))
    home.start(new, 3)
    home.pids(3)
    assert home.ask(1, [4]) == [4]  # the old ones serve on
    home.stop(1)
    home.until(lambda: 1 in home.exits)
    assert psutil.pid_exists(stage)
    home.stop(2)
    home.until(lambda: 2 in home.exits)
    wait_gone(stage)
    assert gone(stage)
    assert home.ask(3, [5]) == [5]
    assert len(home.starter.watched()) == 2


def test_ending_a_worker_that_waits_to_be_started_starts_none(home):
    job = home.load(Numbers())
    home.start(job, 1, 2)
    home.starter.end(1, 0.0)
    home.pids(2)
    home.until(lambda: home.links[1].ended)  # its descriptors have been let go
    assert home.said[1] == []
    home.until(lambda: 1 in home.exits)  # so that its seat is given back
    assert home.exits == {1: Exit(1, 0, 0, 0)}


def test_closing_ends_everything_also_what_is_stuck_or_starting(home):
    job = home.load(Stuck(gil=True))
    home.start(job, 1, 2)
    pids = home.pids(1, 2)
    home.links[1].send(Ticket(0, 0, 0, [5], options.GIB))
    home.links[1].flush()
    home.until(lambda: home.pages[1].read().doing is Doing.FETCHING)
    home.load(Numbers())
    home.start(job, 3)
    processes = [home.starter._process.pid, parent_of(pids[0]), *pids]
    home.starter.close()
    wait_gone(*processes)
    assert gone(*processes)
    home.starter.close()  # twice is once


def test_closing_before_the_template_has_imported_anything(home):
    home.start(home.load(Numbers()), 1)
    pid = home.starter._process.pid
    home.starter.close()
    assert gone(pid)


def test_what_a_worker_leaves_behind_is_killed_with_the_template(home):
    class Leaves(Numbers):
        def __getitem__(self, index: int) -> int:
            child = os.fork()
            if child == 0:
                os.setsid()
                signal.pause()
            return child

    job = home.load(cloudpickle.loads(cloudpickle.dumps(Leaves())))
    home.start(job, 1)
    home.pids(1)
    (orphan,) = home.ask(1, [0])
    home.stop(1)
    home.until(lambda: 1 in home.exits)
    assert psutil.pid_exists(orphan)
    home.starter.close()
    wait_gone(orphan)
    assert gone(orphan)


def test_a_closed_starter_loads_nothing_and_keeps_no_descriptor():
    starter = TemplateStarter()
    starter.close()
    carried = Carried(Job(Numbers(), as_list, None, {}), b"")
    carried.write()
    starter.open()
    starter.load(Job(Numbers(), as_list, None, {}), carried)
    assert carried.fd == -1
    assert starter.watched() == {}
    assert starter._process is None


def test_sockets_are_closed_on_exec(home):
    home.start(home.load(Numbers()), 1)
    home.pids(1)
    for fd in home.starter.watched().values():
        assert not os.get_inheritable(fd)
    assert isinstance(home.starter._control, socket.socket)
