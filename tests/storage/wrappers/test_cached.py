"""A cache in front of a store: what is asked of the store, and that nothing else is different from it."""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aloader.errors import CacheWarning, KeyNotFound, NotOpen, ObjectChanged, StorageError
from aloader.options import MIB
from aloader.storage import BaseStore, Cached, FsspecStore, HTTPStore, LocalStore, MemoryStore, S3Store, Store
from aloader.storage.base import Request, Response
from aloader.storage.wrappers import cache_filling
from aloader.storage.wrappers.wrapper import Wrapper

OBJECTS = {f"{number}": b"%03d" % number * 100 for number in range(50)}

pytestmark = pytest.mark.asyncio


class Counting(MemoryStore):
    """Counts what it is asked. Its versions are numbers, if it has some."""

    def __init__(self, objects: dict[str, bytes] = OBJECTS) -> None:
        super().__init__(objects)
        self.asked: list[Request] = []
        self.versions: dict[str, str] = {}

    async def fetch(self, request: Request) -> Response:
        self.asked.append(request)
        version = self.versions.get(request.key, "")
        if request.version not in ("", version):
            raise ObjectChanged(f"{request.key} has changed", request.key)
        return (await super().fetch(request))._replace(version=version)


class Held(Counting):
    """Answers when it is let."""

    def __init__(self, objects: dict[str, bytes] = OBJECTS) -> None:
        super().__init__(objects)
        self.let = asyncio.Event()
        self.began = asyncio.Event()

    async def fetch(self, request: Request) -> Response:
        self.began.set()
        await self.let.wait()
        return await super().fetch(request)


async def test_a_second_epoch_makes_no_request(tmp_path: Path) -> None:
    store = Counting()
    async with Cached(store, tmp_path) as cached:
        for _ in range(2):
            assert await cached.get_many(OBJECTS) == list(OBJECTS.values())
            await cached.flush()
        assert len(store.asked) == len(OBJECTS)
        assert await cached.get("7", 3, 9) == b"007007"
        assert await cached.size("7") == 300
        stats = cached.stats()
        assert (stats.hits, stats.misses, stats.kept, stats.left_out) == (51, 50, 50, 0)
        assert len(store.asked) == len(OBJECTS)


async def test_what_was_read_is_there_when_it_is_opened_again_by_copies_too(tmp_path: Path) -> None:
    store = Cached(Counting(), tmp_path)
    async with store as cached:
        await cached.get_many(OBJECTS)
    copy: Cached = pickle.loads(pickle.dumps(store))
    asked: list[Request] = copy.store.asked  # type: ignore[attr-defined]
    asked.clear()
    async with copy:
        assert await copy.get_many(OBJECTS) == list(OBJECTS.values())
    assert asked == []


async def test_tasks_that_ask_for_the_same_share_one_fetch(tmp_path: Path) -> None:
    store = Held()
    async with Cached(store, tmp_path) as cached:
        tasks = [asyncio.ensure_future(cached.get("7")) for _ in range(10)]
        await store.began.wait()
        store.let.set()
        assert await asyncio.gather(*tasks, cached.get("7")) == [OBJECTS["7"]] * 11
        assert len(store.asked) == 1
        assert cached.stats().joined >= 9


async def test_who_is_cancelled_takes_the_fetch_from_nobody_else(tmp_path: Path) -> None:
    store = Held()
    async with Cached(store, tmp_path) as cached:
        dropped, kept = (asyncio.ensure_future(cached.get("7")) for _ in range(2))
        await store.began.wait()
        dropped.cancel()
        await asyncio.wait([dropped])
        store.let.set()
        assert await kept == OBJECTS["7"]
        assert len(store.asked) == 1


async def test_a_fetch_that_nobody_waits_for_ends_and_the_next_begins_anew(tmp_path: Path) -> None:
    store = Held()
    async with Cached(store, tmp_path) as cached:
        dropped = asyncio.ensure_future(cached.get("7"))
        await store.began.wait()
        dropped.cancel()
        await asyncio.wait([dropped])
        store.let.set()
        assert await cached.get("7") == OBJECTS["7"]


