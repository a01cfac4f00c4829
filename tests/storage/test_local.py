"""What is a folder's own: paths, links, atomic writes, errors of the file system, and reads that share a thread hop."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from aloader.errors import AccessDenied, BadKey, KeyNotFound, ObjectChanged, StorageError, StoreNotFound
from aloader.storage import LocalStore, ObjectInfo, Request, files
from aloader.storage.local import LISTED_AT_ONCE


async def keys_of(store: LocalStore, prefix: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix)]


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["/etc/passwd", "//etc/passwd", "a//b", "a/", "/"])
async def test_a_key_is_a_relative_path_to_a_file(tmp_path: Path, key: str) -> None:
    async with LocalStore(tmp_path) as store:
        with pytest.raises(BadKey, match="relative paths"):
            await store.get(key)
        with pytest.raises(BadKey):
            await store.put(key, b"")


@pytest.mark.asyncio
async def test_links_in_the_folder_are_followed_and_circles_end(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"1")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "circle").symlink_to(root)
    (root / "broken").symlink_to(tmp_path / "nothing")
    async with LocalStore(root) as store:
        assert await keys_of(store) == ["link/file"]
        assert await store.get("link/file") == b"1"


@pytest.mark.asyncio
async def test_a_link_to_itself_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"1")
    (tmp_path / "folder" / "loop").symlink_to("loop")
    async with LocalStore(tmp_path) as store:
        assert await keys_of(store) == ["folder/file"]
        with pytest.raises(KeyNotFound):
            await store.size("folder/loop")


@pytest.mark.asyncio
async def test_lost_and_found_is_passed_over_where_it_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.scandir

    def denied(path: str) -> Any:  # chmod does not stop root
        if path.rstrip("/").endswith(("/lost+found", "/secret")):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return look(path)

    (tmp_path / "lost+found").mkdir()
    (tmp_path / "file").write_bytes(b"1")
    monkeypatch.setattr(os, "scandir", denied)
    async with LocalStore(tmp_path) as store:
        assert await keys_of(store) == ["file"]
        with pytest.raises(AccessDenied, match=r"may not list 'lost\+found'"):
            await keys_of(store, "lost+found/")
        (tmp_path / "secret").mkdir()
        with pytest.raises(AccessDenied, match="may not list 'secret'"):
            await keys_of(store)


@pytest.mark.asyncio
async def test_folders_and_what_is_no_file_are_not_objects(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    async with LocalStore(tmp_path) as store:
        assert await keys_of(store) == []
        with pytest.raises(KeyNotFound):
            await store.get("folder")
        assert await store.get("fifo") == b""  # and above all, it does not wait for a writer


@pytest.mark.asyncio
async def test_a_missing_folder_is_said_and_a_put_makes_it(tmp_path: Path) -> None:
    async with LocalStore(tmp_path / "new") as store:
        with pytest.raises(StoreNotFound, match="there is no folder"):
            await keys_of(store)
        with pytest.raises(KeyNotFound, match="the folder does not exist"):
            await store.get("key")
        await store.put("a/b", b"1")
        assert await keys_of(store) == ["a/b"]
    async with LocalStore(tmp_path / "new" / "a" / "b") as store:
        with pytest.raises(StoreNotFound, match=r"it is a file, and '.*/new/a' its folder"):
            await keys_of(store)


@pytest.mark.asyncio
async def test_a_reader_never_sees_a_part_of_a_write(tmp_path: Path) -> None:
    old, new = b"o" * 100_000, b"n" * 100_000
    async with LocalStore(tmp_path) as store:
        await store.put("key", old)
        for data in (new, old, new):
            write = asyncio.ensure_future(store.put("key", data))
            while not write.done():
                assert await store.get("key") in (old, new)
            await write


@pytest.mark.asyncio
async def test_a_write_that_fails_leaves_the_old_object_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with LocalStore(tmp_path) as store:
        await store.put("a/key", b"old")
        monkeypatch.setattr(os, "replace", no_space)
        with pytest.raises(StorageError, match=r"cannot write 'a/key' in LocalStore\(.*\): No space left on device"):
            await store.put("a/key", b"new")
        assert await store.get("a/key") == b"old"
        assert os.listdir(tmp_path / "a") == ["key"]


@pytest.mark.asyncio
async def test_files_that_do_not_tell_their_size_are_read_whole() -> None:
    async with LocalStore("/proc/self") as store:
        assert (await store.get("status")).startswith(b"Name:")


@pytest.mark.asyncio
async def test_what_is_more_than_one_call_gives_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []
    pread, preadv = os.pread, os.preadv

    def counted(descriptor: int, nbytes: int, place: int) -> bytes:
        wanted.append(nbytes)
        return pread(descriptor, min(nbytes, files.READ_BYTES), place)

    def scattered(descriptor: int, buffers: Any, place: int, *flags: int) -> int:
        wanted.append(sum(map(len, buffers)))
        return preadv(descriptor, buffers, place, *flags)

    (tmp_path / "key").write_bytes(b"0123456789")
    monkeypatch.setattr(files, "READ_BYTES", 4)
    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(os, "preadv", scattered)
    async with LocalStore(tmp_path) as store:
        assert await store.get("key") == b"0123456789"
    assert wanted == [4, 4, 2]


@pytest.mark.asyncio
async def test_unfinished_writes_of_others_are_not_listed(tmp_path: Path) -> None:
    async with LocalStore(tmp_path) as store:
        await store.put("a/key", b"")
        (tmp_path / "a" / ".aloader-0123456789abcdef").write_bytes(b"half")
        (tmp_path / "a" / ".hidden").write_bytes(b"")
        assert await keys_of(store) == ["a/.hidden", "a/key"]


@pytest.mark.asyncio
async def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    async with LocalStore(tmp_path) as store:
        await store.put("key", b"")
        monkeypatch.setattr(os, "open", denied)  # chmod does not stop root
        with pytest.raises(AccessDenied, match="may not read 'key' in") as caught:
            await store.get("key")
    assert isinstance(caught.value, PermissionError)


@pytest.mark.asyncio
async def test_a_file_in_place_of_a_folder_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    async with LocalStore(tmp_path) as store:
        await store.put("a", b"")
        with pytest.raises(KeyNotFound):
            await store.get("a/b")
        with pytest.raises(StorageError, match="cannot write 'a/b'"):
            await store.put("a/b", b"")


@pytest.mark.asyncio
async def test_a_listing_of_more_than_one_piece_is_whole(tmp_path: Path) -> None:
    count = LISTED_AT_ONCE + 5
    for number in range(count):
        (tmp_path / f"{number:05}").touch()
    async with LocalStore(tmp_path) as store:
        assert [info async for info in store.list()] == [ObjectInfo(f"{number:05}", 0) for number in range(count)]
        async for info in store.list():
            assert info.key == "00000"
            break  # a listing may be given up


@pytest.mark.asyncio
async def test_no_thread_is_left_when_it_is_closed(tmp_path: Path) -> None:
    before = threading.active_count()
    async with LocalStore(tmp_path) as store:
        await store.put("key", b"")
        await asyncio.gather(*(store.get("key") for _ in range(50)))
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_a_relative_folder_stays_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("data")
    monkeypatch.chdir("/")
    assert repr(store) == f"LocalStore('{tmp_path}/data')"


@pytest.mark.asyncio
async def test_a_listing_tells_the_version_that_a_read_may_ask_for(tmp_path: Path) -> None:
    async with LocalStore(tmp_path) as store:
        await store.put("key", b"12345")
        [info] = [info async for info in store.list()]
        assert (await store.fetch(Request("key", 1, 3, info.version))).data == b"23"
        os.utime(tmp_path / "key", ns=(0, 0))  # written to, and as long as before
        with pytest.raises(ObjectChanged):
            await store.fetch(Request("key", 1, 3, info.version))


@pytest.mark.asyncio
async def test_of_a_large_file_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    """It is a TiB of nothing: anything else would fail, or take for ever."""
    end = 1 << 40
    with open(tmp_path / "key", "wb") as file:
        file.seek(end - 3)
        file.write(b"end")
    async with LocalStore(tmp_path) as store:
        assert await store.get("key", end - 4) == b"\0end"
        assert await store.get_ranges("key", [(end - 2, end), (0, 2)]) == [b"nd", b"\0\0"]
        assert (await store.fetch(Request("key", most=10))) == (bytes(10), end, store_version(tmp_path / "key"), {})
        assert await store.size("key") == end
        assert await anext(store.stream("key", 7)) == bytes(7)


def store_version(path: Path) -> str:
    return files.version_of(path.stat())


@pytest.mark.asyncio
async def test_a_read_that_gives_less_than_asked_for_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 40
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, start: pread(descriptor, min(size, 100), start))
    monkeypatch.setattr(files, "READ_BYTES", 1000)
    async with LocalStore(tmp_path) as store:
        await store.put("key", data)
        assert await store.get("key") == (await store.fetch(Request("key"))).data == data
        assert await store.get("key", 7, 9000) == data[7:9000]


@pytest.mark.asyncio
async def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalStore(tmp_path) as store:
        await store.put("key", b"12345")
        monkeypatch.setattr(os, "pread", lambda *_: b"1")
        monkeypatch.setattr(os, "preadv", lambda *_: 0)
        with pytest.raises(ObjectChanged, match="has been replaced or cut while it was read"):
            await store.get("key")


@pytest.mark.asyncio
async def test_a_stale_handle_is_looked_up_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = [errno.ESTALE]
    opened = os.open

    def open_stale(*arguments: Any) -> int:
        if stale:
            raise OSError(stale.pop(), "stale")
        return opened(*arguments)

    async with LocalStore(tmp_path, profile="nfs") as store:
        await store.put("key", b"1")
        monkeypatch.setattr(os, "open", open_stale)
        assert (await store.fetch(Request("key"))).data == b"1"
        stale += [errno.ESTALE]
        assert await store.get("key") == b"1"
        stale += [errno.ESTALE] * 2
        with pytest.raises(StorageError, match="stale"):
            await store.fetch(Request("key"))


@pytest.mark.asyncio
async def test_hints_and_reading_ahead_change_nothing_but_the_pace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    async with LocalStore(tmp_path, readahead=True) as store:
        for number in range(20):
            await store.put(f"{number}", b"%d" % number)
        await store.hint([*map(str, range(20)), "missing", "fifo"])
        await store.hint([])
        assert await store.get_many(map(str, range(20))) == [b"%d" % number for number in range(20)]
        assert await store.get_ranges("12", [(1, 2), (0, 1)]) == [b"2", b"1"]
        with pytest.raises(BadKey):
            await store.hint(["../x"])
    assert repr(store) == f"LocalStore({str(tmp_path)!r}, readahead=True)"
    assert repr(LocalStore("/x", profile="nfs")) == "LocalStore('/x', profile='nfs')"
    with pytest.raises(ValueError, match="profile= is 'local' or 'nfs', got 'smb'"):
        LocalStore("/x", profile="smb")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_many_slow_files_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a network: each read waits for five others, in other threads than its own."""
    monkeypatch.setattr("aloader.storage.hops.SLOW", -1.0)
    together = threading.Barrier(6, timeout=5)
    read, first = files.read_quickly, iter([True])

    def slow(*arguments: Any) -> bytes | None:
        if not next(first, False):  # the first one is slow: the clock says so
            together.wait()
        return read(*arguments)

    async with LocalStore(tmp_path, profile="nfs") as store:
        await store.put("key", b"1")
        monkeypatch.setattr(files, "read_quickly", slow)
        assert await store.get_many(["key"] * 7) == [b"1"] * 7
