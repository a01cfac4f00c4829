"""Copies of an object within one process, as if each had been sent to another: data is pickled, code is not.

A worker's dataset is a pickled copy, and so has what pickling leaves out left out. Classes, functions and modules are
the very same ones in the copies: those of the user's script, by value as `carry` writes them, would be strangers here.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from aloader.channel.carry import OUTSIDE_BYTES, _Carrier
from aloader.channel.payload import dump, failed


def replicator(obj: Any) -> Callable[[], Any]:
    """What makes copies of a named tuple's fields (as of now). Raises as `carry` does what it raises."""
    code: dict[int, Any] = {}
    kind = functools.partial(_Copier, code=code)
    try:
        body, buffers = dump(kind, obj, OUTSIDE_BYTES)
    except MemoryError:
        raise
    except Exception as error:
        raise failed(error, obj, obj._fields, kind) from error

    def make() -> Any:
        loader = _Loader(io.BytesIO(body), buffers=[bytearray(buffer) for buffer in buffers])
        loader.code = code
        return loader.load()

    return make


class _Copier(_Carrier):
    def __init__(self, file: Any, protocol: int, buffer_callback: Any, code: dict[int, Any]) -> None:
        super().__init__(file, protocol, buffer_callback, None, [])
        self.code = code

    def persistent_id(self, obj: Any) -> int | None:
        """The number of what is not copied."""
        bound = isinstance(obj, BuiltinFunctionType) and not isinstance(obj.__self__, ModuleType | None)
        if bound or not isinstance(obj, type | FunctionType | BuiltinFunctionType | ModuleType):
            return None
        self.code[id(obj)] = obj
        return id(obj)


class _Loader(pickle.Unpickler):
    code: dict[int, Any]

    def persistent_load(self, number: int) -> Any:
        """What has this number."""
        return self.code[number]