async def test_who_waits_when_it_is_closed_is_told(tmp_path: Path) -> None:
    store = Held()
    async with Cached(store, tmp_path) as cached:
        waiting = asyncio.ensure_future(cached.get("7"))
        await store.began.wait()
    with pytest.raises(NotOpen, match="closed while '7' was being fetched"):
        await waiting


async def test_errors_are_the_stores_and_are_not_kept(tmp_path: Path) -> None:
    store = Counting()
    async with Cached(store, tmp_path) as cached:
        for _ in range(2):
            with pytest.raises(KeyNotFound, match="no object 'x'"):
                await cached.get("x")
            with pytest.raises(StorageError, match="none from 1000"):
                await cached.get("7", 1000, 1001)
        assert len(store.asked) == 4


async def test_ranges_are_kept_as_they_are_asked_for(tmp_path: Path) -> None:
    store = Counting({"big": bytes(range(200))})
    async with Cached(store, tmp_path) as cached:
        for _ in range(2):
            parts = await asyncio.gather(cached.get("big", 0, 100), cached.get("big", 100, 200))
            assert b"".join(parts) == bytes(range(200))
            await cached.flush()
        assert len(store.asked) == 2


async def test_an_answer_has_the_version_of_the_store(tmp_path: Path) -> None:
    store = Counting()
    store.versions["7"] = "v1"
    async with Cached(store, tmp_path) as cached:
        first = await cached.fetch(Request("7"))
        await cached.flush()
        assert await cached.fetch(Request("7", 0, None, "v1")) == first == Response(OBJECTS["7"], 300, "v1")
        assert len(store.asked) == 1


async def test_who_asks_for_a_version_that_has_gone_makes_the_cache_forget_it(tmp_path: Path) -> None:
    store = Counting()
    store.versions["7"] = "v1"
    async with Cached(store, tmp_path) as cached:
        await cached.get("7", 0, 10)
        await cached.flush()
        store.versions["7"] = "v2"
        with pytest.raises(ObjectChanged):
            await cached.fetch(Request("7", 10, 20, "v1"))
        assert (await cached.fetch(Request("7", 0, 10))).version == "v2"


async def test_a_put_is_seen_at_once(tmp_path: Path) -> None:
    async with Cached(Counting(), tmp_path) as cached:
        assert await cached.get("7") == OBJECTS["7"]
        await cached.put("7", b"new")
        assert await cached.get("7") == b"new"
        assert await cached.size("7") == 3


async def test_what_a_put_overtakes_is_not_kept(tmp_path: Path) -> None:
    store = Held()
    async with Cached(store, tmp_path) as cached:
        old = asyncio.ensure_future(cached.get("7"))
        await store.began.wait()
        await cached.put("7", b"new")
        store.let.set()
        await old
        assert await cached.get("7") == b"new"


async def test_entries_are_compared_with_the_store_when_they_are_old(tmp_path: Path) -> None:
    store = Counting()
    store.versions = dict.fromkeys("567", "v1")
    async with Cached(store, tmp_path, revalidate=0) as cached:
        await cached.get_many("4567")
        await cached.flush()
        store.asked.clear()
        store.versions["6"] = "v2"
        store._objects["6"] = b"new"
        del store._objects["7"]
        assert await cached.get_many("456") == [OBJECTS["4"], OBJECTS["5"], b"new"]
        with pytest.raises(KeyNotFound):
            await cached.get("7")
        asked = {(request.key, request.stop) for request in store.asked if request.key != "7"}
        assert asked == {("4", None), ("5", 1), ("6", 1), ("6", None)}  # "4" has no version
        await cached.flush()
    async with Cached(store, tmp_path, revalidate=3600, namespace=cached.namespace) as young:
        store.asked.clear()
        assert await young.get("5") == OBJECTS["5"]
        assert store.asked == []


