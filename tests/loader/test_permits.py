"""The workers of a loader, and the ranks of a machine, are one client of a store."""

from __future__ import annotations

from typing import Self

import pytest

from aloader import DataLoader
from aloader.storage.permits import PERMITS

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]


class Permitted:
    """A sample is the share of a store's requests that was dealt to its worker, before the dataset was opened."""

    share = -1.0

    async def __aenter__(self) -> Self:
        permits = PERMITS.get()
        self.share = 1.0 if permits is None else permits.share
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __len__(self) -> int:
        return 4

    async def __getitem__(self, index: int) -> float:
        return self.share


@pytest.mark.asyncio
@pytest.mark.parametrize(("workers", "ranks", "share"), [(0, 1, 1.0), (2, 2, 0.3125)])
async def test_each_may_have_its_share_of_the_requests_and_a_little_more(
    workers: int, ranks: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    async with DataLoader(Permitted(), batch_size=None, num_workers=workers) as loader:
        assert {sample async for sample in loader} == {share}
