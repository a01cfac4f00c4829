"""From the bytes of an object to a value, by a name. Nothing is ever unpickled here.

*Where.* Decoding belongs into a thread, beside the loop, on which other samples' reads wait. But a hop into a thread
costs about 60 µs (3 to 9 µs for each of many at once), and what takes less than that is better done on the loop itself:
`at_once` says for each of these decoders up to how many bytes. (Measured: text that is not all ASCII 18 µs for 16 KiB,
JSON 25 µs for 2 KiB, `.npy` 35 µs for 128 KiB; `torch.load` 130 µs and images more, however small.) A function of the
user's always runs in a thread.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from aloader.options import KIB

T = TypeVar("T")

Decode = Callable[[bytes], Any]


def text(data: bytes) -> str:
    """UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        error.add_note("decode='text' takes UTF-8; for another encoding: decode=lambda data: data.decode('latin-1')")
        raise


def from_json(data: bytes) -> Any:
    """What the JSON says: dicts, lists, text, numbers."""
    return json.loads(data)


def rgb(data: bytes) -> Any:
    """A `PIL.Image.Image` of mode RGB, read in full."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def rgb_tensor(data: bytes) -> Any:
    """A `torch.Tensor` of 3 × height × width, uint8, by torchvision."""
    import numpy as np
    import torch
    from torchvision.io import ImageReadMode, decode_image  # type: ignore[import-not-found, unused-ignore]

    return decode_image(torch.from_numpy(np.frombuffer(bytearray(data), np.uint8)), ImageReadMode.RGB)


def npy(data: bytes) -> Any:
    """A `numpy.ndarray` out of an .npy file."""
    import numpy as np

    if not data.startswith(np.lib.format.MAGIC_PREFIX):
        raise ValueError("not an .npy file: decode='npy' takes what numpy.save has written (and no .npz)")
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise ValueError("this .npy file has a pickle of Python objects in it: save numbers or text") from None
        raise


def tensors(data: bytes) -> Any:
    """What `torch.save` has written, of tensors and plain containers, on the CPU."""
    import pickle

    import torch

    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            "this file holds more than tensors in plain containers, or is none of torch.save's. Nothing else is "
            "unpickled: save tensors alone; or pass a function as decode=, if you trust whoever wrote it"
        ) from error


#: The names that may be given as `decode=`.
DECODERS: Final[Mapping[str, Decode | None]] = MappingProxyType({
    "bytes": None, "text": text, "json": from_json, "image": rgb, "image:torch": rgb_tensor, "npy": npy,
    "torch": tensors,
})  # fmt: skip

_AT_ONCE: Final[Mapping[Any, int]] = MappingProxyType({text: 16 * KIB, from_json: 2 * KIB, npy: 128 * KIB})

_NEEDS: Final[Mapping[Any, tuple[str, str]]] = MappingProxyType(
    {
        rgb: ("PIL", 'decoding images needs Pillow: pip install "aloader[images]", or pass decode='),
        rgb_tensor: (
            "torchvision",
            "decode='image:torch' needs torchvision: pip install torchvision, or decode='image'",
        ),
    }
)


def decoder(decode: str | Decode | None, name: str = "decode") -> Decode | None:
    """The function that is meant (None: leave the bytes), if what it needs is installed."""
    if isinstance(decode, str):
        if decode not in DECODERS:
            raise TypeError(f"{name} must be callable or None, got {decode!r}: the names are {', '.join(DECODERS)}")
        decode = DECODERS[decode]
    elif decode is not None and not callable(decode):
        raise TypeError(f"{name} must be callable or None, got {decode!r}")
    module, message = _looked_up(_NEEDS, decode, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(message, name=module)
    return decode


def at_once(decode: Decode) -> int:
    """Bytes up to which this decoder is called on the loop itself."""
    return _looked_up(_AT_ONCE, decode, 0)


def _looked_up(table: Mapping[Any, T], decode: Decode | None, otherwise: T) -> T:
    try:
        return table.get(decode, otherwise)
    except TypeError:  # an object of the user's that has no hash
        return otherwise