async def test_hinted_objects_are_fetched_ahead(tmp_path: Path) -> None:
    store = Held()
    async with Cached(store, tmp_path) as cached:
        cached.hint(["missing", "1", "2", "3"], fetch=2)
        await store.began.wait()
        assert store.asked == []
        store.let.set()
        assert cached._opened.get()._hinted is not None
        await asyncio.wait([cached._opened.get()._hinted])
        await cached.get_many("123")
        assert [request.key for request in store.asked] == ["missing", "1", "2", "3"]


async def test_a_hint_of_what_are_no_keys_is_an_error_at_once(tmp_path: Path) -> None:
    async with Cached(Counting(), tmp_path) as cached:
        for wrong, says in (("123", r"hint takes several keys, got a string: \['123'\]"), ([1], "must be a string")):
            with pytest.raises(TypeError, match=says):
                cached.hint(wrong, fetch=1)  # type: ignore[arg-type]


async def test_a_new_hint_ends_the_old_one_and_closing_ends_it_too(tmp_path: Path) -> None:
    store = Held()
    async with Cached(store, tmp_path) as cached:
        cached.hint(OBJECTS, fetch=3)
        await store.began.wait()
        cached.hint(["7"])
        store.let.set()
        assert await cached.get("7") == OBJECTS["7"]
        assert len(store.asked) < 10
        cached.hint(OBJECTS, fetch=3)


async def test_what_the_disk_is_too_slow_for_is_not_kept_unless_it_is_to_be_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_filling, "AHEAD", 1000)
    for complete in (False, True):
        async with Cached(Counting(), tmp_path, complete=complete) as cached:
            assert await cached.get_many(OBJECTS) == list(OBJECTS.values())
            await cached.flush()
            stats = cached.stats()
            assert stats.kept + stats.left_out == len(OBJECTS)
            assert (stats.left_out == 0) == complete


