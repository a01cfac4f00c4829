"""What every store does alike. A new store joins by one line in `stores`."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from aloader.errors import BadKey, KeyNotFound, NotOpen
from aloader.storage import LocalStore, MemoryStore, ObjectInfo, Store
from tests.servers import BUCKET

ODD_KEYS = [
    "with space", "ünï/cödé/日本", "plus+plus", "per%20cent%", "a&b=c;d", "question?", "hash#", "quote'\"", "[1]*{2}",
    "dots/..a/b..", "~tilde", "line\nbreak", "x" * 200, "emoji-😀",
]  # fmt: skip


@pytest.fixture(params=["memory", "local", "s3"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Makes one more object for the same empty place."""
    match request.param:
        case "memory":
            shared = MemoryStore()
            return lambda: shared
        case "local":
            return lambda: LocalStore(tmp_path)
        case _:
            server = request.getfixturevalue("s3_server")
            prefix = f"conformance/{uuid4().hex}"
            return lambda: server.store(BUCKET, prefix)


@pytest.fixture
def store(make_store: Callable[[], Store]) -> Store:
    return make_store()


async def keys_of(store: Store, prefix: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix)]


@pytest.mark.asyncio
async def test_what_was_put_is_got_and_listed_with_its_size(store: Store) -> None:
    async with store:
        await store.put("a/b", b"12345")
        assert await store.get("a/b") == b"12345"
        assert [info async for info in store.list()] == [ObjectInfo("a/b", 5)]


@pytest.mark.asyncio
async def test_a_second_put_replaces_the_first(store: Store) -> None:
    async with store:
        await store.put("key", b"long and old")
        await store.put("key", memoryview(b"new"))
        assert await store.get("key") == b"new"


@pytest.mark.asyncio
async def test_empty_objects_and_all_bytes_come_back(store: Store) -> None:
    async with store:
        for data in (b"", bytes(range(256)) * 300):
            await store.put("key", data)
            assert await store.get("key") == data


@pytest.mark.asyncio
async def test_odd_keys_are_kept_as_they_are(store: Store) -> None:
    async with store:
        await asyncio.gather(*(store.put(key, key.encode()) for key in ODD_KEYS))
        assert await asyncio.gather(*map(store.get, ODD_KEYS)) == [key.encode() for key in ODD_KEYS]
        assert sorted(await keys_of(store)) == sorted(ODD_KEYS)


@pytest.mark.asyncio
async def test_a_prefix_is_text_and_not_a_folder(store: Store) -> None:
    async with store:
        for key in ("a/b", "a/b/c", "a/bc", "a/c", "ab"):
            if not (isinstance(store, LocalStore) and key == "a/b"):  # a file system has no room for it beside a/b/c
                await store.put(key, b"x")
        assert sorted({*await keys_of(store, "a/b")} - {"a/b"}) == ["a/b/c", "a/bc"]
        assert await keys_of(store, "a/b/") == ["a/b/c"]
        assert await keys_of(store, "b") == await keys_of(store, "a/b/c/d") == await keys_of(store, "..") == []


@pytest.mark.asyncio
async def test_two_listings_are_in_the_same_order(store: Store) -> None:
    keys = ["a-b", "a.b", "a/b", "a/ä", "a/😀", "a0", "ab", "z"]
    async with store:
        for key in reversed(keys):
            await store.put(key, b"")
        listed = await keys_of(store)
        assert sorted(listed) == keys
        assert await keys_of(store) == listed


@pytest.mark.asyncio
async def test_a_missing_key_is_named(store: Store) -> None:
    async with store:
        with pytest.raises(KeyNotFound, match=r"no object 'not/there' in \w+Store") as caught:
            await store.get("not/there")
        assert caught.value.key == "not/there"
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), copy.key, str(copy)) == (KeyNotFound, "not/there", str(caught.value))


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["", "..", "../x", "a/../../x", "a/./b", "a/..", "nul\0"])
async def test_keys_that_lead_out_of_the_store_are_refused(store: Store, key: str) -> None:
    async with store:
        with pytest.raises(BadKey, match="not a key"):
            await store.get(key)
        with pytest.raises(ValueError, match="not a key"):
            await store.put(key, b"")


