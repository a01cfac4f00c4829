"""A worker's socket pair: length-prefixed messages both ways, descriptors beside them. Non-blocking; no policy.

Neither side may block on a full socket while the other waits, so `send` only ever adds to a buffer and `flush` writes
what fits. No body over 32 KiB goes through the socket: a larger one travels as the descriptor of a memfd.

The death of one side is seen by the other as `ended`; a half message before it is dropped. Descriptors are received
with `recvmsg` alone, in the order in which the messages that they belong to arrive: the kernel never joins two of them.
Python's own `recv_fds` ignores its flags (before 3.14) and would leave them open across `exec`.

`release` may be called from any thread and from a weak reference's callback: it takes the lock only if it is free,
and whoever holds it looks again after letting go.
"""

from __future__ import annotations

import array
import os
import pickle
import select
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from aloader import options
from aloader.channel import shared
from aloader.channel.messages import KINDS, TAGS, Message, NewSegment, Released

_HEADER: Final = struct.Struct("<I")
_HAVE: Final = hasattr(socket, "CMSG_SPACE")  # not on Windows, where this module is only imported
_TRUNCATED: Final = int(socket.MSG_CTRUNC) if _HAVE else 0
_BY_DESCRIPTOR: Final = 1 << 31
_RECEIVE: Final = 1 << 16
_MOST_BODY: Final = options.BODY_BYTES + 4096  # a batch's own 32 KiB, and what is said around it
_MOST_FDS: Final = 64
_LOCK_SECONDS: Final = 5.0  # nobody holds it for longer than a send that does not block
#: A program may have given SIGPIPE its default meaning back, and would end with a worker that has died.
NO_SIGNAL: Final = int(getattr(socket, "MSG_NOSIGNAL", 0))
ANCILLARY: Final = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize) if _HAVE else 0
RECEIVE_FLAGS: Final = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0)) | int(getattr(socket, "MSG_DONTWAIT", 0))