# -- a disk that refuses ---------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to let any file of this process grow beyond that (EFBIG), as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_with_a_lower_limit_there_is_room_again_where_there_was_none_for_anything(tmp_path: Path) -> None:
    async with Cached(Counting(), tmp_path) as cached:
        await cached.get("1")
    os.truncate(tmp_path / "filled", MIB)  # it cannot be appended to
    with files_of_at_most(MIB // 2):
        async with Cached(Counting(), tmp_path, limit=MIB) as cached:
            await cached.get("2")
            await cached.flush()
            assert cached.stats().kept == 1


async def test_reading_goes_on_when_the_disk_refuses_and_it_is_said_once(tmp_path: Path) -> None:
    store = Counting()
    async with Cached(store, tmp_path) as cached:
        with files_of_at_most(100):
            await cached.get("0")
            await cached.flush()
            with pytest.warns(CacheWarning, match=rf"the cache in '{tmp_path}' cannot be written to: File too large"):
                await cached.get("1")
            cached._opened.get().pause._until = 0.0  # a minute later
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert await cached.get_many(OBJECTS) == list(OBJECTS.values())
                await cached.flush()
        assert cached.stats().kept == 0
        assert cached.stats().refused >= 2
        assert list((tmp_path / "unfinished").iterdir()) == []
        cached._opened.get().pause._until = 0.0
        await cached.get_many(OBJECTS)
        await cached.flush()
        store.asked.clear()
        await cached.get_many(OBJECTS)
        assert store.asked == []


async def test_what_was_not_said_while_it_was_open_is_said_when_it_is_closed(tmp_path: Path) -> None:
    cached = await Cached(Counting(), tmp_path).__aenter__()
    (tmp_path / "unfinished").rmdir()
    (tmp_path / "unfinished").write_text("")
    await cached.get("0")
    with pytest.warns(CacheWarning, match="Not a directory"):
        await cached.__aexit__()


async def test_a_disk_that_refuses_at_first_is_used_when_it_does_no_more(tmp_path: Path) -> None:
    store = Counting()
    with files_of_at_most(0):
        cached = await Cached(store, tmp_path / "cache").__aenter__()
    with pytest.warns(CacheWarning, match="cannot be written to: File too large"):
        await cached.get("0")
    cached._opened.get().pause._until = 0.0
    await cached.get("1")
    await cached.flush()
    assert await cached.get("1") == OBJECTS["1"]
    assert len(store.asked) == 2
    await cached.__aexit__()


async def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot make a cache in '.*/file/cache': Not a directory"):
        await Cached(Counting(), tmp_path / "file" / "cache").__aenter__()
    with pytest.raises(StorageError, match=r"cannot make a cache in '.*/file': there is a file of this name"):
        await Cached(Counting(), tmp_path / "file").__aenter__()
    with pytest.raises(StorageError, match="is no cache of aloader: it has 'file' in it"):
        await Cached(Counting(), tmp_path).__aenter__()


# -- which store -----------------------------------------------------------------------------------------------------


async def test_two_stores_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    for name in "ab":
        async with LocalStore(tmp_path / name) as store:
            await store.put("key", name.encode())
    for _ in range(2):
        for name in "ab":
            async with Cached(LocalStore(tmp_path / name), tmp_path / "cache") as cached:
                assert await cached.get("key") == name.encode()
    one, other = (Cached(MemoryStore({"key": data}), tmp_path / "cache") for data in (b"1", b"2"))
    async with one, other:
        assert [await one.get("key"), await other.get("key")] == [b"1", b"2"]


async def test_a_subclass_that_reads_otherwise_has_entries_of_its_own(tmp_path: Path) -> None:
    class Upper(LocalStore):
        async def fetch(self, request: Request) -> Response:
            answer = await super().fetch(request)
            return answer._replace(data=answer.data.upper())

    (tmp_path / "key").write_text("text")
    for _ in range(2):
        for store, expected in ((LocalStore(tmp_path), b"text"), (Upper(tmp_path), b"TEXT")):
            async with Cached(store, tmp_path / "cache") as cached:
                assert await cached.get("key") == expected


async def test_what_is_around_the_store_does_not_matter(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert Cached(Wrapper(store), tmp_path).namespace == Cached(store, tmp_path).namespace


async def test_a_store_that_does_not_say_where_it_is_needs_a_namespace(tmp_path: Path) -> None:
    class Silent(Counting):
        __repr__ = object.__repr__
        identity = BaseStore.identity

    class Elsewhere(Wrapper):  # a wrapper of somebody else may change what comes
        pass

    with pytest.raises(ValueError, match="a Silent does not say by its repr where it is"):
        Cached(Silent(), tmp_path)
    assert Cached(Silent(), tmp_path, namespace="mine").namespace == "mine"
    assert Cached(Elsewhere(LocalStore("/x")), tmp_path).namespace.endswith("Elsewhere(LocalStore('/x'))")


async def test_where_a_store_is_counts_and_what_is_secret_is_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def namespace(store: Store) -> str:
        return Cached(store, tmp_path).namespace

    one, other = (HTTPStore(f"https://host/data?set={name}&secret=hunter2") for name in "ab")
    assert namespace(one) != namespace(other)
    assert "hunter2" not in namespace(one)
    gcs = [FsspecStore("memory://x", project=project) for project in "ab"]
    assert namespace(gcs[0]) != namespace(gcs[1])
    here = namespace(S3Store("bucket"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert namespace(S3Store("bucket")) != here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": "much"}, 'limit should be a positive number of bytes or text such as "8GiB"'),
        ({"limit": 0}, "limit should be a positive"),
        ({"revalidate": -1}, "revalidate is seconds"),
    ],
)
async def test_arguments_are_checked_at_once(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cached(MemoryStore(), tmp_path, **arguments)
    with pytest.raises(TypeError, match="Cached goes around a store, got str"):
        Cached("s3://bucket", tmp_path)  # type: ignore[arg-type]


async def test_its_repr_says_what_is_where(tmp_path: Path) -> None:
    assert repr(Cached(LocalStore("/data"), tmp_path)) == f"Cached(LocalStore('/data'), {str(tmp_path)!r})"
