"""Datasets that find their keys themselves, and manifests, which save them from it."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader import DataLoader
from aloader.datasets import ImageFolder, ObjectDataset, PackedList
from aloader.datasets.listing import Listing
from aloader.datasets.manifest import read, written
from aloader.errors import KeyNotFound, ObjectChanged, StoreNotFound
from aloader.storage import Cached, LocalStore, MemoryStore, ObjectInfo, Request, Response, open_store
from aloader.storage.ranges import LARGE
from aloader.testing.s3server import S3Server
from tests.servers import BUCKET

TREE = {"b/2.txt": b"22", "a/1.TXT": b"1", "a/1.json": b"{}", "b/10.txt": b"10", "c/": b"", "top.txt": b"t"}


class Counting(MemoryStore):
    """Lists in an order of its own, with versions, and counts how often."""

    def __init__(self, objects: dict[str, bytes] = TREE) -> None:
        super().__init__(objects)
        self.listings = 0
        self.versions: dict[str, str] = {}

    def __repr__(self) -> str:
        return "Counting()"

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        self.listings += 1
        for key, data in self._objects.items():
            if key.startswith(prefix):
                yield ObjectInfo(key, len(data), self.versions.get(key, ""))


def keys(*arguments: Any, **named: Any) -> list[str]:
    return list(ObjectDataset.from_prefix(*arguments, **named).keys)


# -- from_prefix -----------------------------------------------------------------------------------------------------


def test_all_objects_are_found_in_the_order_of_their_keys() -> None:
    assert keys(Counting()) == ["a/1.TXT", "a/1.json", "b/10.txt", "b/2.txt", "top.txt"]
    assert keys(Counting(), sort=False) == ["b/2.txt", "a/1.TXT", "a/1.json", "b/10.txt", "top.txt"]
    assert keys(Counting(), "b/") == ["b/10.txt", "b/2.txt"]
    assert keys(Counting(), suffix=".txt") == ["a/1.TXT", "b/10.txt", "b/2.txt", "top.txt"]
    assert keys(Counting(), "a/", suffix=(".json", ".xml")) == ["a/1.json"]
    assert keys(Counting(), limit=2) == ["a/1.TXT", "b/2.txt"]


def test_sizes_go_with_their_keys() -> None:
    dataset = ObjectDataset.from_prefix(Counting())
    assert isinstance(dataset.keys, PackedList)
    assert dataset.sizes is not None
    assert dataset.sizes.tolist() == [len(TREE[key]) for key in dataset.keys]


@pytest.mark.asyncio
async def test_it_is_listed_once_while_a_loop_runs_and_the_listing_travels() -> None:
    store = Counting()
    dataset = ObjectDataset.from_prefix(store, suffix=".txt", decode="text", transform=str.upper)
    copy: ObjectDataset = pickle.loads(pickle.dumps(dataset))
    async with copy:
        assert await asyncio.gather(*(copy[i] for i in range(4))) == ["1", "10", "22", "T"]
    assert (store.listings, copy.fingerprint) == (1, dataset.fingerprint)
    assert pickle.dumps(copy) == pickle.dumps(dataset)  # or a loader would carry it anew


def test_nothing_found_says_what_there_is() -> None:
    with pytest.raises(FileNotFoundError, match=r"begin with 'x' and end with .jpg in .*: it has other ones: 'a/"):
        ObjectDataset.from_prefix(Counting(), "x", suffix=".jpg")
    with pytest.raises(FileNotFoundError, match=r"no objects at all in .*: it is empty"):
        ObjectDataset.from_prefix(Counting({}))
    with pytest.raises(StoreNotFound):
        ObjectDataset.from_prefix("/no/such/folder")


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"suffix": 7}, TypeError, "suffix is an ending of keys"),
        ({"suffix": ("",)}, TypeError, "suffix is an ending of keys"),
        ({"prefix": None}, TypeError, "prefix is text, got NoneType"),
        ({"limit": 0}, ValueError, "limit is a number of objects"),
        ({"decode": "gif"}, TypeError, "the names are"),
    ],
)
def test_arguments_are_checked_before_anything_is_listed(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    store = Counting()
    with pytest.raises(error, match=says):
        ObjectDataset.from_prefix(store, **arguments)
    assert store.listings == 0


def test_the_fingerprint_follows_from_keys_sizes_and_versions() -> None:
    def made(store: Counting, **named: Any) -> str | None:
        return ObjectDataset.from_prefix(store, **named).fingerprint

    said = made(Counting())
    assert said == made(Counting(dict(reversed(TREE.items()))))
    assert said != made(Counting(), sort=False)
    assert said != made(Counting(TREE | {"top.txt": b"longer"}))
    assert said != made(Counting(TREE | {"more": b""}))
    changed = Counting()
    changed.versions = {"top.txt": "v2"}
    assert said != made(changed)
    assert ObjectDataset(Counting(), ["top.txt"]).fingerprint is None


def test_a_loader_refuses_the_state_of_other_data() -> None:
    first, second = (ObjectDataset.from_prefix(Counting(TREE | more)) for more in ({}, {"top.txt": b"new text"}))
    state = DataLoader(first, num_workers=0).state_dict()
    DataLoader(first, num_workers=0).load_state_dict(state)
    with pytest.raises(ValueError, match="fingerprint was"):
        DataLoader(second, num_workers=0).load_state_dict(state)


@pytest.mark.asyncio
async def test_large_objects_are_asked_for_as_ranges_and_small_ones_whole() -> None:
    class Asked(MemoryStore):
        async def fetch(self, request: Request) -> Response:
            asked.append(request)
            return await super().fetch(request)

    asked: list[Request] = []
    store = Asked({"large": bytes(LARGE + 1), "small": b"1"})
    async with ObjectDataset.from_prefix(store, decode=len) as dataset:
        assert [await dataset[0], await dataset[1]] == [LARGE + 1, 1]
        assert asked == [Request("large", 0, LARGE + 1), Request("small")]
        await dataset.store.put("large", bytes(LARGE + 5))
        with pytest.raises(ObjectChanged, match=rf"has {LARGE + 5} bytes, and had {LARGE + 1} when it was listed"):
            await dataset[0]


# -- manifests -------------------------------------------------------------------------------------------------------


def test_a_manifest_saves_the_second_listing(tmp_path: Path) -> None:
    store, path = Counting(), tmp_path / "new" / "manifest"
    store.versions = dict.fromkeys(TREE, "v1")
    first, second = (ObjectDataset.from_prefix(store, suffix=".txt", manifest=path) for _ in range(2))
    assert store.listings == 1
    assert list(first.keys) == list(second.keys)
    assert first.fingerprint == second.fingerprint
    assert np.array_equal(first.sizes, second.sizes)  # type: ignore[arg-type]
    assert os.listdir(path.parent) == ["manifest"]


def test_the_order_of_several_suffixes_does_not_matter_to_a_manifest(tmp_path: Path) -> None:
    store = Counting()
    for suffix in ((".txt", ".json"), (".JSON", ".txt")):
        assert len(ObjectDataset.from_prefix(store, suffix=suffix, manifest=tmp_path / "m")) == 5
    assert store.listings == 1


def test_what_is_around_a_store_does_not_matter_to_its_manifest(tmp_path: Path) -> None:
    store, path = Counting(), tmp_path / "m"
    ObjectDataset.from_prefix(store, manifest=path)
    ObjectDataset.from_prefix(Cached(store, tmp_path / "cache"), manifest=path)
    ObjectDataset.from_prefix(open_store(store, retry=True), manifest=path)
    assert store.listings == 1


def test_a_manifest_is_read_for_another_place_of_the_same_keys(tmp_path: Path) -> None:
    ObjectDataset.from_prefix(Counting(), "b/").save_manifest(tmp_path / "m")
    copy = ObjectDataset.from_manifest(tmp_path / "m", MemoryStore(TREE), decode="text")
    assert list(copy.keys) == ["b/10.txt", "b/2.txt"]
    copy.save_manifest(str(tmp_path / "again"))
    assert ObjectDataset.from_manifest(f"file://{tmp_path}/again", MemoryStore()).fingerprint == copy.fingerprint
    with pytest.raises(KeyNotFound):
        ObjectDataset.from_manifest(tmp_path / "none", MemoryStore())
    with pytest.raises(TypeError, match="was made of keys, and has no listing to save"):
        ObjectDataset(MemoryStore(), ["a"]).save_manifest(tmp_path / "m")


def test_a_manifest_of_something_else_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ObjectDataset.from_prefix(Counting(), manifest=path)
    for arguments, says in (
        ((Counting(), "b/"), "prefix was '' and is 'b/'"),
        ((MemoryStore(TREE),), r"store was 'Counting\(\)' and is 'MemoryStore'"),
    ):
        with pytest.raises(ValueError, match=f"m' is of something else: {says}. Name another file; or delete it"):
            ObjectDataset.from_prefix(*arguments, manifest=path)
    with pytest.raises(ValueError, match="suffixes was"):
        ObjectDataset.from_prefix(Counting(), manifest=path, suffix=".txt")


def test_a_damaged_or_foreign_file_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match=r"m' is no manifest, or damaged: its first line is not one of a"):
        ObjectDataset.from_prefix(Counting(), manifest=path)
    assert path.read_bytes() == b"\x80\x04pickle"
    with pytest.raises(ValueError, match=r"a manifest is a file, and 's3://bucket' names none"):
        ObjectDataset.from_prefix(Counting(), manifest="s3://bucket")


LISTINGS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=()), max_size=8), st.integers(0, 1 << 40), st.sampled_from(["", "v1"])
    ),
    max_size=10,
)


def listing_of(items: list[tuple[str, int, str]]) -> Listing:
    sizes = np.array([size for _, size, _ in items], np.int64)
    versions = [version for _, _, version in items]
    return Listing(PackedList(key for key, _, _ in items), sizes, PackedList(versions) if any(versions) else None)


@settings(max_examples=40)
@given(LISTINGS)
def test_what_is_read_is_what_was_written(items: list[tuple[str, int, str]]) -> None:
    listing = listing_of(items)
    back, head = read(b"".join(written(listing, {"store": "x"})))
    assert list(back.keys) == list(listing.keys)
    assert back.sizes.tolist() == listing.sizes.tolist()
    assert (back.versions and list(back.versions)) == (listing.versions and list(listing.versions))
    assert (back.fingerprint, head["store"]) == (listing.fingerprint, "x")


@settings(max_examples=100)
@given(st.data())
def test_whatever_is_changed_in_a_manifest_is_noticed(data: st.DataObject) -> None:
    listing = listing_of([("a/1.txt", 5, "v1"), ("b/22.txt", 1 << 33, "v2"), ("c", 0, "")])
    whole = b"".join(written(listing, {}))
    end = whole.index(b"\n")
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        changed = whole[:at]
    else:
        changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    try:
        back, head = read(changed)
    except ValueError:
        return
    assert at <= end or whole[at] == 0  # blanks in the line, and what fills up arrays: nothing is lost with them
    assert back.fingerprint == listing.fingerprint
    assert head["format"] == "aloader manifest"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "it is of version 2, and this aloader reads version 1"),
        ({"arrays": None}, "does not describe its arrays"),
        ({"arrays": [["keys", "O", 3]]}, "an array that none is like"),
        ({"arrays": [["keys", "u1", 1 << 60]]}, "it is cut off"),
        ({"arrays": []}, "something behind its end"),
        ({"count": 7}, "its fingerprint is another one"),
        ({"fingerprint": "x"}, "its fingerprint is another one"),
        ({"count": [1]}, "its fingerprint is another one"),
        ({"arrays": [[[], "u1", 3]]}, "an array that none is like"),
    ],
)
def test_a_manifest_is_checked_before_it_is_used(change: dict[str, Any], says: str) -> None:
    whole = b"".join(written(listing_of([("a", 1, "")]), {}))
    line, _, rest = whole.partition(b"\n")
    changed = json.dumps(json.loads(line) | change).encode().ljust(len(line))
    changed += b" " * (-(len(changed) + 1) % 8)
    with pytest.raises(ValueError, match=says):
        read(changed + b"\n" + rest)


def test_a_line_that_is_nested_without_end_is_no_manifest() -> None:
    with pytest.raises(ValueError, match="its first line is not one of a manifest"):
        read(b"[" * 60_000 + b"\n")


# -- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_folder_is_a_class_for_objects_of_every_kind() -> None:
    dataset = ObjectDataset.from_folders(Counting(), suffix=".txt", decode="text", target_transform=operator.neg)
    assert (dataset.classes, dataset.class_to_idx, dataset.targets) == (["a", "b"], {"a": 0, "b": 1}, [0, 1, 1])
    assert dataset.samples == [("a/1.TXT", 0), ("b/10.txt", 1), ("b/2.txt", 1)]
    assert dataset.samples[1:] == [("b/10.txt", 1), ("b/2.txt", 1)]
    assert repr(dataset) == "ObjectFolder(Counting(), 3 objects in 2 classes)"
    async with pickle.loads(pickle.dumps(dataset)) as copy:
        assert [await copy[i] for i in range(3)] == [("1", 0), ("10", -1), ("22", -1)]
    with pytest.raises(FileNotFoundError, match=r"no objects in folders in .*there are 1 other objects, 'top.txt'"):
        ObjectDataset.from_folders(Counting({"top.txt": b""}))


def test_classes_are_below_the_prefix() -> None:
    store = Counting({"train/cat/1": b"", "train/dog/x/2": b"", "test/cow/3": b"", "train/readme": b""})
    dataset = ObjectDataset.from_folders(store, "train/")
    assert (dataset.classes, list(dataset.samples)) == (["cat", "dog"], [("train/cat/1", 0), ("train/dog/x/2", 1)])


def test_a_prefix_that_lacks_its_slash_or_has_one_too_many_is_an_error_that_shows_it() -> None:
    store = Counting({"train/cat/1": b"", "train/dog/2": b"", "trained/cow/3": b""})
    with pytest.raises(ValueError, match="the only class: for the classes in it, prefix='train/cat/'"):
        ObjectDataset.from_folders(store, "train/cat")
    with pytest.raises(FileNotFoundError, match=r"no objects in folders below prefix='/train/' in .* 'train/cat/1'"):
        ObjectDataset.from_folders(store, "/train/")
    assert ObjectDataset.from_folders(store, "train").classes == ["train", "trained"]
    assert ObjectDataset.from_folders(store, "train/c").classes == ["cat"]


def test_images_have_manifests_too(tmp_path: Path) -> None:
    store = Counting({"cat/1.png": b"", "dog/1.png": b"", "dog/1.txt": b""})
    first, second = (ImageFolder(store, manifest=tmp_path / "m") for _ in range(2))
    assert store.listings == 1
    assert first.samples == second.samples == [("cat/1.png", 0), ("dog/1.png", 1)]
    assert first.fingerprint == second.fingerprint
    assert repr(first.samples) == "<2 samples: [('cat/1.png', 0), ('dog/1.png', 1)]>"


# -- groups ----------------------------------------------------------------------------------------------------------

MEMBERS = {"image": (".jpg", ".png"), "text": ".txt"}


@pytest.mark.asyncio
async def test_a_sample_is_a_dict_of_its_members() -> None:
    store = Counting({"x/2.png": b"p2", "x/1.txt": b"t1", "x/1.jpg": b"j1", "x/2.txt": b"t2"})
    dataset = ObjectDataset.groups(store, MEMBERS, "x/", decode={"text": "text"})
    assert (len(dataset), dataset.stem(1), dataset.keys(1)) == (2, "x/2", {"image": "x/2.png", "text": "x/2.txt"})
    assert repr(dataset) == "GroupedObjects(Counting(), 2 samples of image, text)"
    async with pickle.loads(pickle.dumps(dataset)) as copy:
        assert [await copy[i] for i in range(2)] == [{"image": b"j1", "text": "t1"}, {"image": b"p2", "text": "t2"}]
    joined = ObjectDataset.groups(store, MEMBERS, decode="text", transform=lambda sample: "".join(sample.values()))
    async with joined:
        assert await joined[0] == "j1t1"


@pytest.mark.asyncio
async def test_members_are_read_at_once() -> None:
    class Together(MemoryStore):
        async def fetch(self, request: Request) -> Response:
            await both.wait()
            return await super().fetch(request)

    both = asyncio.Barrier(2)
    async with ObjectDataset.groups(Together({"1.jpg": b"j", "1.txt": b"t"}), MEMBERS) as dataset:
        assert await asyncio.wait_for(dataset[0], 5) == {"image": b"j", "text": b"t"}


def test_what_is_not_whole_is_named_or_left_out() -> None:
    objects = {f"{number}.txt": b"" for number in range(6)} | {"1.jpg": b"", "7.jpg": b""}
    with pytest.raises(FileNotFoundError) as caught:
        ObjectDataset.groups(Counting(objects), MEMBERS)
    assert "of 7 samples in Counting(), 6 are not whole: '0' has no image; '2' has no image; " in str(caught.value)
    assert "and 3 more are not whole. missing='skip' leaves them out" in str(caught.value)
    dataset = ObjectDataset.groups(Counting(objects), MEMBERS, missing="skip")
    assert [dataset.stem(i) for i in range(len(dataset))] == ["1"]
    with pytest.raises(FileNotFoundError, match=r"of 1 samples in .*, 1 are not whole"):
        ObjectDataset.groups(Counting({"7.jpg": b""}), MEMBERS, missing="skip")


def test_the_longest_ending_counts_and_two_of_a_kind_are_an_error() -> None:
    store = Counting({"a.txt": b"", "a.tags.TXT": b""})
    dataset = ObjectDataset.groups(store, {"text": ".txt", "tags": ".tags.txt"})
    assert dataset.keys(0) == {"text": "a.txt", "tags": "a.tags.TXT"}
    assert dataset.stem(0) == "a"
    assert ObjectDataset.groups(store, {"tags": (".tags.txt", ".TAGS.TXT")}).stem(0) == "a"
    with pytest.raises(ValueError, match=r"'a.jpg' and 'a.png' in Counting.* are both the 'image' of the same sample"):
        ObjectDataset.groups(Counting({"a.png": b"", "a.jpg": b"", "a.txt": b""}), MEMBERS)


@pytest.mark.parametrize(
    ("members", "named", "error", "says"),
    [
        ({}, {}, TypeError, "members is a dict of names and endings"),
        ([".jpg"], {}, TypeError, "members is a dict"),
        ({"a": ".x", "b": ".X"}, {}, ValueError, "'.x' is the ending of 'a' and of 'b'"),
        ({"a": None}, {}, ValueError, "member 'a' has no ending"),
        ({"a": 7}, {}, TypeError, r"members\['a'\] is an ending of keys"),
        (MEMBERS, {"missing": "ignore"}, ValueError, "missing is 'error' or 'skip'"),
        (MEMBERS, {"decode": {"audio": "bytes"}}, ValueError, "decode has 'audio', and the members are image, text"),
        (MEMBERS, {"decode": {"text": "utf8"}}, TypeError, r"decode\['text'\] must be callable"),
    ],
)
def test_members_are_checked(members: Any, named: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ObjectDataset.groups(Counting(), members, **named)


# -- in a bucket -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_bucket_is_listed_by_nobody_who_has_a_manifest(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    prefix = uuid4().hex
    store = s3_server.store(BUCKET, f"{prefix}/data")

    async def fill() -> None:
        async with store:
            await asyncio.gather(*(store.put(f"{number:02}.txt", b"%d" % number) for number in range(30)))

    asyncio.run(fill())
    url = s3_server.url(BUCKET, f"{prefix}/data")
    manifest = s3_server.url(BUCKET, f"{prefix}/manifests/train")
    ObjectDataset.from_prefix(url, suffix=".txt", manifest=manifest)
    before = s3_server.served().lists
    dataset = ObjectDataset.from_prefix(url, suffix=".txt", decode="text", transform=int, manifest=manifest)
    with DataLoader(dataset, batch_size=5) as loader:
        assert [int(number) for batch in loader for number in batch] == list(range(30))
    assert s3_server.served().lists == before


def test_folders_of_the_file_system_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.npy").write_bytes(b"12")
    assert keys(tmp_path) == keys(f"file://{tmp_path}") == keys(LocalStore(tmp_path)) == ["a/1.npy"]