class Link:
    """One end of the pair. Use it from one thread, `release` apart."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._lock = threading.Lock()
        self._writer = 0  # the thread that has the lock
        self._closing = False
        self._given_up = False
        self._out: deque[tuple[bytes | memoryview, int]] = deque()  # (bytes, descriptor to send with them or -1)
        self._releases: deque[tuple[int, int]] = deque()
        self._in = bytearray()
        self._descriptors: deque[int] = deque()
        self.ended = False

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, message: Message, fd: int = -1) -> None:
        """Add a message to what `flush` writes; `fd` goes along and is closed when it has gone."""
        body = pickle.dumps((TAGS[type(message)], *message), 5)
        if len(body) <= _MOST_BODY:
            self._out.append((_HEADER.pack(len(body)) + body, fd))
            return
        assert fd < 0, "a message with a descriptor is small"
        memory = shared.create(len(body), "aloader-message")
        shared.write(memory, [memoryview(body)], [0])
        self._out.append((_HEADER.pack(len(body) | _BY_DESCRIPTOR), memory))

    def release(self, segment: int, offset: int) -> None:
        """Tell the worker that a lease has ended: at once where nobody is writing, else with what is being written."""
        self._releases.append((segment, offset))
        while self._releases and self._lock.acquire(blocking=False):
            if not self._write_and_unlock():
                return

    def flush(self) -> bool:
        """Write what fits; True if nothing is left."""
        while self._out or self._releases:
            if not self._locked():
                return True
            if not self._write_and_unlock():
                return False
        return True

    def _locked(self) -> bool:
        """Take the lock: another thread's release may be writing, and it never blocks. Who does not let it go has been
        interrupted by a signal's handler when it had just taken it; the link is given up."""
        if self._lock.acquire(timeout=0 if self._given_up else _LOCK_SECONDS):
            return True
        self.give_up()
        return False

    def give_up(self) -> None:
        """An error or a signal's handler has interrupted what may not be left half done: what has been said is not
        known. Both sides see the end of it; a worker is replaced then."""
        self.ended = self._given_up = True
        with suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def pending(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._out or self._releases)

    def _write_and_unlock(self) -> bool:
        self._writer = threading.get_ident()
        try:
            return self._write()
        except BaseException:  # KeyboardInterrupt: after a send, the same would be sent once more
            self._out.clear()  # with descriptors, which may be closed already
            self.give_up()
            raise
        finally:
            self._writer = 0
            self._lock.release()
            if self._closing:
                self.close()

    def _write(self) -> bool:
        self._take_releases()
        out = self._out
        while out and not self.ended:
            data, fd = out[0] if len(out) == 1 else self._joined()
            try:
                if fd >= 0:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _HEADER.pack(fd))]
                    sent = self._socket.sendmsg([data], ancillary, socket.MSG_DONTWAIT | NO_SIGNAL)
                    os.close(fd)
                else:
                    sent = self._socket.send(data, NO_SIGNAL)
            except BlockingIOError:
                return False
            except ConnectionError:  # its last words may be there yet
                self._drop_output()
                break
            except OSError:  # no memory for it, too many descriptors under way: nobody would miss what is not sent
                self._drop_output()
                self.give_up()
                break
            if sent == len(data):
                out.popleft()
            else:
                out[0] = (memoryview(data)[sent:], -1)
        if self.ended:
            self._drop_output()
        return True

    def _joined(self) -> tuple[bytes | memoryview, int]:
        """The first thing to send, after joining to it what follows and carries no descriptor: fewer system calls."""
        out = self._out
        data, fd = out.popleft()
        if fd < 0 and out and out[0][1] < 0 and len(data) < _RECEIVE:
            parts, size = [data], len(data)
            while out and out[0][1] < 0 and size < _RECEIVE:
                parts.append(out.popleft()[0])
                size += len(parts[-1])
            data = b"".join(parts)
        out.appendleft((data, fd))
        return data, fd

    def _take_releases(self) -> None:
        if not self._releases:
            return
        places: list[int] = []
        while self._releases and len(places) < 2000:
            places.extend(self._releases.popleft())
        self.send(Released(tuple(places)))

    def _drop_output(self) -> None:
        """The other side is gone: what was for it goes nowhere. That it is gone shows when its last words are read."""
        while self._out:
            _, fd = self._out.popleft()
            if fd >= 0:
                os.close(fd)
        self._releases.clear()

    # -- receiving -------------------------------------------------------------------------------------------------

    def receive(self, *, everything: bool = False) -> list[Message]:
        """Messages that have arrived whole. Sets `ended` when the other side has closed or died.

        Stops after a short read (one system call less; a level-triggered reader comes again), unless `everything`.
        """
        messages: list[Message] = []
        try:
            self._receive(messages, everything)
        except OSError:
            raise
        except BaseException:  # a signal's handler: what has been taken out of the socket is lost
            self.give_up()
            raise
        return messages

    def _receive(self, messages: list[Message], everything: bool) -> None:
        while not self.ended:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(_RECEIVE, ANCILLARY, RECEIVE_FLAGS)
            except BlockingIOError:
                break
            except OSError:
                self.ended = True
                break
            if ancillary:
                self._descriptors.extend(descriptors_in(ancillary))
            if flags & _TRUNCATED:
                self.ended = True  # what comes next belongs to descriptors that did not come
                for message in messages:  # nobody will get these, nor what came with them
                    if type(message) is NewSegment:
                        os.close(message.fd)
                raise OSError("a worker's memory could not be received: too many open files; raise `ulimit -n`")
            if not data:
                self.ended = True
                break
            self._in += data
            self._parse(messages)
            if len(data) < _RECEIVE // 2 and not everything:
                break

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is something to receive (or, while output waits, room for it)."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def fileno(self) -> int:
        """The socket's descriptor, for a selector or an event loop."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end has been closed here."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close the socket and whatever descriptors wait in either direction. Idempotent.

        Where this thread is just writing (a collection of garbage that began meanwhile has found the link's owner), it
        is closed as soon as that is over.
        """
        self.ended = True
        self._closing = self._writer == threading.get_ident()
        if self._closing:
            return
        if self._locked():
            self._drop_output()
            self._lock.release()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._socket.close()

    def forked(self) -> None:
        """In a fork of the process that this end belongs to: let go of it, whatever other threads were about.

        None of them is here, and the lock may be theirs for ever. What was being sent is left as it is: its descriptors
        may have been closed a moment ago.
        """
        self.ended = True
        if self._writer != threading.get_ident():
            self._lock = threading.Lock()
        self._out.clear()
        self._releases.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._socket.close()

    def _parse(self, messages: list[Message]) -> None:
        buffer, at, end = self._in, 0, len(self._in)
        while end - at >= 4:
            (head,) = _HEADER.unpack_from(buffer, at)
            if head & _BY_DESCRIPTOR:
                if not self._descriptors:
                    break
                body: bytes | memoryview = self._read_descriptor(head & ~_BY_DESCRIPTOR)
                at += 4
            else:
                if end - at - 4 < head:
                    break
                body = bytes(buffer[at + 4 : at + 4 + head])
                at += 4 + head
            tag, *fields = pickle.loads(body)
            message = KINDS[tag](*fields)
            if type(message) is NewSegment:
                message = message._replace(fd=self._descriptors.popleft())
            messages.append(message)
        del buffer[:at]

    def _read_descriptor(self, nbytes: int) -> bytes:
        """A body that came as a memfd."""
        fd = self._descriptors.popleft()
        try:
            return os.pread(fd, nbytes, 0)
        finally:
            os.close(fd)


def pair() -> tuple[socket.socket, socket.socket]:
    """The two ends, closed on exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a message, closed on exec."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    if not hasattr(socket, "MSG_CMSG_CLOEXEC"):
        for fd in found:
            os.set_inheritable(fd, False)
    return list(found)
