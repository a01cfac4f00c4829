"""Forks of this program: moments in which there must be none, and who hears of them. No policy may enter: what must not
be carried off is said where it is, and so is what a fork means for it.

A fork has a copy of every descriptor, and keeps it for as long as it lives. That of a pipe or socket which is about to
be handed to another process means that its end is never heard: `subprocess` waits for the child to close a pipe of its
own, and a template that has died looks alive. Torch's loader forks workers that live for hours, and any thread may be
making one.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Protocol

from aloader.channel.leases import Fork, Mappings


def no_forks() -> AbstractContextManager[bool]:
    """For a step of milliseconds in which no other thread forks: `os.fork`, and so multiprocessing, waits for its end.

    What forks without asking Python is not held up, nor is what runs another program, which inherits nothing
    (PEP 446). The callbacks stay for as long as the program runs, as all of `register_at_fork` do.
    """
    lock = threading.RLock()  # a signal's handler may fork, in the thread that holds it
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock  # itself: Ctrl-C between taking it and being inside of `with` cannot leave it taken


class Forked(Protocol):
    """Who hears of forks."""

    def mappings(self) -> list[Mappings]:
        """The memory that a fork shares with this process and with workers, who go on writing it."""

    def forked(self) -> None:
        """In the fork."""


def tell_of_forks(whom: weakref.ref[Forked]) -> None:
    """From now on, of all that are made by `os.fork`, and so by multiprocessing.

    The fork has one end of a pipe, for as long as it lives; so whoever has the other one sees that it has gone.
    """
    forks: dict[int, tuple[Fork, int]] = {}  # and the end that is not ours, by the thread that forks

    def tell(fork: Fork) -> None:
        one = whom()
        for mappings in one.mappings() if one is not None else ():
            mappings.shared_with(fork)

    def before() -> None:
        one = whom()
        if one is None or not one.mappings():
            return
        try:
            mine, its = os.pipe()
        except OSError:  # no descriptors left
            mine = its = -1
        forks[threading.get_ident()] = fork, _ = Fork(mine), its
        tell(fork)  # already here: another thread may let a batch go just behind the fork

    def in_parent() -> None:
        fork, its = forks.pop(threading.get_ident(), (None, -1))
        if fork is not None:
            tell(fork)  # of what has come in another thread meanwhile
        if its >= 0:
            os.close(its)

    def in_child() -> None:
        fork, _ = forks.pop(threading.get_ident(), (None, -1))
        forks.clear()  # other threads are not here
        if fork is not None:
            fork.close()
        one = whom()
        if one is not None:
            one.forked()

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
