from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload
from uuid import uuid4

import pytest
from torch.utils.data import Subset

from aloader.datasets import ObjectDataset
from aloader.errors import KeyNotFound, NotOpen
from aloader.storage import MemoryStore
from aloader.testing.s3server import S3Server
from tests.servers import BUCKET

KEYS = [f"{letter}.txt" for letter in "abcdef"]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore({key: key[0].encode() for key in KEYS})


@pytest.mark.asyncio
async def test_samples_are_bytes_then_decoded_then_transformed(store: MemoryStore) -> None:
    async with ObjectDataset(store, KEYS) as dataset:
        assert await dataset[0] == b"a"
        assert await dataset[-1] == b"f"
    async with ObjectDataset(store, KEYS, decode=bytes.decode, transform=str.upper) as dataset:
        assert await asyncio.gather(*(dataset[i] for i in range(len(dataset)))) == list("ABCDEF")


@pytest.mark.asyncio
async def test_decode_runs_in_a_thread_and_transform_on_the_loop(store: MemoryStore) -> None:
    def decode(_: bytes) -> int:
        return threading.get_ident()

    async with ObjectDataset(store, KEYS, decode, lambda decoded: (decoded, threading.get_ident())) as dataset:
        samples = await asyncio.gather(*(dataset[i] for i in range(6)))
    assert {transformed for _, transformed in samples} == {threading.get_ident()}
    assert len({decoded for decoded, _ in samples} - {threading.get_ident()}) == 1


@pytest.mark.asyncio
async def test_a_decode_that_takes_long_does_not_hold_up_reads(store: MemoryStore) -> None:
    others_read = threading.Event()

    class Watched(MemoryStore):
        async def get(self, key: str) -> bytes:
            data = await super().get(key)
            if key == KEYS[1]:
                others_read.set()
            return data

    def decode(data: bytes) -> bytes:
        assert others_read.wait(5)
        return data

    async with ObjectDataset(Watched(dict.fromkeys(KEYS, b"x")), KEYS, decode) as dataset:
        first = asyncio.ensure_future(dataset[0])
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the first one is in its thread, or on the way there
        second = asyncio.ensure_future(dataset[1])
        assert await asyncio.gather(first, second) == [b"x", b"x"]


@pytest.mark.asyncio
async def test_one_thread_decodes_one_object_at_a_time(store: MemoryStore) -> None:
    busy = threading.Lock()

    def decode(data: bytes) -> bytes:
        assert busy.acquire(blocking=False)
        busy.release()
        return data

    async with ObjectDataset(store, KEYS * 50, decode) as dataset:
        await asyncio.gather(*(dataset[i] for i in range(300)))


@pytest.mark.asyncio
async def test_errors_name_the_key(store: MemoryStore) -> None:
    async with ObjectDataset(store, ["missing"]) as dataset:
        with pytest.raises(KeyNotFound, match="'missing'"):
            await dataset[0]
    async with ObjectDataset(store, KEYS, decode=int) as dataset:
        with pytest.raises(ValueError, match="invalid literal") as caught:
            await dataset[1]
        assert caught.value.__notes__ == [f"while decoding 'b.txt' of {store!r} (1 bytes)"]
        assert pickle.loads(pickle.dumps(caught.value)).__notes__ == caught.value.__notes__
    async with ObjectDataset(store, KEYS, transform=int.bit_count) as dataset:
        with pytest.raises(TypeError) as wrong:
            await dataset[2]
        assert wrong.value.__notes__ == [f"while transforming 'c.txt' of {store!r}"]
    async with ObjectDataset(store, KEYS) as dataset:
        with pytest.raises(IndexError):
            await dataset[6]


@pytest.mark.asyncio
async def test_it_works_only_inside_async_with(store: MemoryStore) -> None:
    dataset = ObjectDataset(store, KEYS)
    with pytest.raises(NotOpen, match=r"a dataset of MemoryStore\(.*\) is closed: enter it here first"):
        await dataset[0]
    async with dataset, dataset:  # two loaders of one dataset
        assert await dataset[0] == b"a"
    with pytest.raises(NotOpen):
        await dataset[0]
    with pytest.raises(NotOpen):
        await store.get("a.txt")


@pytest.mark.asyncio
async def test_nothing_is_left_open_if_the_store_cannot_be_opened(store: MemoryStore) -> None:
    class Broken(MemoryStore):
        async def __aenter__(self) -> Any:
            raise OSError("no")

    before = threading.active_count()
    dataset = ObjectDataset(Broken(), KEYS, decode=bytes.decode)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            await dataset.__aenter__()
    assert threading.active_count() == before


@pytest.mark.asyncio
async def test_an_open_dataset_pickles_as_a_closed_one_and_always_alike(store: MemoryStore) -> None:
    dataset = ObjectDataset(store, KEYS, decode=bytes.decode)
    closed = pickle.dumps(dataset)
    async with dataset:
        assert await dataset[0] == "a"
        assert pickle.dumps(dataset) == closed  # a loader carries a dataset again only if its pickle differs
        async with pickle.loads(closed) as copy:
            assert await copy[0] == "a"
        with pytest.raises(NotOpen):
            await copy[0]


@pytest.mark.asyncio
async def test_subsets_hand_on_what_is_to_be_awaited(store: MemoryStore) -> None:
    async with ObjectDataset(store, KEYS) as dataset:
        subset: Subset[bytes] = Subset(dataset, [4, 2])  # type: ignore[arg-type]
        assert await asyncio.gather(*subset.__getitems__([0, 1])) == [b"e", b"c"]  # type: ignore[call-overload]


@pytest.mark.asyncio
async def test_keys_may_be_read_lazily(store: MemoryStore) -> None:
    class Numbered(Sequence[str]):
        @overload
        def __getitem__(self, index: int) -> str: ...
        @overload
        def __getitem__(self, index: slice) -> Sequence[str]: ...
        def __getitem__(self, index: int | slice) -> Any:
            return KEYS[index]

        def __len__(self) -> int:
            return len(KEYS)

    async with ObjectDataset(store, Numbered()) as dataset:
        assert len(dataset) == 6
        assert await dataset[3] == b"d"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": "a.txt"}, "keys must be a sequence of strings, got str"),
        ({"keys": iter(KEYS)}, "keys must be a sequence of strings, got list_iterator"),
        ({"keys": set(KEYS)}, "keys must be a sequence of strings, got set"),
        ({"keys": dict.fromkeys(KEYS)}, "got dict"),
        ({"keys": [1, 2]}, "keys must be strings, got int: 1"),
        ({"keys": KEYS, "decode": "utf-8"}, "decode must be callable or None, got 'utf-8'"),
        ({"keys": KEYS, "transform": 7}, "transform must be callable or None, got 7"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ObjectDataset("memory://", **arguments)


@pytest.mark.parametrize("wrong", [0, "2", 1.5])
def test_the_number_of_threads_is_checked(wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"decode_threads must be at least 1, got {wrong!r}"):
        ObjectDataset("memory://", KEYS, decode_threads=wrong)


def test_its_repr_says_where_and_how_many(tmp_path: Path) -> None:
    assert repr(ObjectDataset(tmp_path, KEYS)) == f"ObjectDataset(LocalStore('{tmp_path}'), 6 keys)"


@pytest.mark.asyncio
async def test_objects_come_from_a_bucket_by_its_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    prefix = uuid4().hex
    async with s3_server.store(BUCKET, prefix) as store:
        await store.put("a.txt", b"1")
    async with ObjectDataset(s3_server.url(BUCKET, prefix), ["a.txt"], decode=int) as dataset:
        assert await dataset[0] == 1
