"""Batch <-> bytes: one pickle stream, and the large leaves beside it. No memory is managed here, and nothing is sent.

Pickle's protocol 5 writes a `PickleBuffer` either into the stream or hands it out. Leaves of `LEASE_BYTES` and more
are handed out: the worker places them in its arena, and `unpack` makes them again on that very memory. Smaller ones
stay in the stream as a BYTEARRAY8, which loads as a fresh, writable bytearray: one copy in all.

Two tensors on one storage still share it on the other side, without the common case paying for it: the first pass
only notes where each tensor's storage begins. If one address comes twice, the spans are laid side by side, and where
the tensors of a run of spans (`x`, `x.t()`, `x[0]`) fill what they reach, a second pass writes that run once. Views
that are far apart in something large each travel alone, and never take the large thing along.

Everything is unpickled from our own worker processes only: never from a file, a store or a cache.
"""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np
import torch

from .. import options
from . import leaves
from .blobs import outside
from .leaves import OnlyInheritedError, RefusedError, code_of, origin, reduce_array, span, tensor_on
from .offender import explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_Tensor = torch.Tensor
_Array = np.ndarray
_Buffer: Any = pickle.PickleBuffer
_CODES = leaves.CODES
_BEYOND_NUMPY = leaves.BEYOND_NUMPY
_STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)


class Packed(NamedTuple):
    """A batch on its way: the stream, and the leaves that are not in it (flat, contiguous, format 'B'), in order.

    The views keep the leaves' memory alive. A leaf that could not be written comes back as one that cannot be, too:
    that stands in the stream, so no view's `readonly` needs to be sent.
    """

    body: bytes
    buffers: list[memoryview]


def pack(batch: object) -> Packed:
    """Writes a batch. In a worker, in whichever thread has collated it.

    Raises:
        TypeError: something in it cannot be pickled, not by cloudpickle either; names its type and its place.
        RuntimeError: a tensor in it must not leave the process (it has a graph behind it, or lies on a GPU).
    """
    try:
        return dump(Plain, outside(batch), options.LEASE_BYTES)
    except MemoryError:
        raise
    except RefusedError as error:
        failure: Exception = error
    except Exception:
        try:  # lambdas, local classes: several times slower, so only where needed
            return dump(Cloud, outside(batch), options.LEASE_BYTES)
        except MemoryError:
            raise
        except Exception as error:
            failure = error
    raise failed(failure, batch, "batch", Cloud) from failure


def unpack(body: bytes | memoryview, buffers: Iterable[Any]) -> Any:
    """Makes a batch again, each leaf on the memory of its buffer, in any mode of torch that the thread is in.

    A buffer is a lease's owner: a uint8 array made directly on the shared mapping. It lives as long as any view of
    the leaf, and is set as `_aloader_lease` on the storage of a tensor.
    """
    if torch.is_inference_mode_enabled():
        # Another task of this thread may be evaluating; an inference tensor would be of no use to one that trains.
        with torch.inference_mode(False):
            return pickle.loads(body, buffers=buffers)
    return pickle.loads(body, buffers=buffers)


def address_of(view: memoryview) -> int:
    """Where the memory of a buffer begins."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def failed(failure: Exception, root: object, name: str | Sequence[str], kind: Any) -> Exception:
    """The error to raise: what and where it is, in the caller's words."""
    where = explain(root, name, lambda part: dump(kind, part, 0))
    if isinstance(failure, OnlyInheritedError):
        return OnlyInheritedError(f"{where}: {failure}")
    if isinstance(failure, RefusedError):
        return RuntimeError(f"{where}: {failure}")
    return TypeError(f"{where} cannot be pickled, and so cannot leave its process: {failure}")


# -- the picklers ----------------------------------------------------------------------------------------------------


