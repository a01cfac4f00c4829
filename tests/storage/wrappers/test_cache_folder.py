"""A cache's folder: what is wrong there is never read, what is not the cache's never touched, and it is bounded."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader.errors import StorageError
from aloader.storage.base import Request, Response
from aloader.storage.wrappers.cache_entry import BLOCK, Entry, Torn, checksums, front_of, front_size, parsed, stem
from aloader.storage.wrappers.cache_folder import FILLED, MARKER, UNFINISHED, CacheFolder
from aloader.storage.wrappers.cache_plan import ABANDONED, Owner, Pause, Used, is_abandoned, to_evict

ROOM = 1 << 30


def opened(path: Path, limit: int = ROOM, namespace: str = "store") -> CacheFolder:
    folder = CacheFolder(path, limit, namespace)
    folder.prepare()
    return folder


def keep(folder: CacheFolder, key: str, data: bytes, version: str = "") -> bool:
    return folder.write(Request(key), Response(data, len(data), version))


def read(folder: CacheFolder, *request: object) -> bytes | None:
    found = folder.read(Request(*request))  # type: ignore[arg-type]
    return None if found is None else found.response.data


def files(path: Path) -> list[Path]:
    return sorted(path.glob("??/*"))


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in files(path))


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    response = Response(b"12345", 5, '"v1"', {"md5": "ab"})
    assert folder.write(Request("a/b"), response)
    found = folder.read(Request("a/b"))
    assert found is not None
    assert found.response == response
    assert folder.size("a/b") == 5
    assert read(folder, "a/b", 1, 3) == b"23"
    assert read(folder, "a/b", 1, 99) == b"2345"
    assert read(folder, "a/b", 0, None, "", 2) == b"12"
    assert read(folder, "a/b", 5) is None  # the store says what is wrong with it
    assert read(folder, "a/c") is None


def test_other_stores_have_entries_of_their_own(tmp_path: Path) -> None:
    keep(opened(tmp_path, namespace="one"), "key", b"1")
    keep(opened(tmp_path, namespace="two"), "key", b"2")
    assert read(opened(tmp_path, namespace="one"), "key") == b"1"
    assert read(opened(tmp_path, namespace="three"), "key") is None


def test_a_version_is_answered_with_that_version_only(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    keep(folder, "key", b"old", "v1")
    assert read(folder, "key", 0, None, "v1") == read(folder, "key") == b"old"
    assert read(folder, "key", 0, None, "v2") is None


def test_ranges_are_found_as_they_were_asked_for(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    assert folder.write(Request("key", 10, 20), Response(b"x" * 10, 1000))
    assert folder.write(Request("key", 990, 1200), Response(b"y" * 10, 1000))
    assert folder.write(Request("key", 0, None, "", 5), Response(b"z" * 5, 1000))
    assert read(folder, "key", 10, 20) == b"x" * 10
    assert read(folder, "key", 990, 1200) == b"y" * 10
    assert read(folder, "key", 0, None, "", 5) == b"z" * 5
    assert read(folder, "key") is read(folder, "key", 10, 21) is folder.size("key") is None


def test_an_answer_that_is_too_short_is_not_kept(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    assert not folder.write(Request("key"), Response(b"123", 5))
    assert not folder.write(Request("key", 2, 5), Response(b"12", 5))
    assert files(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_ranges_out_of_whole_objects_are_right(tmp_path: Path, size: int) -> None:
    folder, data = opened(tmp_path), random.Random(0).randbytes(size)
    keep(folder, "key", data)
    assert read(folder, "key") == data
    for start, stop in [(0, 1), (BLOCK - 1, BLOCK + 1), (BLOCK, 2 * BLOCK), (size - 1, size)]:
        if 0 <= start < size:
            assert read(folder, "key", start, stop) == data[start:stop]


def test_whatever_bit_is_wrong_the_entry_is_none_and_goes(tmp_path: Path) -> None:
    folder, data = opened(tmp_path), b"object's bytes"
    keep(folder, "key", data)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    end = whole.rindex(b"}") + 1  # behind it there are spaces, which the checksum covers too
    for at in [*range(8, end), len(whole) - len(data) - 1, *range(len(whole) - len(data), len(whole))]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert read(folder, "key") is None, at
        assert not path.exists(), at
    for cut in [*range(0, len(whole), 7), len(whole) - 1]:  # the power went off
        for rest in (b"", bytes(len(whole) - cut)):
            path.write_bytes(whole[:cut] + rest)
            assert read(folder, "key") in (None, data if cut == len(whole) else None)
    path.write_bytes(whole + b"x")
    assert read(folder, "key") is None


def test_damage_is_found_in_the_blocks_that_are_read(tmp_path: Path) -> None:
    folder, data = opened(tmp_path), random.Random(0).randbytes(3 * BLOCK)
    keep(folder, "key", data)
    (path,) = files(tmp_path)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([data[-1] ^ 1]))
    assert read(folder, "key", 5, 10) == data[5:10]
    assert read(folder, "key", 2 * BLOCK + 5, 2 * BLOCK + 10) is None
    assert not path.exists()


def test_an_entry_under_another_ones_name_is_not_taken_for_it(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    keep(folder, "a", b"1")
    (path,) = files(tmp_path)
    other = tmp_path / f"{stem('store', 'b')}.entry"
    other.parent.mkdir(exist_ok=True)
    path.rename(other)
    assert read(folder, "b") is None
    assert folder.size("b") is None


@given(st.binary(max_size=200))
def test_nothing_but_a_front_is_one(begin: bytes) -> None:
    with pytest.raises(Torn):
        parsed(begin[: front_size(begin)])


@settings(max_examples=30)
@given(st.text(st.characters(exclude_categories=()), max_size=20), st.binary(max_size=100), st.text(max_size=5))
def test_a_front_says_what_was_put_in(key: str, data: bytes, version: str) -> None:
    entry = Entry("store", key, 0, len(data), len(data), version, {"md5": "x"}, checksums(data))
    front = front_of(entry)
    assert front_size(front) == len(front)
    assert parsed(front) == entry


# -- bounds ----------------------------------------------------------------------------


def test_it_never_holds_more_than_its_limit_and_the_last_used_stay(tmp_path: Path) -> None:
    limit = 40 * 4096
    folder = opened(tmp_path, limit)
    for number in range(100):
        keep(folder, f"{number}", bytes(2000))
        assert len(files(tmp_path)) * 4096 <= limit
    assert read(folder, "99") == bytes(2000)
    assert read(folder, "0") is None
    assert len(files(tmp_path)) > 30


def test_what_was_used_stays_and_what_was_not_goes(tmp_path: Path) -> None:
    folder = opened(tmp_path, 40 * 4096)
    for number in range(30):
        keep(folder, f"{number}", bytes(2000))
        os.utime(tmp_path / f"{stem('store', f'{number}')}.entry", (1000 + number, 1000))
    assert read(folder, "3") is not None
    for number in range(30, 45):
        keep(folder, f"{number}", bytes(2000))
    assert read(folder, "3") is not None
    assert read(folder, "2") is read(folder, "4") is None


def test_of_what_is_hinted_the_last_goes_first(tmp_path: Path) -> None:
    folder = opened(tmp_path, 40 * 4096)
    for number in range(30):
        keep(folder, f"{number}", bytes(2000))
    folder.touch(f"{number}" for number in (5, 6, 7))
    times = [os.stat(tmp_path / f"{stem('store', f'{number}')}.entry").st_atime for number in (5, 6, 7, 8)]
    assert times == sorted(times, reverse=True)


def test_an_object_as_large_as_the_cache_is_not_kept(tmp_path: Path) -> None:
    folder = opened(tmp_path, 10 * 4096)
    keep(folder, "small", b"1")
    assert not keep(folder, "large", bytes(10 * 4096))
    assert read(folder, "small") == b"1"


def test_a_folder_whose_length_is_not_known_is_measured(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for number in range(10):
        keep(folder, f"{number}", bytes(5000))
    assert (tmp_path / FILLED).stat().st_size == 20
    (tmp_path / FILLED).unlink()
    opened(tmp_path)
    assert (tmp_path / FILLED).stat().st_size == 20


def test_a_lower_limit_empties_it_with_the_next_write(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for number in range(50):
        keep(folder, f"{number}", bytes(2000))
    keep(opened(tmp_path, 20 * 4096), "new", b"1")
    assert len(files(tmp_path)) <= 18


def test_what_to_evict_is_the_oldest_until_the_rest_fits() -> None:
    found = [Used("b", 10, 2.0), Used("c", 10, 3.0), Used("a", 10, 1.0)]
    assert [used.path for used in to_evict(found, 15)] == ["a", "b"]
    assert to_evict(found, 30) == []
    assert len(to_evict(found, -1)) == 3


# -- what is not the cache's ----------------------------------------------------------------------------


def test_a_folder_with_other_things_in_it_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(StorageError, match=r"is no cache of aloader: it has 'thesis.tex' in it.*name a new folder"):
        opened(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_foreign_files_are_neither_read_nor_replaced_nor_evicted(tmp_path: Path) -> None:
    folder = opened(tmp_path, 40 * 4096)
    foreign = tmp_path / f"{stem('store', 'key')}.entry"
    foreign.parent.mkdir()
    foreign.write_bytes(b"somebody's diary, which has the name of an entry" * 3000)
    aside = foreign.parent / "notes.txt"
    aside.write_text("x")
    link = foreign.parent / ("0" * 30 + ".entry")
    link.symlink_to(tmp_path.parent)
    os.utime(foreign, (1, 1))
    assert read(folder, "key") is None
    assert not keep(folder, "key", b"1")
    for number in range(100):
        keep(folder, f"{number}", bytes(2000))
    folder.evict()
    folder.forget("key")
    assert foreign.read_bytes().startswith(b"somebody's diary")
    assert aside.exists()
    assert link.is_symlink()


def test_what_is_left_of_an_entry_after_a_loss_of_power_is_replaced(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    path = tmp_path / f"{stem('store', 'key')}.entry"
    path.parent.mkdir()
    for left in (b"", bytes(1000)):
        path.write_bytes(left)
        assert keep(folder, "key", b"1")
        assert read(folder, "key") == b"1"


def test_a_cache_that_is_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    folder = opened(tmp_path / "cache")
    (tmp_path / "cache").rename(tmp_path / "gone")
    assert read(folder, "key") is None
    assert keep(folder, "key", b"1")
    assert read(folder, "key") == b"1"
    assert (tmp_path / "cache" / MARKER).exists()


def test_what_is_left_where_a_cache_is_deleted_while_it_is_written_to_does_not_forbid_the_next(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    keep(folder, "key", b"1")
    (tmp_path / MARKER).unlink()
    assert keep(folder, "other", b"2")
    assert (read(opened(tmp_path), "key"), read(folder, "other")) == (b"1", b"2")


@pytest.mark.parametrize("name", ["00/diary", "filled", "unfinished/symphony", "aloader"])
def test_a_folder_in_which_something_is_called_as_in_a_cache_is_refused_too(tmp_path: Path, name: str) -> None:
    other = tmp_path / name
    other.parent.mkdir(exist_ok=True)
    other.write_text("somebody's")
    with pytest.raises(StorageError, match="is no cache of aloader"):
        opened(tmp_path)
    assert other.read_text() == "somebody's"


def test_forgotten_is_all_of_an_object_and_nothing_else(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    keep(folder, "a", b"1")
    keep(folder, "b", b"1")
    folder.write(Request("a", 5, 10), Response(b"12345", 100))
    folder.forget("a")
    assert read(folder, "a") is read(folder, "a", 5, 10) is None
    assert read(folder, "b") == b"1"


# -- unfinished files ----------------------------------------------------------------------------

ME = Owner("abc123", 10, 500)


@pytest.mark.parametrize(
    ("name", "age", "abandoned"),
    [
        (Owner("abc123", 10, 500).name(1), 5.0, False),  # mine
        (Owner("abc123", 10, 499).name(1), 5.0, True),  # of one that had my number before
        (Owner("abc123", 11, 600).name(1), 5.0, False),
        (Owner("abc123", 12, 600).name(1), 5.0, True),  # gone
        (Owner("def456", 12, 600).name(1), 5.0, False),  # of another container: nobody here knows
        (Owner("def456", 12, 600).name(1), ABANDONED + 1, True),
        ("notes.txt", ABANDONED + 1, False),
    ],
)
def test_an_unfinished_file_is_nobodys_when_its_process_has_gone(name: str, age: float, abandoned: bool) -> None:
    assert is_abandoned(name, age, ME, {10: 500, 11: 600}.get) == abandoned


def test_what_dead_processes_left_goes_when_somebody_opens_the_cache(tmp_path: Path) -> None:
    mine = opened(tmp_path)._me
    dead = tmp_path / UNFINISHED / Owner(mine.boot, 2**22 + 5, 1).name(7)
    alive = tmp_path / UNFINISHED / mine.name(7)
    other = tmp_path / UNFINISHED / "notes.txt"
    for path in (dead, alive, other):
        path.write_bytes(b"half")
    opened(tmp_path)
    assert sorted(os.listdir(tmp_path / UNFINISHED)) == sorted([alive.name, other.name])


def test_a_disk_that_refused_is_left_alone_for_a_while_and_it_is_said_once() -> None:
    pause = Pause(60)
    assert pause.may(0)
    assert pause.refused(0)
    assert not pause.may(59)
    assert pause.may(60)
    assert not pause.refused(60)
    assert not pause.may(100)
