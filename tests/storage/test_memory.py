"""What is a memory store's own: sets that are loaded from another store into memory that workers share."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

import aloader
from aloader.datasets import ObjectDataset
from aloader.errors import BadKey, KeyNotFound
from aloader.storage import MemoryStore, ObjectInfo, Request
from aloader.storage.memory import ASKED_AT_ONCE
from aloader.storage.wrappers.wrapper import Wrapper

OBJECTS = {f"{folder}/{number:03}": f"{folder}{number}".encode() * number for folder in "aüb" for number in range(60)}


class Asked(Wrapper):
    """Notes how many objects are asked for at once."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.sizes: list[int] = []

    async def get_many(self, keys: Iterable[str]) -> list[bytes]:
        keys = list(keys)
        self.sizes.append(len(keys))
        return await self.store.get_many(keys)


@pytest.mark.asyncio
async def test_what_is_loaded_is_what_the_store_holds() -> None:
    asked = Asked(MemoryStore(OBJECTS))
    store = await MemoryStore.load(asked)
    assert sum(asked.sizes) == len(OBJECTS)
    assert max(asked.sizes) == ASKED_AT_ONCE
    async with store:
        assert await store.get_many(OBJECTS) == [*OBJECTS.values()]
        assert [info async for info in store.list("ü/01")] == [
            ObjectInfo(f"ü/01{n}", len(OBJECTS[f"ü/01{n}"])) for n in range(10)
        ]
        assert await store.get("b/059", 3, 7) == OBJECTS["b/059"][3:7]
        assert await store.fetch(Request("b/002", 1)) == (b"2b2", 4, "", {})
        for missing in ("a", "a/0", "a/0000", "zz", "\udc80"):
            with pytest.raises(KeyNotFound):
                await store.get(missing)


@pytest.mark.asyncio
async def test_a_prefix_or_keys_choose_what_is_loaded() -> None:
    objects = MemoryStore({"a/1": b"1", "a/2": b"22", "b": b"333"})
    for chosen in (await MemoryStore.load(objects, "a/"), await MemoryStore.load(objects, keys=iter(["a/2", "a/1"]))):
        assert repr(chosen) == "MemoryStore(2 objects, 3 bytes loaded)"
        async with chosen:
            assert [info.key async for info in chosen.list()] == ["a/1", "a/2"]
    nothing = await MemoryStore.load(objects, keys=[])
    async with nothing:
        assert [info async for info in nothing.list()] == []
    with pytest.raises(KeyNotFound):
        await MemoryStore.load(objects, keys=["a/1", "c"])
    with pytest.raises(BadKey):
        await MemoryStore.load(objects, keys=["../a"])


@pytest.mark.asyncio
async def test_what_is_put_into_it_goes_before_what_was_loaded() -> None:
    store = await MemoryStore.load(MemoryStore({"a": b"1", "b": b"2"}))
    async with store:
        await store.put("b", b"new")
        await store.put("c", b"3")
        assert await store.get_many("abc") == [b"1", b"new", b"3"]
        assert [info async for info in store.list()] == [ObjectInfo("a", 1), ObjectInfo("b", 3), ObjectInfo("c", 1)]
    assert repr(store) == "MemoryStore(2 objects, 2 bytes loaded; 2 objects, 4 bytes)"


@pytest.mark.asyncio
@pytest.mark.parametrize("keys", [None, ["a", "b"]])
async def test_more_than_the_limit_is_an_error_that_says_what_to_do(keys: list[str] | None) -> None:
    asked = Asked(MemoryStore({"a": bytes(600), "b": bytes(600)}))
    with pytest.raises(ValueError, match=r"more than limit= \(1200 bytes or more, of 1024\): raise limit=, load fewer"):
        await MemoryStore.load(asked, keys=keys, limit="1KiB")
    assert bool(asked.sizes) == (keys is not None)  # a listing tells the sizes
    assert len(pickle.dumps(await MemoryStore.load(asked, keys=keys, limit=1200))) > 1200


@pytest.mark.asyncio
async def test_its_memory_travels_out_of_band() -> None:
    store = await MemoryStore.load(MemoryStore({f"{number:04}": bytes(1000) for number in range(1000)}))
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(store, 5, buffer_callback=buffers.append)
    assert len(body) < 2000
    copy = pickle.loads(body, buffers=buffers)
    async with copy:
        assert await copy.get("0999") == bytes(1000)


class Sizes(ObjectDataset):
    async def __getitem__(self, index: int) -> int:
        return len(await super().__getitem__(index))


def own_memory(pid: int) -> int:
    """Bytes that were copied for a process, or made by it: its share of memory that belongs to no file."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss_Anon:"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.asyncio
async def test_four_workers_share_one_copy() -> None:
    """24 MiB, of which every worker reads most: they take hardly more memory than for a set of nothing."""
    small, large = await memory_of_workers(128), await memory_of_workers(1536)
    assert large - small < 12 << 20


async def memory_of_workers(count: int) -> int:
    """Of all processes of a loader, when they have read so many objects of 16 KiB three times."""
    objects = {f"{number:05}": bytes([number % 256]) * 16_384 for number in range(count)}
    keys = list(objects)
    store = await MemoryStore.load(MemoryStore(objects), limit="24MiB")
    del objects
    async with aloader.DataLoader(Sizes(store, keys * 3), batch_size=64, num_workers=4) as loader:
        batches = aiter(loader)
        for _ in range(len(loader) - 1):
            assert set((await anext(batches)).tolist()) == {16_384}
        return sum(own_memory(child.pid) for child in psutil.Process().children(recursive=True))
