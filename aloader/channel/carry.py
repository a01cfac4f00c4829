"""Dataset, collate function and all that hangs on them <-> bytes: pickled once by the parent, for every worker.

Other than a batch (`payload`), this goes the other way, once, and is read by many: everything large lies outside the
stream, so that workers share its pages; classes and functions of `__main__`, lambdas and closures go by value, since a
worker never runs the user's script; what is a file already goes by its name.
"""

from __future__ import annotations

import functools
import mmap
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cloudpickle
import numpy as np
import torch

from .. import options
from . import leaves
from .leaves import OnlyInheritedError
from .offender import captured_by, type_name
from .payload import Reducers, dump, failed

if TYPE_CHECKING:
    from .leaves import Array, Rule

#: Leaves of this size and more lie outside the stream: a page, below which there is nothing to share.
OUTSIDE_BYTES: Final = 4 * options.KIB

#: What is bound to the process that made it, unless processes inherit it. (A `Connection` would even be pickled: as the
#: number of a descriptor, which is another one in the worker.)
_INHERITED: Final = (
    *("multiprocessing.synchronize.", "multiprocessing.queues.", "multiprocessing.sharedctypes."),
    *("multiprocessing.connection.", "multiprocessing.heap.", "torch.multiprocessing.queue."),
)
_INHERIT: Final = (
    "it can only be inherited by a worker, not sent to one. Give the loader (or its pool) "
    'multiprocessing_context="fork", or make it where it is used.'
)

Share = Callable[[torch.UntypedStorage], "Rule | None"]


class Carried(NamedTuple):
    """A pickled object; `captured` names what functions have brought along that weighs more than `CAPTURED_BYTES`."""

    body: bytes
    buffers: list[memoryview]
    captured: list[str]


def carry(obj: object, name: str | Sequence[str] | None = None, share: Share | None = None) -> Carried:
    """Writes an object for worker processes. In the parent, in any thread; takes as long as its Python objects take.

    `name` is what errors call it; several are the names of its items; by default the fields of a named tuple.
    `share` is asked how a storage in shared memory is reduced (`None`: by value), for example to a descriptor's place.

    Raises:
        TypeError: something in it cannot be pickled; names its type and its place.
        RuntimeError: something in it can only be inherited (locks, queues, values of `multiprocessing`), or must not
            leave the process (CUDA tensors, tensors with a graph).
    """
    by_value: list[FunctionType] = []
    kind = functools.partial(_Carrier, share=share, by_value=by_value)
    try:
        body, buffers = dump(kind, obj, OUTSIDE_BYTES)
    except MemoryError:
        raise
    except Exception as error:
        called: Any = name or getattr(obj, "_fields", "dataset")
        raise failed(error, obj, called, kind) from error
    heavy = len(body) + sum(map(len, buffers)) > options.CAPTURED_BYTES
    return Carried(body, buffers, list(dict.fromkeys(_heavy(by_value, kind))) if heavy else [])


