"""Asking a worker where it is stuck, and saying so. Waits for nobody: the drivers look again until it has answered.

A process is only signalled if it has a handler for the signal (`/proc/<pid>/status` says so): without one, the signal
would kill it, and the pid might be somebody else's by now.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from aloader import options
from aloader.channel import stacks
from aloader.channel.offender import safe_repr
from aloader.channel.stacks import Stack
from aloader.channel.status import STACKS_SIGNAL, TASKS_SIGNAL, StatusPage
from aloader.errors import LoaderTimeout

_MOST_INDICES: Final = 200  # characters


class Inquiry(Protocol):
    """A question to a worker. Look again every few milliseconds until it is `over`."""

    def over(self) -> bool: ...
    def told(self) -> list[Stack] | str: ...


class Late:
    """A batch that has not come in time, and the question to its worker."""

    def __init__(self, crew: Any, epoch: Any) -> None:
        self._lines = epoch.late()
        awaited = epoch.awaited
        self._worker = None if awaited is None else crew.workers.get(awaited.slot)
        self._indices = [] if awaited is None else indices_of(awaited.indices, crew.who.auto_collation)
        self._batch = "" if awaited is None else f"; batch {awaited.seq} is waited for: {in_words(self._indices)}"
        inquiry: Inquiry | None = None
        if awaited is not None and self._worker is not None:
            inquiry = self._worker.inquire(epoch.number, awaited.seq)
        self._inquiry = inquiry

    def over(self) -> bool:
        """Whether the answer is there, or is not waited for any longer."""
        return self._inquiry is None or self._inquiry.over()

    def error(self, what: str) -> LoaderTimeout:
        """The error, with what is known by now."""
        slot, stack = -1, ""
        if self._worker is not None and self._inquiry is not None:
            slot = self._worker.slot
            stack = report(f"Worker {slot}", self._inquiry.told(), self._indices)
        message = f"{what}{self._batch}; {self._lines}. Iterating again waits again: nothing is lost.\n{stack}"
        return LoaderTimeout(message.rstrip(), worker=slot, indices=self._indices, stack=stack)


class PageInquiry:
    """To a worker process, by signals and its status page."""

    def __init__(self, page: StatusPage, epoch: int, seq: int) -> None:
        self._page = page
        self._pid = page.pid
        self._until = time.monotonic() + options.STACK_PATIENCE
        self._length = 0
        self._signals: list[int] = []
        self._silent = self._ask(epoch, seq)

    def _ask(self, epoch: int, seq: int) -> str:
        """Signal it. Returns why it cannot answer, where that is known."""
        if STACKS_SIGNAL is None:
            return "cannot say where it stands on this platform"
        process = Process.of(self._pid) if self._pid else None
        if process is None:
            return "has gone" if self._pid else "cannot say where it stands: it is being started"
        if process.state in "tT":
            return f"does not answer: it is stopped. `kill -CONT {self._pid}` lets it go on"
        self._signals = [n for n in (STACKS_SIGNAL, TASKS_SIGNAL) if n is not None and process.catches(n)]
        self._page.ask(epoch, seq)
        for number in self._signals:
            if not process.has_pending(number):  # an earlier question, not answered yet: one answer is enough
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, number)
        return ""

    def over(self) -> bool:
        """Whether it has answered, or is not waited for any longer."""
        if not self._signals or self._page.closed or time.monotonic() > self._until:
            return True
        length, before = len(self._page.stacks), self._length
        self._length = length  # it is written without a sign at its end: it has ended when no more comes
        return length == before > 0 and (TASKS_SIGNAL not in self._signals or self._page.tasks is not None)

    def told(self) -> list[Stack] | str:
        """Where it stands, in the user's code; or why it does not say, as what it does."""
        if self._silent:
            return self._silent
        if self._page.closed:  # it has died meanwhile
            return "has gone"
        threads, tasks = stacks.parse(self._page.stacks), self._page.tasks
        found = stacks.different([*threads, *(stacks.unpack(tasks) if tasks else ())])
        if found or threads:
            return found
        process = Process.of(self._pid)
        if process is not None and process.state == "D":
            return "does not answer: the kernel keeps it waiting for a disk, or for a network file system that has gone"
        return f"did not say within {options.STACK_PATIENCE} s where it stands"


class Process(NamedTuple):
    """What the kernel says of a process: its state (one letter), and the signals that it handles or has pending."""

    state: str
    caught: int
    pending: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """None where there is no such process (or no `/proc`)."""
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return None
        found = dict(line.split(":", 1) for line in text.splitlines())
        pending = int(found["SigPnd"], 16) | int(found["ShdPnd"], 16)
        return cls(found["State"].split()[0], int(found["SigCgt"], 16), pending)

    def catches(self, number: int) -> bool:
        """Whether it has a handler for this signal."""
        return bool(self.caught >> (number - 1) & 1)

    def has_pending(self, number: int) -> bool:
        """Whether this signal waits to be handled."""
        return bool(self.pending >> (number - 1) & 1)


def indices_of(indices: Any, batched: bool) -> list[Any]:
    """The sample indices of a ticket, as far as they can be read without taking them from who fetches them."""
    if not batched:
        return [indices]
    if hasattr(type(indices), "__next__"):
        return []
    try:
        return list(indices)
    except TypeError:
        return [indices]


def in_words(indices: Sequence[Any]) -> str:
    """Sample indices, not too many of them: "samples 3, 17, 4"."""
    text = ", ".join(map(safe_repr, indices))
    if len(text) > _MOST_INDICES:
        text = f"{text[:_MOST_INDICES].rpartition(',')[0]}, … ({len(indices)} in all)"
    return f"sample{'s' * (len(indices) != 1)} {text}"


def report(who: str, told: list[Stack] | str, indices: Sequence[Any]) -> str:
    """Where a worker stands, in lines: one block for each stack."""
    if isinstance(told, str):
        return f"{who} {told}."
    if not told:
        return f"{who} is not in the dataset's code."
    return "\n".join(_block(who, stack, indices) for stack in told)


def _block(who: str, stack: Stack, indices: Sequence[Any]) -> str:
    subject = who
    if stack.positions:
        subject = f"{who}, {in_words([indices[at] for at in stack.positions if at < len(indices)])}"
    if not stack.frames:
        return f"{subject}: not begun, since as many others are in flight as concurrency= allows"
    return f"{subject} (most recent call last):\n{stacks.text(stack.frames)}"
