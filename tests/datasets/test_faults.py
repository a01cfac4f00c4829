"""A whole loader on a store that does everything wrong: every sample once, with the right bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aloader import DataLoader
from aloader.datasets import ObjectDataset
from aloader.errors import Corrupted
from aloader.storage import open_store
from aloader.testing import Faults, FaultServer, Synthetic

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

COUNT = 640
NBYTES = 20_000


class Named(ObjectDataset):
    """Samples with their index."""

    async def __getitem__(self, index: int) -> tuple[int, bytes]:
        return index, await super().__getitem__(index)


def as_it_is(samples: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return samples


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", [7])
async def test_an_epoch_has_every_sample_with_the_right_bytes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Synthetic(COUNT, NBYTES, md5=True)
    faults = Faults.preset("standard").times(10).scaled(0.02)
    wrong = {"truncated": 0.01, "wrong_length": 0.01, "flipped": 0.01, "refused": 0.01, "slow_down": 0.01}
    with FaultServer(objects, replace(faults, **wrong), seed) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store(server.url(), hedge=True, verify="etag", read_timeout=1.0)
        dataset = Named(store, [objects.key(index) for index in range(COUNT)])
        seen: list[int] = []
        told: list[str] = []
        async with DataLoader(dataset, 32, shuffle=True, num_workers=2, collate_fn=as_it_is) as loader:
            batches = aiter(loader)
            while True:
                try:
                    batch = await anext(batches)
                except StopAsyncIteration:
                    break
                except Corrupted as error:  # damaged twice in a row: one object in ten thousand
                    told.append(str(error))
                    continue
                for index, data in batch:
                    assert data == objects.expected(objects.key(index))
                    seen.append(index)
        assert len(told) <= 2
        assert all(any(objects.key(index) in text for index in range(COUNT)) for text in told)
        assert len(seen) == len(set(seen)) == COUNT - 32 * len(told)
        assert server.served().faults.total() > 20
