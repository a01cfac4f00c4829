"""How a wrapper outside learns that its request waits for its turn further inside. No policy here.

`Limited` lets requests wait. Whoever measures time around it must not count that: ten thousand gets at once are no
stalled server, and a request that has not been sent yet cannot be hedged. So those who measure set `QUEUEING` around
the request, and `Limited` tells them. A context variable, since the wrappers between know nothing of it, and since
tasks inherit it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol


class Listener(Protocol):
    """Who measures. Both are called on the request's loop, in this order, and only if it has to wait."""

    def waits(self) -> None:
        """The request has not been sent: it waits for its turn."""

    def goes(self) -> None:
        """It is its turn: the request is sent. Not called for one that was given up before."""


QUEUEING: Final[ContextVar[Listener | None]] = ContextVar("aloader_queueing", default=None)
