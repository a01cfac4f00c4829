from __future__ import annotations

import io
import json
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from aloader.datasets import ObjectDataset
from aloader.datasets.decoders import DECODERS, at_once, decoder
from aloader.storage import MemoryStore

pytestmark = pytest.mark.asyncio


def saved(save: Any, value: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, value, **how)
    return buffer.getvalue()


def torch_saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (3, 2), 7).save(buffer, "PNG")
    return buffer.getvalue()


async def decoded(name: Any, data: bytes) -> Any:
    async with ObjectDataset(MemoryStore({"a/key": data}), ["a/key"], name) as dataset:
        return await dataset[0]


class Bomb:
    """It goes off when it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


async def test_names_stand_for_decoders() -> None:
    assert await decoded("bytes", b"1\xff") == await decoded(None, b"1\xff") == b"1\xff"
    assert await decoded("text", "ünï".encode()) == "ünï"
    assert await decoded("json", b'{"a": [1, 2.5]}') == {"a": [1, 2.5]}
    image = await decoded("image", png())
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (3, 2), (7, 7, 7))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(await decoded("npy", saved(np.save, array)), array)
    tensors = await decoded("torch", torch_saved({"x": torch.arange(3)}))
    assert torch.equal(tensors["x"], torch.arange(3))


@pytest.mark.parametrize(
    ("name", "data", "error", "says"),
    [
        ("text", b"\xff", UnicodeDecodeError, "decode='text' takes UTF-8; for another encoding"),
        ("json", b"{", json.JSONDecodeError, "Expecting property name"),
        ("npy", b"no array", ValueError, "not an .npy file: decode='npy' takes what numpy.save has written"),
        ("npy", saved(np.save, np.array([Bomb()]), allow_pickle=True), ValueError, "has a pickle of Python objects"),
        ("torch", pickle.dumps(Bomb(), 2), ValueError, "Nothing else is unpickled"),
        ("image", b"no image", OSError, "cannot identify image file"),
    ],
)
async def test_what_is_something_else_is_named_and_never_unpickled(
    name: str, data: bytes, error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        await decoded(name, data)
    notes = "\n".join([str(caught.value), *caught.value.__notes__])
    assert says in notes
    assert "while decoding 'a/key' of MemoryStore" in notes


async def test_a_torch_file_with_objects_in_it_is_refused() -> None:
    with pytest.raises(ValueError, match="this file holds more than tensors in plain containers"):
        await decoded("torch", torch_saved(Bomb()))


async def test_small_cheap_objects_are_decoded_on_the_loop_and_others_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda data: threads.append(threading.get_ident()) or loads(data))
    for data in (b"[1]", b"[" + b"1," * 5000 + b"1]"):
        await decoded("json", data)
    assert [thread == threading.get_ident() for thread in threads] == [True, False]
    assert at_once(bytes.decode) == at_once([].append) == 0


@pytest.mark.parametrize("name", DECODERS)
async def test_every_name_is_said_when_another_is_given(name: str) -> None:
    with pytest.raises(TypeError, match=rf"decode must be callable or None, got 'jpeg': the names are .*{name}"):
        decoder("jpeg")


@pytest.mark.parametrize(
    ("name", "module", "says"),
    [
        ("image", "PIL", r'decoding images needs Pillow: pip install "aloader\[images\]"'),
        ("image:torch", "torchvision", "decode='image:torch' needs torchvision: pip install torchvision"),
    ],
)
async def test_without_what_it_needs_a_decoder_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, says: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=says):
        ObjectDataset("memory://", [], name)
