"""What the parent and a stage of the template say to each other. Packets, each a pickled tuple of its name and fields.

A stage is a process that forks others on request: stage A, which has imported torch, forks one stage B for each dataset
(which unpickles it once), and B forks the workers. A worker's `key` is its own for ever: it is never used again.
"""

from __future__ import annotations

import array
import pickle
import select
import socket
from typing import Any, Final, NamedTuple

from aloader.channel.link import ANCILLARY, NO_SIGNAL, RECEIVE_FLAGS, descriptors_in

_PACKET: Final = 1 << 16


class Load(NamedTuple):
    """To A: fork a stage that loads a job. Descriptors: its control socket, the job's memfd."""

    job: int
    size: int


class Fork(NamedTuple):
    """To a stage: fork a worker. Descriptors: its link's end, its status page, and from A also the job's memfd."""

    key: int
    size: int


class End(NamedTuple):
    """To a stage: this worker was told to stop; kill it unless it has exited after `grace` seconds."""

    key: int
    grace: float


class Loaded(NamedTuple):
    """From B: whether workers can be forked from it; if not, why; if so, the flags that it has left alone."""

    job: int
    ok: bool
    reason: str


class Exited(NamedTuple):
    """From a stage: a worker has gone. `status` is as `os.wait4` gives it, `peak` its largest resident set in KiB."""

    key: int
    status: int
    peak: int


Packet = Load | Fork | End | Loaded | Exited
_KINDS: Final[tuple[type[Packet], ...]] = (Load, Fork, End, Loaded, Exited)


def send(end: socket.socket, packet: Packet, fds: tuple[int, ...] = ()) -> None:
    """Send one packet whole. Raises BrokenPipeError where the other side has gone.

    A socket takes some 280 packets before it is full (as many workers started at once): a stage reads in microseconds,
    so it is waited for, a second at most.
    """
    body = pickle.dumps((_KINDS.index(type(packet)), *packet), 5)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        end.sendmsg([body], ancillary, NO_SIGNAL)
    except BlockingIOError:
        poll = select.poll()
        poll.register(end, select.POLLOUT)
        poll.poll(1000)
        end.sendmsg([body], ancillary, NO_SIGNAL)


def receive(end: socket.socket) -> tuple[Packet, list[int]] | None:
    """The next packet and its descriptors; None at the end. Raises BlockingIOError where none has arrived."""
    try:
        body, ancillary, _, _ = end.recvmsg(_PACKET, ANCILLARY, RECEIVE_FLAGS)
    except ConnectionError:
        return None
    if not body:
        return None
    fields: tuple[Any, ...] = pickle.loads(body)
    return _KINDS[fields[0]](*fields[1:]), descriptors_in(ancillary)
