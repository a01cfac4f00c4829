"""What is left of a worker that dies: where it crashed, and the last lines that it wrote to its standard error. Kept in
its status page, which survives it."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
from typing import Any

from aloader.channel.status import StatusPage


def keep(page: StatusPage) -> None:
    """Write both there from now on. What libraries in C write to the descriptor itself is only seen on the terminal."""
    if not faulthandler.is_enabled():  # else its user has said where he wants it
        faulthandler.enable(page.fileno(), all_threads=False)
    stream: Any = sys.stderr
    if stream is None:
        return
    write = stream.write

    def both(text: str) -> Any:
        if isinstance(text, str):
            page.say(text)
        return write(text)

    with contextlib.suppress(AttributeError):  # a stream of another kind, which takes no attributes
        stream.write = both