def restore(body: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Makes it again, its arrays and tensors on the memory of the buffers: writable, contiguous, of any kind."""
    return pickle.loads(body, buffers=buffers)


class _Carrier(Reducers, cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(
        self, file: Any, protocol: int, buffer_callback: Any, share: Share | None, by_value: list[FunctionType]
    ) -> None:
        super().__init__(file, protocol, buffer_callback)
        self.share = share
        self.by_value = by_value

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return _reduce_code(obj)
        rule = self._by_reference(obj)
        if rule is None:
            rule = self.leaf(obj)
        if rule is NotImplemented:
            if type_name(type(obj)).startswith(_INHERITED):
                raise OnlyInheritedError(_INHERIT)
            rule = super().reducer_override(obj)
            if isinstance(obj, FunctionType) and rule is not NotImplemented:
                self.by_value.append(obj)
        return rule

    def _by_reference(self, obj: Any) -> Rule | None:
        """The rule for memory that others can reach too."""
        if isinstance(obj, np.ndarray):
            owner = obj if type(obj) is np.memmap else obj.base
            return _reduce_file(obj, owner) if type(owner) is np.memmap else None
        if self.share is None:
            return None
        if isinstance(obj, torch.UntypedStorage):
            return self.share(obj) if _is_shared(obj) else None
        if type(obj) is torch.Tensor and leaves.lies_in_memory(obj) and _is_shared(obj.untyped_storage()):
            layout = (leaves.code_of(obj.dtype), obj.storage_offset(), tuple(obj.shape), obj.stride())
            return leaves.with_flags(obj, (leaves.on_storage, (obj.untyped_storage(), *layout)))
        return None


def _reduce_code(code: CodeType) -> Rule:
    """Code by value, with the name of its file, by which tracebacks and debuggers find its lines.

    cloudpickle (3.1.3) puts a constant there, so that pickles of other programs are the same. A copy of the name: what
    is pickled must not depend on which strings happen to be one object.
    """
    make, arguments = cloudpickle.cloudpickle._code_reduce(code)
    return make, tuple("".join(code.co_filename) if x == "<dynamic-code>" else x for x in arguments)


# -- arrays that are a stretch of a file ------------------------------------------------------------------------------


def _reduce_file(array: Array, owner: Any) -> Rule | None:
    """The rule for an array on a mapped file: a hundred gigabytes of tokens are opened again, never copied.

    None where it is not the file that counts: changes kept private (mode "c"), a file that has gone or been replaced.
    """
    memory, flags = owner._mmap, array.flags
    if memory is None or owner.mode == "c" or not array.nbytes or array.dtype.hasobject or not flags.forc:
        return None
    begin = int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
    address = int(array.__array_interface__["data"][0])
    if owner.filename is None or not _is_mapped(os.fspath(owner.filename), begin):
        return None
    offset = owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY + address - begin
    mode = "r+" if flags.writeable else "r"
    order = "C" if flags.c_contiguous else "F"
    return _open_file, (os.fspath(owner.filename), array.dtype, mode, offset, array.shape, order, type(array))


def _open_file(name: str, dtype: Any, mode: Any, offset: int, shape: tuple[int, ...], order: Any, kind: Any) -> Array:
    array = np.memmap(name, dtype, mode, offset, shape, order)
    return array if kind is np.memmap else array.view(kind)


def _is_mapped(name: str, address: int) -> bool:
    """Whether the file that has that name now is the one mapped at an address."""
    try:
        inode = os.stat(name).st_ino
        with open("/proc/self/maps") as maps:
            return any(_covers(line, address) and int(line.split()[4]) == inode for line in maps)
    except OSError:
        return False


def _covers(line: str, address: int) -> bool:
    begin, end = line.split(maxsplit=1)[0].split("-")
    return int(begin, 16) <= address < int(end, 16)


def _is_shared(storage: Any) -> bool:
    return bool(storage.is_shared())


# -- what functions bring along ---------------------------------------------------------------------------------------


def _heavy(functions: list[FunctionType], kind: Any) -> Iterator[str]:
    for function in functions:
        for name, value in captured_by(function):
            if not isinstance(value, FunctionType | ModuleType | type) and _weighs_too_much(value, kind):
                yield f"{name} (captured by function {function.__qualname__!r})"


def _weighs_too_much(value: object, kind: Any) -> bool:
    scale = _Scale()
    try:
        pickler = kind(scale, 5, buffer_callback=scale.weigh)
        pickler.seen, pickler.again, pickler.runs = {}, {}, {}
        pickler.dump(value)
    except Exception:  # stopped by the scale; what cannot be pickled at all has been refused before
        pass
    return scale.total > options.CAPTURED_BYTES


class _Scale:
    """A file that only weighs what is written to it, and stops the pickler once that is enough."""

    def __init__(self) -> None:
        self.total = 0

    def write(self, data: Any) -> None:
        self._add(memoryview(data).nbytes)

    def weigh(self, buffer: pickle.PickleBuffer) -> None:
        self._add(buffer.raw().nbytes)

    def _add(self, nbytes: int) -> None:
        self.total += nbytes
        if self.total > options.CAPTURED_BYTES:
            raise OverflowError
