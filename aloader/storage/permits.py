"""How many requests this process may have in flight, as somebody outside of it says: the seam between the loader, which
knows how many processes there are, and `Limited`, which knows what the store bears. No I/O here.

The workers of a loader are processes that ask one store, and each alone could take all of it. So whoever runs them
deals permits: it makes a `Permits` in each, before the dataset opens its stores, and says so to whatever runs there:

    permits = Permits(share=1 / workers, on_throttled=lambda count: tell_the_parent(count))
    PERMITS.set(permits)
    async with dataset: ...          # each `Limited` that is opened below finds it
    permits.share = 0.5              # at any time: it holds from the next request on

A share is a part of `Limited`'s own `concurrency`. It bounds what the process has learned for itself, and never stops
it: one request may always be in flight. Without permits the share is 1.

`on_throttled` is called on the loop of the store, with the number of requests that the store has refused since the last
call: 1 now. It must not block and not raise. Who hears it from several workers may lower the shares of all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final


class Permits:
    """A share of the requests in flight, from 0 to 1, and whom to tell that the store asks for fewer."""

    def __init__(self, share: float = 1.0, on_throttled: Callable[[int], None] | None = None) -> None:
        self.share = share
        self._on_throttled = on_throttled

    def __repr__(self) -> str:
        return f"Permits(share={self.share:g})"

    @property
    def share(self) -> float:
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"a share is between 0 and 1, got {share!r}")
        self._share = share

    def throttled(self, count: int = 1) -> None:
        """The store has refused so many requests."""
        if self._on_throttled is not None:
            self._on_throttled(count)


PERMITS: Final[ContextVar[Permits | None]] = ContextVar("aloader_permits", default=None)
