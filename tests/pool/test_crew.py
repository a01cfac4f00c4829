"""A crew hears what its workers say, also when they have gone meanwhile; and nobody speaks for another."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aloader.channel import shared
from aloader.channel.arena import Place
from aloader.channel.link import Link
from aloader.channel.messages import Batch, Call, Message, NewSegment, Ready, Retire, Start, Unmapped
from aloader.channel.roles import Who
from aloader.pool.crew import Crew
from aloader.pool.pool import Installed
from aloader.pool.seats import Seats
from aloader.pool.starter import Exit, Loaded

pytestmark = pytest.mark.usefixtures("nothing_left")


class Starting:
    """A starter whose processes are the ends of their links, by key."""

    carries = True

    def __init__(self) -> None:
        self.ends: dict[int, Link] = {}
        self.ended: list[int] = []

    def start(self, loaded: Any, key: int, end: socket.socket, status: int) -> None:
        os.close(status)
        self.ends[key] = Link(end)

    def end(self, key: int, grace: float) -> None:
        self.ended.append(key)


class House:
    """A pool of one crew."""

    def __init__(self) -> None:
        self.starter: Any = Starting()
        self.seats = Seats(None)
        self.crew = Crew(self, Who(0, 1, 0, 1, False, True, b""))
        self.crew.use(Loaded(None))
        self._keys = 0

    def new_key(self, crew: Crew) -> int:
        self._keys += 1
        return self._keys

    def insist(self, crew: Crew) -> None: ...

    def read_reports(self) -> None: ...

    def says(self, key: int, *messages: tuple[Message, int]) -> None:
        for message, fd in messages:
            self.starter.ends[key].send(message, fd)
        assert self.starter.ends[key].flush()

    def told(self, key: int) -> list[Message]:
        return list(self.starter.ends[key].receive(everything=True))

    def close(self) -> None:
        self.crew.end()
        for end in self.starter.ends.values():
            end.close()


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


class Replacing:
    """Has whoever has answered a ticket replaced, as the dispatcher where that was the last one of its life."""

    number = 1
    idle = True

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.heard: list[str] = []
        crew.listener = self  # type: ignore[assignment]

    def on_ready(self, worker: Any) -> None:
        self.heard.append("ready")

    def on_batch(self, worker: Any, *what: Any) -> None:
        self.heard.append("batch")
        self.crew.replace(worker.slot, worker.generation + 1)

    def on_lost(self, worker: Any, exit: Exit) -> None:
        self.heard.append("lost")


LAST = Batch(0, 1, 0, b"", (), 0.0, 0.0)


def test_who_is_found_dead_behind_its_last_batch_is_not_missed(house):
    listener = Replacing(house.crew)
    house.crew.launch(0, 0)
    house.says(1, (Ready(17), -1), (LAST, -1))
    house.crew.on_exit(Exit(1, 9, 0, 0))
    assert listener.heard == ["ready", "batch"]
    assert house.crew.workers[0].generation == 1
    assert house.crew.alive == 1


def test_what_somebody_says_behind_its_last_batch_is_nobodys_concern(house):
    Replacing(house.crew)
    house.crew.launch(0, 0)
    memory = shared.create(4096, "test")
    more = shared.create(4096, "test")
    house.says(
        1, (NewSegment(0, 4096), memory), (LAST, -1), (Retire(0), -1), (NewSegment(1, 4096), more), (Ready(18), -1)
    )
    house.crew.read(house.crew.latest[0], everything=True)
    assert house.crew.workers[0].generation == 1
    assert house.starter.ended == [1]


def test_a_spare_makes_the_calls_that_were_broadcast_meanwhile(house):
    house.crew.launch(0, 0)
    house.crew.broadcast(b"first")
    house.crew.prepare(1)
    house.crew.broadcast(b"second")
    house.crew.replace(0, 1)
    start, *calls = house.told(2)
    assert isinstance(start, Start)
    assert calls == [Call(0, b"first"), Call(0, b"second")]


def test_who_waits_for_a_seat_waits_no_longer_than_its_epoch(house):
    house.seats = Seats(1)
    house.crew.launch(0, 0)
    house.crew.launch(1, 3)
    assert house.crew.unseated
    house.crew.epoch_over(1)
    assert not house.crew.unseated, "the next epoch asks for itself, and counts its processes from 0"


class Keeper:
    """Notes what it hears of mappings, and whether in another thread."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.here = threading.get_ident()

    def mapped(self, memory: mmap.mmap, fd: int) -> None:
        assert os.fstat(fd).st_size == len(memory)
        self.heard.append(("mapped", len(memory)))

    def unmapping(self, memory: mmap.mmap) -> None:
        assert not memory.closed
        assert threading.get_ident() != self.here
        self.heard.append(("unmapping", len(memory)))

    def dropped(self, memory: mmap.mmap) -> None:
        self.heard.append(("dropped", len(memory)))

    def close(self) -> None:
        self.heard.append(("close", 0))


def settle() -> None:
    for thread in threading.enumerate():
        if thread.name == "aloader-unmap":
            thread.join(5)


def test_who_keeps_pages_hears_of_each_mapping_before_it_goes_and_off_the_loop(house):
    """Given back by the worker, left by one that has died, and of those that end with the crew: spares, too."""
    keeper = house.crew.pages = Keeper()
    house.crew.launch(0, 0)
    house.crew.prepare(1)
    for number, nbytes in enumerate([4096, 8192, 12288]):
        house.says(1, (NewSegment(number, nbytes), shared.create(nbytes, "test")))
    house.says(1, (Retire(1), -1))
    house.crew.read(house.crew.latest[0], everything=True)
    settle()
    assert house.crew.flush() is None
    assert [type(message) for message in house.told(1)] == [Start, Unmapped]
    held = house.crew.latest[0].mappings.lease(Place(2, 0, 4096))
    house.crew.on_exit(Exit(1, 9, 0, 0))
    settle()
    house.crew.launch(0, 1)
    house.says(2, (NewSegment(0, 16384), shared.create(16384, "test")))
    house.crew.read(house.crew.latest[0], everything=True)
    house.crew.end()
    settle()
    del held
    sizes = {what: [nbytes for kind, nbytes in keeper.heard if kind == what] for what, _ in keeper.heard}
    assert sizes == {
        "mapped": [4096, 8192, 12288, 16384], "unmapping": [8192, 4096, 16384], "dropped": [12288], "close": [0]
    }  # fmt: skip
    assert keeper.heard.index(("close", 0)) < keeper.heard.index(("unmapping", 16384))


@pytest.mark.parametrize("late", [False, True])
def test_a_job_is_let_go_with_its_loader_though_the_thread_that_loads_it_comes_later(late):
    """Whoever keeps an error of that time keeps all of the loader, and a process with the dataset would live on."""
    crew, loaded, installed = House().crew, Loaded(None), Installed()
    acts = [lambda: (installed.use(None, loaded), crew.use(loaded)), lambda: (installed.end(), crew.end())]
    for act in reversed(acts) if late else acts:
        act()
    assert not loaded.users
