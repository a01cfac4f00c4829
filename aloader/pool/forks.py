"""Moments in which this program must not fork. No policy may enter: what must not be carried off is said where it is.

A fork has a copy of every descriptor, and keeps it for as long as it lives. That of a pipe or socket which is about to
be handed to another process means that its end is never heard: `subprocess` waits for the child to close a pipe of its
own, and a template that has died looks alive. Torch's loader forks workers that live for hours, and any thread may be
making one.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager


def no_forks() -> AbstractContextManager[bool]:
    """For a step of milliseconds in which no other thread forks: `os.fork`, and so multiprocessing, waits for its end.

    What forks without asking Python is not held up, nor is what runs another program, which inherits nothing
    (PEP 446). The callbacks stay for as long as the program runs, as all of `register_at_fork` do.
    """
    lock = threading.RLock()  # a signal's handler may fork, in the thread that holds it
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock  # itself: Ctrl-C between taking it and being inside of `with` cannot leave it taken
