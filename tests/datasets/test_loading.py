"""The datasets under the loader: in worker processes, on the caller's loop, and with plain `for`."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from PIL import Image
from torch.utils.data import random_split

from aloader import DataLoader, KeyNotFound
from aloader.datasets import ImageFolder, ObjectDataset
from aloader.storage import LocalStore, Store
from aloader.testing.s3server import S3Server
from tests.servers import BUCKET

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("s3_server", "nothing_left")]

COUNT = 40


def png(colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (3, 2), colour).save(buffer, "PNG")
    return buffer.getvalue()


async def fill(store: Store) -> None:
    async with store:
        await asyncio.gather(*(store.put(f"{number % 4}/{number:02}.png", png(number)) for number in range(COUNT)))


def to_tensor(image: Any) -> torch.Tensor:
    return torch.tensor(image.getpixel((0, 0))[0])


@pytest.fixture(params=["local", "s3"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    store: Store = LocalStore(tmp_path)
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        store = server.store(BUCKET, uuid4().hex)
    asyncio.run(fill(store))
    return store


@pytest.mark.asyncio
@pytest.mark.parametrize("num_workers", [0, 2])
async def test_the_parts_of_a_split_come_out_whole_and_each_with_its_label(filled: Store, num_workers: int) -> None:
    parts = random_split(ImageFolder(filled, to_tensor), [30, 10])  # type: ignore[var-annotated, arg-type]
    seen = []
    for part in parts:
        async with DataLoader(part, batch_size=4, shuffle=True, num_workers=num_workers) as loader:
            async for colours, labels in loader:
                assert torch.equal(colours % 4, labels)
                seen += colours.tolist()
    assert sorted(seen) == list(range(COUNT))


def test_a_plain_for_reads_them_too(filled: Store) -> None:
    dataset = ImageFolder(filled, to_tensor)
    for num_workers in (0, 1):
        with DataLoader(dataset, batch_size=8, num_workers=num_workers) as loader:
            assert sum(len(colours) for colours, _ in loader) == COUNT


@pytest.mark.asyncio
async def test_the_server_is_asked_for_each_object_once(s3_server: S3Server) -> None:
    store = s3_server.store(BUCKET, uuid4().hex)
    await fill(store)
    images = ImageFolder(store, to_tensor)
    before = s3_server.served()
    async with DataLoader(images, batch_size=4, num_workers=2, persistent_workers=True) as loader:
        for _ in range(2):
            assert [colours.tolist() async for colours, _ in loader]
    deadline = time.monotonic() + 5
    while (after := s3_server.served()).gets - before.gets < 2 * COUNT and time.monotonic() < deadline:
        pass  # it counts just after it has answered
    assert after.gets - before.gets == 2 * COUNT
    assert after.lists == before.lists  # workers have the listing already


@pytest.mark.asyncio
async def test_an_object_that_is_missing_fails_in_its_place_by_its_own_name(tmp_path: Path) -> None:
    for letter in "abd":
        (tmp_path / letter).write_text(letter)
    async with DataLoader(ObjectDataset(tmp_path, list("abcd"), bytes.decode), num_workers=1) as loader:
        batches = aiter(loader)
        assert await anext(batches) == ["a"]
        assert await anext(batches) == ["b"]
        with pytest.raises(KeyNotFound, match="no object 'c' in LocalStore") as caught:
            await anext(batches)
        assert caught.value.key == "c"
        assert await anext(batches) == ["d"]


@pytest.mark.asyncio
async def test_a_decode_that_fails_is_named_across_the_border(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    async with DataLoader(ObjectDataset(tmp_path, ["a"], int), num_workers=1) as loader:
        with pytest.raises(ValueError, match="invalid literal") as caught:
            await anext(aiter(loader))
    assert any("while decoding 'a' of LocalStore" in note for note in caught.value.__notes__)