@pytest.mark.asyncio
async def test_keys_and_data_of_a_wrong_type_are_refused(store: Store) -> None:
    async with store:
        with pytest.raises(TypeError, match="a key must be a string, got int: 7"):
            await store.get(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="an object is bytes, got str"):
            await store.put("key", "text")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_store_works_only_inside_async_with(store: Store) -> None:
    with pytest.raises(NotOpen, match="is closed: enter it here first"):
        await store.get("key")
    async with store:
        pass
    with pytest.raises(NotOpen):
        await store.put("key", b"")
    with pytest.raises(NotOpen):
        await keys_of(store)
    with pytest.raises(NotOpen):
        await store.__aexit__(None, None, None)


@pytest.mark.asyncio
async def test_the_last_to_leave_closes(store: Store) -> None:
    async with store:
        async with store as same:
            assert same is store
            await store.put("key", b"1")
        assert await store.get("key") == b"1"


@pytest.mark.asyncio
async def test_tasks_that_enter_at_once_open_it_once(store: Store) -> None:
    async def use(number: int) -> bytes:
        async with store:
            await store.put(f"{number}", b"%d" % number)
            return await store.get(f"{number}")

    assert await asyncio.gather(*map(use, range(8))) == [b"%d" % number for number in range(8)]


def test_a_store_can_be_opened_on_one_loop_after_the_other(store: Store) -> None:
    async def once() -> bytes:
        async with store:
            await store.put("key", b"1")
            return await store.get("key")

    assert [asyncio.run(once()) for _ in range(3)] == [b"1"] * 3


@pytest.mark.asyncio
async def test_a_store_open_on_one_loop_is_closed_on_another_until_entered_there(store: Store) -> None:
    async with store:
        await store.put("key", b"1")
        with pytest.raises(NotOpen, match="on another event loop only"):
            await asyncio.to_thread(asyncio.run, store.get("key"))  # type: ignore[arg-type]

        async def enter_and_get() -> bytes:
            async with store:
                return await store.get("key")

        assert await asyncio.to_thread(asyncio.run, enter_and_get()) == b"1"
        assert await store.get("key") == b"1"


@pytest.mark.asyncio
async def test_an_open_store_pickles_as_a_closed_one(store: Store) -> None:
    async with store:
        await store.put("key", b"1")
        copy: Store = pickle.loads(pickle.dumps(store))
        assert repr(copy) == repr(store)
        with pytest.raises(NotOpen):
            await copy.get("key")
        async with copy:
            assert await copy.get("key") == b"1"


@pytest.mark.asyncio
async def test_many_gets_at_once(store: Store) -> None:
    async with store:
        await asyncio.gather(*(store.put(f"{i:03}", b"%03d" % i) for i in range(100)))
        assert await asyncio.gather(*(store.get(f"{i:03}") for i in range(100))) == [b"%03d" % i for i in range(100)]


@pytest.mark.asyncio
async def test_a_cancelled_get_harms_no_other(store: Store) -> None:
    async with store:
        await store.put("key", b"1")
        dropped, kept = (asyncio.ensure_future(store.get("key")) for _ in range(2))
        await asyncio.sleep(0)
        dropped.cancel()
        assert await kept == b"1"
        await asyncio.wait([dropped])
        assert await store.get("key") == b"1"


@pytest.mark.asyncio
async def test_no_get_is_left_waiting_when_the_store_is_closed(store: Store) -> None:
    async with store:
        await store.put("key", b"1")
        waiting = asyncio.ensure_future(store.get("key"))
        await asyncio.sleep(0)
    done, _ = await asyncio.wait([waiting], timeout=5)
    assert done
    await asyncio.gather(waiting, return_exceptions=True)


def test_every_store_is_a_store(store: Store) -> None:
    assert isinstance(store, Store)
