from __future__ import annotations

import asyncio
import io
import pickle
import sys
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from PIL import Image, UnidentifiedImageError
from torch.utils.data import random_split

from aloader.datasets import ImageFolder
from aloader.errors import StoreNotFound
from aloader.storage import MemoryStore
from aloader.testing.s3server import S3Server
from tests.servers import BUCKET


def png(colour: int, mode: str = "L") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (3, 2), colour).save(buffer, "PNG")
    return buffer.getvalue()


TREE = {
    "cat/2.png": png(2),
    "cat/10.png": png(10),
    "cat/more/0.PNG": png(0),
    "cat-like/1.png": png(1),
    "Dog/1.png": png(1, "P"),
    "Dog/notes.txt": b"not an image",
    "empty/readme.md": b"",
    "top.png": png(9),
}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(TREE)


def test_classes_and_samples_are_those_of_torchvision(store: MemoryStore) -> None:
    dataset = ImageFolder(store)
    assert dataset.classes == ["Dog", "cat", "cat-like"]
    assert dataset.class_to_idx == {"Dog": 0, "cat": 1, "cat-like": 2}
    assert dataset.samples == [
        ("Dog/1.png", 0), ("cat/10.png", 1), ("cat/2.png", 1), ("cat/more/0.PNG", 1), ("cat-like/1.png", 2),
    ]  # fmt: skip
    assert dataset.targets == [0, 1, 1, 1, 2]
    assert len(dataset) == 5
    assert repr(dataset) == f"ImageFolder({store!r}, 5 images in 3 classes)"


@pytest.mark.asyncio
async def test_a_sample_is_an_rgb_image_and_its_label(store: MemoryStore) -> None:
    async with ImageFolder(store) as dataset:
        image, label = await dataset[1]
        assert (image.mode, image.size, image.getpixel((0, 0)), label) == ("RGB", (3, 2), (10, 10, 10), 1)
    async with ImageFolder(store, lambda image: image.size, lambda label: -label, decode_threads=2) as dataset:
        assert await asyncio.gather(*(dataset[i] for i in range(5))) == [((3, 2), -label) for label in dataset.targets]


@pytest.mark.asyncio
async def test_another_decode_is_used_in_a_thread_and_transforms_run_on_the_loop(store: MemoryStore) -> None:
    here = threading.get_ident()
    dataset = ImageFolder(
        store,
        lambda data: (data, threading.get_ident()),
        lambda _: threading.get_ident(),
        decode=lambda data: len(data),
    )
    async with dataset:
        assert await dataset[4] == ((len(TREE["cat-like/1.png"]), here), here)
    async with ImageFolder(store, decode=None) as dataset:
        assert await dataset[4] == (TREE["cat-like/1.png"], 2)


@pytest.mark.asyncio
async def test_a_damaged_image_is_named(store: MemoryStore) -> None:
    async with ImageFolder(MemoryStore({"a/broken.png": b"not an image"})) as dataset:
        with pytest.raises(UnidentifiedImageError) as caught:
            await dataset[0]
    assert "while decoding 'a/broken.png'" in caught.value.__notes__[0]


class CountingStore(MemoryStore):
    listings = 0

    def list(self, prefix: str = ""):  # type: ignore[no-untyped-def]
        CountingStore.listings += 1
        return super().list(prefix)


@pytest.mark.asyncio
async def test_it_is_listed_once_and_the_listing_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingStore, "listings", 0)
    dataset = ImageFolder(CountingStore(TREE))  # a loop runs in this thread
    copy: ImageFolder = pickle.loads(pickle.dumps(dataset))
    async with copy:
        assert (await copy[1])[1] == 1
    assert (copy.samples, copy.classes) == (dataset.samples, dataset.classes)
    assert CountingStore.listings == 1


def test_listing_needs_no_loop_and_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(png(1))
    before = threading.active_count()
    assert ImageFolder(tmp_path).samples == [("a/1.png", 0)]
    assert ImageFolder(f"file://{tmp_path}").samples == [("a/1.png", 0)]
    assert threading.active_count() == before


@pytest.mark.asyncio
async def test_random_split_gives_each_image_to_one_part(store: MemoryStore) -> None:
    dataset = ImageFolder(store, transform=lambda image: image.getpixel((0, 0))[0])
    async with dataset:
        parts = random_split(dataset, [3, 2])  # type: ignore[var-annotated, arg-type]
        samples = [await sample for part in parts for sample in part.__getitems__(range(len(part)))]
    assert sorted(label for _, label in samples) == [0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("objects", "found"),
    [({}, "it is empty"), ({"top.png": b"", "a/b.txt": b""}, "there are 2 other objects, 'a/b.txt' first")],
)
def test_without_images_in_folders_it_says_what_it_expected(objects: dict[str, bytes], found: str) -> None:
    with pytest.raises(
        FileNotFoundError, match=rf"no images in folders in Mem.*: {found}. Expected keys like 'cat/001"
    ):
        ImageFolder(MemoryStore(objects))


def test_a_folder_that_does_not_exist_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="there is no folder"):
        ImageFolder(tmp_path / "nowhere")


def test_transforms_of_a_wrong_type_are_refused(store: MemoryStore) -> None:
    with pytest.raises(TypeError, match="target_transform must be callable"):
        ImageFolder(store, None, 5)  # type: ignore[arg-type]


def test_without_pillow_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r'decoding images needs Pillow: pip install "aloader\[images\]"'):
        ImageFolder("memory://")


@pytest.mark.asyncio
async def test_a_bucket_is_listed_while_a_loop_runs_and_read_on_that_loop(s3_server: S3Server) -> None:
    store = s3_server.store(BUCKET, uuid4().hex)
    async with store:
        await asyncio.gather(*(store.put(key, data) for key, data in TREE.items()))
        dataset = ImageFolder(store, transform=lambda image: image.size)
        assert dataset.samples == ImageFolder(MemoryStore(TREE)).samples
        async with dataset:
            assert await asyncio.gather(*(dataset[i] for i in range(5))) == [
                ((3, 2), label) for label in dataset.targets
            ]
