"""What stands in for a worker process where there is none: what is sent to it is begun at once, as tasks of a loop."""

from __future__ import annotations

import os
import time
from typing import Any, Protocol, assert_never

from aloader.channel.messages import Denied, Granted, LeftOut, Ticket
from aloader.channel.stacks import Stack
from aloader.channel.status import Doing, Status


class Employer(Protocol):
    """Whose tickets these are: `local.LocalCrew`."""

    def begin(self, ticket: Ticket) -> None: ...
    def grant(self, message: Granted) -> None: ...
    def deny(self, message: Denied) -> None: ...
    def stacks(self, epoch: int, seq: int) -> list[Stack]: ...


class Made:
    """A batch in ordinary memory, what the dataset said of itself behind it, and which of its samples have failed."""

    __slots__ = ("_batch", "left_out", "mark")

    def __init__(self, batch: Any, mark: bytes | None, left_out: tuple[LeftOut, ...] = ()) -> None:
        self._batch = batch
        self.mark = mark
        self.left_out = left_out

    def unpack(self) -> Any:
        """The batch; once."""
        batch, self._batch = self._batch, None
        return batch


class LocalWorker:
    """The one slot: what is sent to its link is begun as a task of the loop."""

    slot = 0
    generation = 0

    def __init__(self, crew: Employer, *, guesses: bool = False) -> None:
        """`guesses`: what it asks memory for is of another size, perhaps: a `collate_fn` of the user's makes it."""
        self.guesses = guesses
        self.pid = os.getpid()
        self.link = self.page = self  # one object plays all three: nothing is sent and nothing is mapped
        self.served = 0  # as a worker's
        self._crew = crew
        self._status = Status(Doing.IDLE, -1, -1, -1, 0.0)

    def send(self, message: Ticket | Granted | Denied) -> None:
        """As a link."""
        match message:
            case Ticket():
                self._crew.begin(message)
            case Granted():
                self._crew.grant(message)
            case Denied():
                self._crew.deny(message)
            case _:
                assert_never(message)

    def read(self) -> Status:
        """As a status page."""
        return self._status

    def write(self, doing: Doing, epoch: int = -1, seq: int = -1, position: int = -1) -> None:
        """As a status page."""
        self._status = Status(doing, epoch, seq, position, time.monotonic())

    def inquire(self, epoch: int, seq: int) -> Told:
        """Where the tasks of a ticket stand, at once."""
        return Told(self._crew.stacks(epoch, seq))


class Told:
    """The answer to where the worker stands. (As `pool.inquiry.Inquiry`.)"""

    def __init__(self, stacks: list[Stack]) -> None:
        self._stacks = stacks

    def over(self) -> bool:
        """There is nothing to wait for."""
        return True

    def told(self) -> list[Stack]:
        """Where it stands."""
        return self._stacks
