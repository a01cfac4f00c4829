"""What the channel between processes asks of the system: each is tried. A sandbox (seccomp, gVisor) may refuse any."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aloader.channel import shared
from aloader.checkup.report import Check, ok, problem, warning

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, where there are no workers
    fcntl = None

SANDBOX = "allow it in the container's seccomp profile, or another runtime; until then num_workers=0"


@dataclass(frozen=True, slots=True)
class Facts:
    """What went wrong with each, "" for nothing."""

    memory: str
    sealed: bool
    passing: str
    life: str
    nowait: str


def look() -> Facts:
    sealed, memory = False, ""
    try:
        sealed = _memory()
    except Exception as error:
        memory = _said(error)
    return Facts(memory, sealed, _tried(_passing), _tried(_life), _tried(_nowait))


def judge(facts: Facts) -> Iterator[Check]:
    if facts.memory:
        yield problem("memfd", f"memory without a name cannot be shared: {facts.memory}", SANDBOX)
    elif not facts.sealed:
        yield warning("memfd", "there is none, or it cannot be sealed: unlinked files in the temp folder serve instead")
    else:
        yield ok("memfd", "memory without a name, sealed, is shared and written")
    if facts.passing:
        yield problem("sockets", f"they pass no descriptors: {facts.passing}", SANDBOX)
    else:
        yield ok("sockets", "they pass descriptors (SCM_RIGHTS)")
    if facts.life:
        text = f"workers cannot be made to die with the program (F_SETSIG on a pipe): {facts.life}"
        yield problem("life pipe", text, f"mount /proc; {SANDBOX}")
    else:
        yield ok("life pipe", "workers die with the program, however it ends (F_SETSIG on a pipe)")
    if facts.nowait:
        yield ok("preadv2", f"files in the page cache are read in threads (RWF_NOWAIT: {facts.nowait})")
    else:
        yield ok("preadv2", "files in the page cache are read without a thread (RWF_NOWAIT)")


# -- looking ----------------------------------------------------------------------------------------------------------


def _tried(step: Callable[[], object]) -> str:
    try:
        step()
    except Exception as error:
        return _said(error)
    return ""


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _memory() -> bool:
    """Whether it is sealed."""
    fd = shared.create(mmap.PAGESIZE, "aloader-doctor")
    try:
        with shared.attach(fd, mmap.PAGESIZE) as memory:
            memory[:2] = b"ok"
            if os.pread(fd, 2, 0) != b"ok":
                raise OSError("what is written to it is not read back")
        return bool(fcntl is not None and hasattr(fcntl, "F_GET_SEALS") and fcntl.fcntl(fd, fcntl.F_GET_SEALS))
    finally:
        os.close(fd)


def _passing() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        read_end, write_end = os.pipe()
        try:
            socket.send_fds(mine, [b"x"], [read_end])
            _, fds, flags, _ = socket.recv_fds(theirs, 1, 1)
            for fd in fds:
                os.close(fd)
            if len(fds) != 1 or flags & socket.MSG_CTRUNC:
                raise OSError("the descriptor did not come")
        finally:
            os.close(read_end)
            os.close(write_end)


def _life() -> None:
    """As `channel.life` does it, with a signal that does nothing."""
    read_end, write_end = os.pipe()
    try:
        own = os.open(f"/proc/self/fd/{read_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
            if fcntl.fcntl(own, fcntl.F_GETSIG) != signal.SIGURG:
                raise OSError("the signal is not kept")
        finally:
            os.close(own)
    finally:
        os.close(read_end)
        os.close(write_end)


def _nowait() -> None:
    if not hasattr(os, "RWF_NOWAIT"):
        raise OSError("not on this system")
    with tempfile.TemporaryFile() as file:
        file.write(b"ok")
        file.flush()
        os.preadv(file.fileno(), [bytearray(2)], 0, os.RWF_NOWAIT)
