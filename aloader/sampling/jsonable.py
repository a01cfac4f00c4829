"""States of the user's own objects, written so that JSON can hold them, and read back as they were.

JSON knows dicts with text for keys, lists, text, numbers, True, False and None. Whatever else is common in states is
written as a dict with the one key `$aloader`: tuples, sets, bytes, dicts with other keys, NumPy's arrays and scalars,
torch's tensors (their bytes in base64), and floats that JSON has no word for. Nothing is pickled, so reading a state
from elsewhere runs nobody's code.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

_TAG: Final = "$aloader"


def encode(value: Any, path: str = "state") -> Any:
    """The value as JSON can hold it. Raises TypeError, which says where, for what it cannot hold."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if kind is list:
        return _items(value, path)
    if kind is dict:
        return _mapping(value, path)
    if kind is tuple:
        return _tagged("tuple", _items(value, path))
    if kind in (set, frozenset):
        return _tagged(kind.__name__, _items(sorted(value, key=repr), path))
    if isinstance(value, bytes | bytearray):
        return _tagged("bytes", base64.b64encode(value).decode())
    if isinstance(value, torch.Tensor):
        return _tensor(value, path)
    if isinstance(value, np.ndarray | np.generic):
        return _array(value, path)
    if isinstance(value, int | float | str):  # of a class of its own: an enumeration, `np.float64`
        return encode(_plain(value), path)
    if isinstance(value, dict):  # an OrderedDict, a Counter
        return _mapping(value, path)
    raise TypeError(
        f"{path} is of type {kind.__name__}, which a state cannot hold: give numbers, text, bytes, lists, tuples, "
        "dicts, sets, tensors or arrays"
    )


def decode(value: Any) -> Any:
    """What `encode` was given. Raises ValueError for what it cannot have written."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item) for key, item in value.items()}
    kind, content = value[_TAG]
    reader: Callable[[Any], Any] | None = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"this state holds a {kind!r}, which this version of aloader does not know")
    return reader(content)


def _tagged(kind: str, content: Any) -> dict[str, Any]:
    return {_TAG: [kind, content]}


def _items(values: Any, path: str) -> list[Any]:
    return [encode(item, f"{path}[{at}]") for at, item in enumerate(values)]


def _mapping(value: dict[Any, Any], path: str) -> dict[str, Any]:
    if all(type(key) is str for key in value) and _TAG not in value:
        return {key: encode(item, f"{path}[{key!r}]") for key, item in value.items()}
    return _tagged("dict", [[encode(k, f"{path} key"), encode(v, f"{path}[{k!r}]")] for k, v in value.items()])


def _plain(value: Any) -> Any:
    return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))


def _tensor(value: torch.Tensor, path: str) -> dict[str, Any]:
    if value.layout is not torch.strided:
        raise TypeError(f"{path} is a tensor of layout {value.layout}, which a state cannot hold")
    plain = value.detach().cpu().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return _tagged("tensor", [str(plain.dtype).removeprefix("torch."), list(plain.shape), _text(raw)])


def _array(value: Any, path: str) -> dict[str, Any]:
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.names:
        raise TypeError(f"{path} is an array of dtype {array.dtype}, which a state cannot hold")
    kind = "array" if isinstance(value, np.ndarray) else "scalar"
    return _tagged(kind, [array.dtype.str, list(array.shape), _text(np.ascontiguousarray(array).tobytes())])


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _read_tensor(content: Any) -> torch.Tensor:
    name, shape, text = content
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"this state holds a tensor of {name!r}, which is no dtype of torch's")
    raw = torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).copy())
    return raw.view(dtype).reshape(shape) if raw.numel() else torch.empty(shape, dtype=dtype)


def _read_array(content: Any) -> Any:
    dtype, shape, text = content
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy()


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": float,
    "tuple": lambda content: tuple(decode(content)),
    "set": lambda content: set(decode(content)),
    "frozenset": lambda content: frozenset(decode(content)),
    "bytes": base64.b64decode,
    "dict": lambda content: {decode(key): decode(item) for key, item in content},
    "tensor": _read_tensor,
    "array": _read_array,
    "scalar": lambda content: _read_array(content)[()],
}
