"""What every store does alike. A new store joins by one line in `places`."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aloader.errors import AccessDenied, BadKey, BadRange, KeyNotFound, NotOpen, ObjectChanged, StorageError
from aloader.storage import BaseStore, ObjectInfo, Request, S3Store, Store
from tests.storage.places import BUCKETS, FOLDERS, IGNORES_RANGES, MAKERS, READ_ONLY, VERSIONS, Place, kinds

ODD_KEYS = [
    "with space", "ünï/cödé/日本", "plus+plus", "per%20cent%", "a&b=c;d", "question?", "hash#", "quote'\"", "[1]*{2}",
    "dots/..a/b..", "~tilde", "line\nbreak", "x" * 200, "emoji-😀",
]  # fmt: skip

DATA = bytes(range(256)) * 40

every = kinds()
writable = kinds(lambda kind: kind not in READ_ONLY)
versioned = kinds(lambda kind: kind in VERSIONS)
ranged = kinds(lambda kind: kind not in IGNORES_RANGES)
buckets = kinds(lambda kind: kind in BUCKETS)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield MAKERS[kind](request, tmp_path, stack)


@pytest.fixture
def store(place: Place) -> Store:
    return place.make()


async def keys_of(store: Store, prefix: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix)]


def base(store: Store) -> BaseStore:
    assert isinstance(store, BaseStore)
    return store


# -- reading -----------------------------------------------------------------------------------------------------------


@every
@pytest.mark.asyncio
async def test_what_is_there_is_got_with_its_size(place: Place, store: Store) -> None:
    await place.fill({"a/b": DATA, "c": b"5"})
    async with store:
        assert await store.get("a/b") == DATA
        assert [await store.size("a/b"), await store.size("c")] == [len(DATA), 1]
        assert [await store.exists(key) for key in ("a/b", "c", "a/b/c", "d")] == [True, True, False, False]


@every
@pytest.mark.asyncio
async def test_ranges_are_slices(place: Place, store: Store) -> None:
    await place.fill({"key": DATA})
    end = len(DATA)
    async with store:
        for start, stop in [
            (None, None), (0, None), (None, 1), (0, end), (0, 1), (5, 5), (5, 9), (end - 1, end), (end - 3, None),
            (1, end - 1), (100, 1 << 40), (0, 1 << 40), (end + 9, end + 9),
        ]:  # fmt: skip
            assert await store.get("key", start, stop) == DATA[start:stop], (start, stop)


@ranged
@pytest.mark.asyncio
async def test_a_range_that_begins_at_the_end_or_behind_it_is_an_error(place: Place, store: Store) -> None:
    await place.fill({"a/key": DATA})
    end = len(DATA)
    async with store:
        for attempt in (
            store.get("a/key", end), store.get("a/key", end, end + 5), store.get("a/key", end + 10**6),
            store.get_ranges("a/key", [(0, 1), (end + 10**6, end + 10**6 + 1)]),
            store.get_ranges("a/key", [(end - 1, end), (end + 5, end + 6)]),  # near enough to be read together
        ):  # fmt: skip
            with pytest.raises(BadRange, match=rf"'a/key' in .* has {end} bytes: none from \d+") as caught:
                await attempt
            assert caught.value.key == "a/key"
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), copy.key, str(copy)) == (BadRange, "a/key", str(caught.value))
        assert await store.get("a/key", end - 1) == DATA[-1:]


@every
@pytest.mark.asyncio
async def test_ranges_that_no_object_has_are_refused(place: Place, store: Store) -> None:
    await place.fill({"key": DATA})
    async with store:
        for start, stop in [(-1, None), (5, 4), (None, -1), (-2, -1)]:
            with pytest.raises(ValueError, match="a range is 0 <= start <= stop"):
                await store.get("key", start, stop)
        with pytest.raises(ValueError, match="a range is 0 <= start <= stop"):
            await store.get_ranges("key", [(0, 1), (5, 4)])


@every
@pytest.mark.asyncio
async def test_an_empty_object_has_all_ranges_and_they_are_empty(place: Place, store: Store) -> None:
    await place.fill({"key": b""})
    async with store:
        assert await store.get("key") == await store.get("key", 0, 9) == await store.get("key", 0) == b""
        assert await store.get_ranges("key", [(0, 4), (2, 2)]) == [b"", b""]
        assert await store.size("key") == 0
        assert await store.exists("key")
        assert b"".join([chunk async for chunk in base(store).stream("key")]) == b""


@every
@pytest.mark.asyncio
async def test_several_ranges_of_one_object_come_in_the_order_asked_for(place: Place, store: Store) -> None:
    large = bytes(range(256)) * 4096
    end = len(large)
    await place.fill({"key": large})
    async with store:
        for ranges in (
            [],
            [(7, 7)],
            [(10, 20), (20, 30), (31, 40)],  # near
            [(0, 1000), (500, 600), (400, 1200), (0, 1000)],  # overlapping, and one twice
            [(end - 10, end), (0, 10), (end // 2, end // 2 + 10)],  # far, and out of order
            [(end - 10, end + 10), (3, 3), (0, 1 << 40)],  # behind the end, and empty
        ):
            expected = [large[start:stop] for start, stop in ranges]
            assert await store.get_ranges("key", ranges) == expected, ranges


@every
@pytest.mark.asyncio
async def test_many_objects_at_once_come_in_the_order_asked_for(place: Place, store: Store) -> None:
    objects = {f"{i:03}": b"%03d" % i for i in range(100)}
    await place.fill(objects)
    async with store:
        keys = [*reversed(objects), "007", "007"]
        assert await store.get_many(iter(keys)) == [objects[key] for key in keys]
        assert await store.get_many([]) == []
        assert await asyncio.gather(*map(store.get, objects)) == [*objects.values()]
        with pytest.raises(KeyNotFound, match="no object 'missing' in") as caught:
            await store.get_many(["001", "missing", "002"])
        assert caught.value.key == "missing"
        with pytest.raises(BadKey):
            await store.get_many(["001", "../002"])
        assert await store.get_many(["001"]) == [b"001"]


@every
@pytest.mark.asyncio
async def test_a_missing_key_is_named(place: Place, store: Store) -> None:
    await place.fill({"there": b""})
    reader = base(store)
    async with store:
        for attempt in (
            reader.get("not/there"), reader.get("not/there", 1, 2), reader.get_ranges("not/there", [(1, 2)]),
            reader.size("not/there"), anext(reader.stream("not/there")),
        ):  # fmt: skip
            with pytest.raises(KeyNotFound, match=r"no object 'not/there' in \w+") as caught:
                await attempt
            assert caught.value.key == "not/there"
            copy = pickle.loads(pickle.dumps(caught.value))
            assert (type(copy), copy.key, str(copy)) == (KeyNotFound, "not/there", str(caught.value))
        assert not await store.exists("not/there")


@every
@pytest.mark.asyncio
async def test_a_stream_is_the_object_in_chunks(place: Place, store: Store) -> None:
    await place.fill({"key": DATA})
    async with store:
        for chunk in (1000, len(DATA), len(DATA) - 1, 1 << 30):
            chunks = [each async for each in base(store).stream("key", chunk)]
            assert b"".join(chunks) == DATA
            assert max(map(len, chunks)) <= chunk
        async for first in base(store).stream("key", 10):
            assert first == DATA[:10]
            break  # a stream may be given up
        assert await store.get("key", 0, 3) == DATA[:3]


@every
@pytest.mark.asyncio
async def test_an_answer_says_how_large_the_object_is_and_may_be_cut(place: Place, store: Store) -> None:
    await place.fill({"key": DATA})
    async with store:
        part = await base(store).fetch(Request("key", 10, 20))
        assert (part.data, part.size) == (DATA[10:20], len(DATA))
        cut = await base(store).fetch(Request("key", most=100))
        assert (cut.data, cut.size) in ((DATA[:100], len(DATA)), (DATA, len(DATA)))
        whole = await base(store).fetch(Request("key", most=1 << 20))
        assert (whole.data, whole.size) == (DATA, len(DATA))


@versioned
@pytest.mark.asyncio
async def test_another_version_is_not_given_out_for_the_one_asked_for(place: Place, store: Store) -> None:
    await place.fill({"a/key": b"old one"})
    async with store:
        old = await base(store).fetch(Request("a/key", 0, 3))
        assert old.version
        same = await base(store).fetch(Request("a/key", 1, 3, old.version))
        assert same == (b"ld", 7, old.version, old.digests)
        await place.fill({"a/key": b"a longer new one"})
        for request in (Request("a/key", 0, None, old.version), Request("a/key", 1, 3, old.version)):
            with pytest.raises(ObjectChanged, match=r"'a/key' in .* replaced") as caught:
                await base(store).fetch(request)
            assert caught.value.key == "a/key"
            copy = pickle.loads(pickle.dumps(caught.value))
            assert (type(copy), copy.key, str(copy)) == (ObjectChanged, "a/key", str(caught.value))
        assert (await base(store).fetch(Request("a/key", 0, 3))).version != old.version


@versioned
@pytest.mark.asyncio
async def test_a_stream_is_of_one_version(place: Place, store: Store) -> None:
    await place.fill({"key": b"o" * 100})
    async with store:
        stream = base(store).stream("key", 60)
        assert await anext(stream) == b"o" * 60
        await place.fill({"key": b"n" * 101})
        try:
            assert [chunk async for chunk in stream] == [b"o" * 40]  # it has the old one open
        except ObjectChanged:
            pass


@every
@pytest.mark.asyncio
async def test_odd_keys_are_kept_as_they_are(place: Place, store: Store) -> None:
    await place.fill({key: key.encode() for key in ODD_KEYS})
    async with store:
        assert await store.get_many(ODD_KEYS) == [key.encode() for key in ODD_KEYS]
        assert await store.size(ODD_KEYS[0]) == len(ODD_KEYS[0])


@every
@pytest.mark.asyncio
async def test_keys_that_lead_out_of_the_store_are_refused(store: Store) -> None:
    reader = base(store)
    async with store:
        for key in ("", "..", "../x", "a/../../x", "a/./b", "a/..", "nul\0"):
            for attempt in (
                reader.get(key), reader.get(key, 1, 2), reader.get(key, 1, 1), reader.get_ranges(key, [(0, 1)]),
                reader.get_many([key]), reader.size(key), reader.exists(key), anext(reader.stream(key)),
                reader.put(key, b""),
            ):  # fmt: skip
                with pytest.raises(BadKey, match="not a key"):
                    await attempt


@every
@pytest.mark.asyncio
async def test_keys_and_data_of_a_wrong_type_are_refused(store: Store) -> None:
    async with store:
        with pytest.raises(TypeError, match="a key must be a string, got int: 7"):
            await store.get(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="an object is bytes, got str"):
            await store.put("key", "text")  # type: ignore[arg-type]


# -- writing and listing -----------------------------------------------------------------------------------------------


@writable
@pytest.mark.asyncio
async def test_what_was_put_is_got_and_listed_with_its_size(store: Store) -> None:
    async with store:
        await store.put("a/b", b"12345")
        assert await store.get("a/b") == b"12345"
        assert [info async for info in store.list()] == [ObjectInfo("a/b", 5)]
        assert not await store.exists("a")
        with pytest.raises(KeyNotFound):
            await store.get("a")


@writable
@pytest.mark.asyncio
async def test_a_second_put_replaces_the_first(store: Store) -> None:
    async with store:
        await store.put("key", b"long and old")
        await store.put("key", memoryview(b"new"))
        assert await store.get("key") == b"new"
        await store.put("key", bytearray(b"newest"))
        assert await store.get("key") == b"newest"


@writable
@pytest.mark.asyncio
async def test_empty_objects_and_all_bytes_come_back(store: Store) -> None:
    async with store:
        for data in (b"", bytes(range(256)) * 300):
            await store.put("key", data)
            assert await store.get("key") == data


@writable
@pytest.mark.asyncio
async def test_odd_keys_are_listed_as_they_are(store: Store) -> None:
    async with store:
        await asyncio.gather(*(store.put(key, key.encode()) for key in ODD_KEYS))
        assert sorted(await keys_of(store)) == sorted(ODD_KEYS)


@writable
@pytest.mark.asyncio
async def test_a_prefix_is_text_and_not_a_folder(store: Store, kind: str) -> None:
    async with store:
        for key in ("a/b", "a/b/c", "a/bc", "a/c", "ab"):
            if not (kind in FOLDERS and key == "a/b"):
                await store.put(key, b"x")
        assert sorted({*await keys_of(store, "a/b")} - {"a/b"}) == ["a/b/c", "a/bc"]
        assert await keys_of(store, "a/b/") == ["a/b/c"]
        assert await keys_of(store, "b") == await keys_of(store, "a/b/c/d") == await keys_of(store, "..") == []


@writable
@pytest.mark.asyncio
async def test_two_listings_are_in_the_same_order_and_one_may_be_given_up(store: Store) -> None:
    keys = ["a-b", "a.b", "a/b", "a/ä", "a/😀", "a0", "ab", "z"]
    async with store:
        for key in reversed(keys):
            await store.put(key, b"")
        async for first in store.list():
            assert first.key in keys
            break
        listed = await keys_of(store)
        assert sorted(listed) == keys
        assert await keys_of(store) == listed


# -- open and closed ---------------------------------------------------------------------------------------------------


@every
@pytest.mark.asyncio
async def test_a_store_works_only_inside_async_with(store: Store) -> None:
    reader = base(store)

    async def listed() -> object:
        return [info async for info in reader.list()]

    calls: list[Callable[[], Any]] = [
        lambda: reader.get("key"), lambda: reader.get("key", 1, 2), lambda: reader.get_ranges("key", [(1, 2)]),
        lambda: reader.get_many(["key"]), lambda: reader.size("key"), lambda: reader.exists("key"), listed,
        lambda: anext(reader.stream("key")), lambda: reader.put("key", b""), lambda: reader.fetch(Request("key")),
        lambda: reader.__aexit__(None, None, None),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(NotOpen, match="is closed: enter it here first"):
            await call()
    async with store:
        pass
    for call in calls:
        with pytest.raises(NotOpen):
            await call()


@every
@pytest.mark.asyncio
async def test_the_last_to_leave_closes(place: Place, store: Store) -> None:
    await place.fill({"key": b"1"})
    async with store:
        async with store as same:
            assert same is store
            assert await store.get("key") == b"1"
        assert await store.get("key") == b"1"
    with pytest.raises(NotOpen):
        await store.get("key")


@every
@pytest.mark.asyncio
async def test_tasks_that_enter_at_once_open_it_once(place: Place, store: Store) -> None:
    await place.fill({f"{number}": b"%d" % number for number in range(8)})

    async def use(number: int) -> bytes:
        async with store:
            return await store.get(f"{number}")

    assert await asyncio.gather(*map(use, range(8))) == [b"%d" % number for number in range(8)]


@every
def test_a_store_can_be_opened_on_one_loop_after_the_other(place: Place, store: Store) -> None:
    asyncio.run(place.fill({"key": b"1"}))

    async def once() -> bytes:
        async with store:
            return await store.get("key")

    assert [asyncio.run(once()) for _ in range(3)] == [b"1"] * 3


@every
@pytest.mark.asyncio
async def test_a_store_open_on_one_loop_is_closed_on_another_until_entered_there(place: Place, store: Store) -> None:
    await place.fill({"key": b"1"})
    async with store:
        with pytest.raises(NotOpen, match="on another event loop only"):
            await asyncio.to_thread(asyncio.run, store.get("key"))  # type: ignore[arg-type]

        async def enter_and_get() -> bytes:
            async with store:
                return await store.get("key")

        assert await asyncio.to_thread(asyncio.run, enter_and_get()) == b"1"
        assert await store.get("key") == b"1"


@every
@pytest.mark.asyncio
async def test_an_open_store_pickles_as_a_closed_one(place: Place, store: Store) -> None:
    await place.fill({"key": b"1"})
    async with store:
        copy: Store = pickle.loads(pickle.dumps(store))
        assert repr(copy) == repr(store)
        with pytest.raises(NotOpen):
            await copy.get("key")
        async with copy:
            assert await copy.get("key") == b"1"


@every
@pytest.mark.asyncio
async def test_a_cancelled_read_harms_no_other(place: Place, store: Store) -> None:
    await place.fill({"key": DATA})
    reader = base(store)
    async with store:
        for read in (
            lambda: reader.get("key"), lambda: reader.get_many(["key"] * 3),
            lambda: reader.get_ranges("key", [(0, 9)]), lambda: reader.size("key"),
        ):  # fmt: skip
            dropped = asyncio.ensure_future(read())
            kept = asyncio.ensure_future(store.get("key"))
            await asyncio.sleep(0)
            dropped.cancel()
            assert await kept == DATA
            await asyncio.wait([dropped])
            assert dropped.cancelled() or dropped.result()
        assert await store.get("key") == DATA


@every
@pytest.mark.asyncio
async def test_no_get_is_left_waiting_when_the_store_is_closed(place: Place, store: Store) -> None:
    await place.fill({"key": b"1"})
    async with store:
        waiting = asyncio.ensure_future(store.get("key"))
        await asyncio.sleep(0)
    done, _ = await asyncio.wait([waiting], timeout=5)
    assert done
    try:
        assert await waiting == b"1"
    except StorageError:
        pass


@buckets
@pytest.mark.asyncio
async def test_a_wrong_secret_is_refused_and_never_shown(place: Place, store: Store) -> None:
    await place.fill({"key": b"1"})
    assert isinstance(store, S3Store)
    async with replace(store, secret_key="not-the-secret") as wrong:
        for attempt in (wrong.get("key"), wrong.size("key"), wrong.put("key", b""), anext(wrong.list())):
            with pytest.raises(AccessDenied) as caught:
                await attempt
            assert "not-the-secret" not in f"{caught.value} {wrong!r}"
    async with store:
        assert await store.get("key") == b"1"


@every
def test_every_store_is_a_store(store: Store) -> None:
    assert isinstance(store, Store)
    assert isinstance(store, BaseStore)