class Reducers:
    """What both picklers know of tensors, storages and arrays."""

    seen: dict[int, torch.Tensor]  # the first tensor on each storage, by the address where that begins
    again: dict[int, list[torch.Tensor]]  # all of them, where there are several
    runs: dict[int, list[_Run]]  # second pass: what must be written once

    def leaf(self, obj: Any) -> Any:
        """The rule for a leaf, or NotImplemented."""
        kind = type(obj)
        if kind is _Tensor:
            return self._tensor(obj)
        if kind is _Array:
            return reduce_array(obj) or NotImplemented
        if isinstance(obj, _Tensor):
            return leaves.reduce_subclass(obj) or NotImplemented
        if isinstance(obj, _STORAGES):
            return leaves.reduce_storage(obj) or NotImplemented
        if kind is np.memmap:
            return leaves.reduce_memmap(obj) or NotImplemented
        return NotImplemented

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if self.runs and (rule := self._part(tensor)):
            return rule
        code = _CODES.get(tensor.dtype, _BEYOND_NUMPY)
        if code >= _BEYOND_NUMPY or tensor.requires_grad:
            return self._uncommon(tensor)
        try:  # one call that refuses everything else out of the common: conj, sparse, other devices
            array = tensor.numpy()
        except (TypeError, RuntimeError):
            return self._uncommon(tensor)
        if not array.flags.c_contiguous or not array.size or tensor.__dict__:
            return self._uncommon(tensor)
        self._note(tensor)
        return tensor_on, (_Buffer(array), code, array.shape)

    def _uncommon(self, tensor: torch.Tensor) -> Any:
        if not leaves.lies_in_memory(tensor):
            return NotImplemented  # sparse, quantized, meta …: torch takes it apart, and its parts come here again
        if tensor.numel() and not (tensor.is_conj() or tensor.is_neg()):
            self._note(tensor)
        return leaves.with_flags(tensor, leaves.reduce_memory(tensor))

    def _note(self, tensor: torch.Tensor) -> None:
        address = origin(tensor) if tensor.storage_offset() else tensor.data_ptr()
        first = self.seen.setdefault(address, tensor)
        if first is not tensor:
            self.again.setdefault(address, [first]).append(tensor)

    def _part(self, tensor: torch.Tensor) -> Any:
        """The rule for a tensor in a run, or None. The run's own bytes are a tensor too: the memo writes it once."""
        if not leaves.lies_in_memory(tensor) or not tensor.numel() or tensor.is_conj() or tensor.is_neg():
            return None
        runs = self.runs.get(origin(tensor))
        if runs is None:
            return None
        low, high = span(tensor)
        for run in runs:
            if run.low <= low and high <= run.high and run.base is not tensor:
                offset = (low - run.low) // tensor.element_size()
                what = (run.base, code_of(tensor.dtype), offset, tuple(tensor.shape), tensor.stride())
                return leaves.with_flags(tensor, (leaves.part_of, what))
        return None


class Plain(Reducers, pickle.Pickler):
    """Classes and functions by name."""

    reducer_override = Reducers.leaf


class Cloud(Reducers, cloudpickle.Pickler):  # type: ignore[misc]
    """Classes and functions that have no name to be found by, by value."""

    def reducer_override(self, obj: Any) -> Any:
        rule = self.leaf(obj)
        if rule is not NotImplemented or _is_in_main(obj):
            return rule
        return super().reducer_override(obj)


def _is_in_main(obj: Any) -> bool:
    """Whether a class or function is found in `__main__`: the parent has its own there, and wants no copy of it."""
    if getattr(obj, "__module__", None) != "__main__" or not isinstance(obj, type | FunctionType):
        return False
    found: Any = sys.modules["__main__"]
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is obj


def dump(kind: Any, obj: object, least: int) -> Packed:
    """Writes an object with one of the picklers; buffers of `least` bytes and more are handed out."""
    pickler, packed = _write(kind, obj, least, {})
    if pickler.again and (runs := _runs_of(pickler.again)):
        # The first pickler's memo keeps its temporary tensors: no other can come to lie at an address noted there.
        _, packed = _write(kind, obj, least, runs)
    return packed


def _write(kind: Any, obj: object, least: int, runs: dict[int, list[_Run]]) -> tuple[Any, Packed]:
    file, buffers = io.BytesIO(), list[memoryview]()
    keep = buffers.append

    def stays(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if len(view) < least:
            return True
        keep(view)
        return False

    pickler = kind(file, 5, buffer_callback=stays)
    pickler.seen, pickler.again, pickler.runs = {}, {}, runs
    pickler.dump(obj)
    return pickler, Packed(file.getvalue(), buffers)


# -- storages that several tensors share -----------------------------------------------------------------------------


class _Run(NamedTuple):
    """A stretch of a storage that several tensors reach without a gap, and its bytes."""

    low: int
    high: int
    base: torch.Tensor


def _runs_of(again: dict[int, list[torch.Tensor]]) -> dict[int, list[_Run]]:
    found = {address: list(_runs_in(tensors)) for address, tensors in again.items()}
    return {address: runs for address, runs in found.items() if runs}


def _runs_in(tensors: list[torch.Tensor]) -> Iterator[_Run]:
    """The runs of one storage. A run that is longer than its tensors' sizes together is cheaper to send in pieces."""
    spans = sorted((*span(tensor), place) for place, tensor in enumerate(tensors))
    begin = 0
    while begin < len(spans):
        low, high, widest = spans[begin]
        nbytes, end = 0, begin
        while end < len(spans) and spans[end][0] <= high:
            if spans[end][1] > high:
                _, high, widest = spans[end]
            nbytes += tensors[spans[end][2]].nbytes
            end += 1
        if end - begin > 1 and high - low <= nbytes:
            low = low // 16 * 16  # so that every dtype's elements begin at a whole offset
            # The widest one's, since storages that begin at one address may end at different ones.
            yield _Run(low, high, leaves.raw_bytes(tensors[widest].untyped_storage(), low, high))
        begin = end
