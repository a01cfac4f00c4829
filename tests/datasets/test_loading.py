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


@pytest.fixture
def store(s3_server: S3Server) -> Store:
    store = s3_server.store(BUCKET, uuid4().hex)
    asyncio.run(fill(store))
    return store


@pytest.mark.asyncio
@pytest.mark.parametrize("num_workers", [0, 2])
async def test_a_part_of_a_split_comes_out_whole_and_with_its_labels(store: Store, num_workers: int) -> None:
    part, _ = random_split(ImageFolder(store, to_tensor), [30, 10])  # type: ignore[var-annotated, arg-type]
    seen = []
    async with DataLoader(part, batch_size=4, shuffle=True, num_workers=num_workers) as loader:
        async for colours, labels in loader:
            assert torch.equal(colours % 4, labels)
            seen += colours.tolist()
    assert len(seen) == len(set(seen)) == 30


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_plain_for_reads_a_folder_too(tmp_path: Path, num_workers: int) -> None:
    asyncio.run(fill(LocalStore(tmp_path)))
    with DataLoader(ImageFolder(tmp_path, to_tensor), batch_size=8, num_workers=num_workers) as loader:
        assert sorted(colour for colours, _ in loader for colour in colours.tolist()) == list(range(COUNT))


@pytest.mark.asyncio
async def test_the_server_is_asked_for_each_object_once(s3_server: S3Server, store: Store) -> None:
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
async def test_errors_come_in_their_place_and_name_the_key(tmp_path: Path) -> None:
    for name, text in {"a": "1", "b": "2", "d": "no number", "e": "5"}.items():
        (tmp_path / name).write_text(text)
    async with DataLoader(ObjectDataset(tmp_path, list("abcde"), int), num_workers=1) as loader:
        batches = aiter(loader)
        assert [int(await anext(batches)) for _ in range(2)] == [1, 2]
        with pytest.raises(KeyNotFound, match="no object 'c' in LocalStore") as missing:
            await anext(batches)
        assert missing.value.key == "c"
        with pytest.raises(ValueError, match="invalid literal") as damaged:
            await anext(batches)
        assert any("while decoding 'd' of LocalStore" in note for note in damaged.value.__notes__)
        assert int(await anext(batches)) == 5
