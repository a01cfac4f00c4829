"""Awaiting what a dataset has returned one sample after the other, as a debugger wants it."""

from __future__ import annotations

import inspect
from typing import Any

from aloader.worker.awaitables import close_all, has_awaitables
from aloader.worker.faulty import Failed, Losses, blamed
from aloader.worker.fetch import seeded
from aloader.worker.generators import SAMPLE, TOGETHER_AWAITED, Seeding


async def await_in_turn(
    fetched: Any, batched: bool, seeding: Seeding | None, purpose: str, losses: Losses | None = None
) -> Any:
    """What the dataset has returned, awaited: one sample after the other. `purpose` is what their generators are for.
    Raises `Failed`; with `losses`, what stands in the place of those that failed is in the result."""
    position = -1 if batched else 0

    async def awaited(value: Any) -> Any:
        instead = losses is not None and position in losses.lost  # of the user's function for samples that failed
        if seeding is None:
            return await seeded(value, None)
        return await seeded(value, seeding.own(seeding.name(max(0, position)), SAMPLE if instead else purpose))

    async def outcome(value: Any) -> Any:
        try:
            return await awaited(value)
        except BaseException as error:
            failed = blamed(position, error)
            if losses is None or not isinstance(failed, Failed):
                raise failed from None
            return await losses.fell_async(position, failed.cause)

    try:
        if not batched:
            return await outcome(fetched)
        if inspect.isawaitable(fetched):
            fetched = await seeded(fetched, None if seeding is None else seeding.all(TOGETHER_AWAITED))
        if type(fetched) not in (list, tuple):
            return await awaited(fetched)
        samples: list[Any] = []
        for sample in fetched:
            position = len(samples)
            samples.append(await outcome(sample) if has_awaitables(sample) else sample)
        return type(fetched)(samples)
    except BaseException as error:
        close_all(fetched)
        raise blamed(position, error) from None
