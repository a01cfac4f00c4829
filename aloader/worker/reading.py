"""Tickets of an iterable dataset on a loop: read in turn, and their awaitable samples awaited side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aloader.worker.faulty import Losses
from aloader.worker.fetch import Fetcher, Note
from aloader.worker.generators import Seeding
from aloader.worker.stream import Stream


class StreamFetcher:
    """Takes tickets' samples from a stream, on a loop: reads them one ticket after the other, in the order of the
    tickets, and awaits what is awaitable among them many at once."""

    def __init__(
        self,
        stream: Stream,
        concurrency: int,
        sample_timeout: float = 0.0,
        where: Callable[[asyncio.Task[Any]], str] = lambda task: "",
    ) -> None:
        self._stream = stream
        self._turn = asyncio.Lock()  # first come, first served
        self._rest = Fetcher(None, True, concurrency, sample_timeout=sample_timeout, where=where)
        stream.deadlines = self._rest.deadlines

    @property
    def mark(self) -> bytes | None:
        """What the dataset said of itself behind the ticket that was read last; at the end: then."""
        return self._stream.mark

    async def fetch(
        self,
        count: int | None,
        note: Note,
        seeding: Seeding | None,
        marked: Callable[[bytes | None], None],
        losses: Losses | None = None,
    ) -> Any:
        """The samples of a ticket; `marked` is told what the dataset says of itself behind it. Raises `Dry` and
        `Failed`."""
        async with self._turn:
            samples = await self._stream.take_async(count, note, seeding, losses)
            marked(self._stream.mark)
        return await self._rest.awaited(samples, count is not None, note, seeding, losses)

    async def aclose(self) -> None:
        """Nobody wants the rest."""
        async with self._turn:
            try:
                await self._stream.aclose()
            except Exception as error:  # of the user's own cleaning up, for which nobody waits
                context = {"message": "leaving an iterable dataset failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
