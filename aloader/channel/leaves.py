"""One tensor or array <-> one buffer: how a leaf is taken apart in a worker and made again on the other side.

Only layouts, dtypes and memory may enter here: no pickler, no structure of batches (`payload`), no arena.

What a leaf becomes. A reducer returns what `__reduce__` returns: a rebuild function of this file, and arguments of
which one is a `pickle.PickleBuffer`. Where that buffer travels is not decided here: the rebuild functions take what
they are given (a lease's owner, a fresh `bytearray`, a `memoryview` of a mapped file) and make the leaf **on** it.

Rebuilt tensors are no views (`_is_view()`): a view made under `torch.no_grad()` may not be changed in place outside it,
and nobody knows in which mode the event loop is when a batch arrives. So `.view(shape)` is never used here.
"""

from __future__ import annotations

from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]
    Rule = tuple[Any, ...]  # what `__reduce__` returns

#: The attribute of a tensor's storage that holds the lease's owner: `share_memory_()` frees the memory that a storage
#: had, under numpy views that still read it, but keeps the storage object and with it this attribute.
LEASE: Final = "_aloader_lease"

# A dtype crosses as its place in this list (pickled by name it would be looked up in torch's module for every batch).
# Both sides run the same torch; what an older one does not have leaves a hole. The first ones numpy has too.
_SHARED_NAMES: Final = [
    *("float32", "int64", "uint8", "bool", "float64", "int32", "float16", "int16", "int8"),
    *("complex64", "complex128", "uint16", "uint32", "uint64"),
]
_OTHER_NAMES: Final = [
    *("bfloat16", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn_x2"),
]
_DTYPES: Final[list[Any]] = [getattr(torch, name, None) for name in _SHARED_NAMES + _OTHER_NAMES]
_TWINS: Final[list[Any]] = [np.dtype(name) for name in _SHARED_NAMES] + [None] * len(_OTHER_NAMES)
#: The first place of those that numpy lacks.
BEYOND_NUMPY: Final = len(_SHARED_NAMES)
#: The place of each dtype in the list.
CODES: Final[dict[torch.dtype, int]] = {dtype: code for code, dtype in enumerate(_DTYPES) if dtype is not None}

# Borders of torch and pickle, which mypy sees as nothing or as too narrow.
_utils: Final[Any] = torch._utils
_tensor: Final[Any] = torch._tensor
_UntypedStorage: Final[Any] = torch.UntypedStorage
_Buffer: Final[Any] = PickleBuffer


class RefusedError(RuntimeError):
    """A leaf that must not cross: the sentence says why and what to do. `pack` adds where in the batch it is."""


class OnlyInheritedError(RefusedError):
    """What a process can have from the one that it is forked from, and in no other way."""


NON_LEAF: Final = (
    "a tensor that requires grad and is not a leaf cannot leave its process: the graph behind it stays there. "
    "Call .detach() on it in the dataset or collate_fn."
)
ON_DEVICE: Final = (
    "a tensor on {device} cannot pass between the loader's processes: its memory belongs to the device context of one "
    "process. Give CPU tensors (.cpu()), and let the training loop move the batch: pin_memory=True, and "
    ".to(device, non_blocking=True)."
)


# -- taking apart ----------------------------------------------------------------------------------------------------


def origin(tensor: torch.Tensor) -> int:
    """The address at which a tensor's storage begins, without making the storage's Python object."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes [low, high) of its storage that a tensor reaches."""
    low = int(tensor.storage_offset())
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return low * tensor.element_size(), (low + (reach if tensor.numel() else 0)) * tensor.element_size()


def raw_bytes(storage: torch.UntypedStorage, low: int, high: int) -> torch.Tensor:
    """A uint8 tensor over the bytes [low, high) of a storage: so dtypes that numpy lacks have a buffer too."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, low, (high - low,), (1,))


def code_of(dtype: torch.dtype) -> int | torch.dtype:
    """How a dtype is written."""
    return CODES.get(dtype, dtype)


def lies_in_memory(tensor: torch.Tensor) -> bool:
    """Whether it is a plain stretch of CPU memory. Refuses what must not leave a worker."""
    if tensor.device.type == "cuda":
        raise RefusedError(ON_DEVICE.format(device=tensor.device))
    if tensor.requires_grad and not tensor.is_leaf:
        raise RefusedError(NON_LEAF)
    return (
        tensor.device.type == "cpu" and tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
    )


def reduce_memory(tensor: torch.Tensor) -> Rule:
    """The rule for the data of a tensor that `lies_in_memory`, in whatever layout."""
    data = tensor.detach()
    if data.is_conj() or data.is_neg():
        data = data.resolve_conj().resolve_neg()
    if data.is_contiguous() and data.ndim and data.numel():
        return tensor_on, (_Buffer(data.view(torch.uint8).numpy()), code_of(data.dtype), tuple(data.shape))
    low, high = span(data)
    if high - low > data.numel() * data.element_size():  # gaps: what lies in them must not travel
        data = data.contiguous()
        low, high = span(data)
    code, shape = code_of(data.dtype), tuple(data.shape)
    if low == high:
        return empty_of, (code, shape, data.stride())
    buffer = _Buffer(raw_bytes(data.untyped_storage(), low, high).numpy())
    if data.is_contiguous():
        return tensor_on, (buffer, code, shape)
    return strided_on, (buffer, code, shape, data.stride())


def with_flags(tensor: torch.Tensor, rule: Rule) -> Rule:
    """Adds to a rule what is neither memory nor layout: `requires_grad` and attributes that the user has set."""
    requires_grad, attributes = tensor.requires_grad, tensor.__dict__
    if not requires_grad and not attributes:
        return rule
    return (*rule, (requires_grad, dict(attributes)), None, None, set_flags)


def reduce_subclass(tensor: torch.Tensor) -> Rule | None:
    """The rule for a subclass that only adds methods and attributes; None where it has a reduction of its own.

    Torch's own reduction would carry the whole storage behind a view: a batch of samples cut from one large tensor
    would take the large tensor along, once each.
    """
    kind = type(tensor)
    own_reduction = kind.__reduce_ex__ is not torch.Tensor.__reduce_ex__
    if own_reduction or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        if not lies_in_memory(tensor):
            return None
        plain = tensor.detach().as_subclass(torch.Tensor)
        state = _utils._get_obj_state(tensor)
        return subclass_of, (plain, kind, tensor.requires_grad, state)


def reduce_storage(storage: Any) -> Rule | None:
    """The rule for a storage in CPU memory: torch's own writes it through `torch.save`, in band."""
    if isinstance(storage, torch.storage.TypedStorage):
        return typed_storage, (storage._untyped_storage, code_of(storage.dtype))
    if storage.device.type != "cpu":
        if storage.device.type == "cuda":
            raise RefusedError(ON_DEVICE.format(device=storage.device))
        return None
    size = storage.nbytes()
    return storage_on, (_Buffer(raw_bytes(storage, 0, size).numpy()) if size else b"",)


def reduce_array(array: Array) -> Rule | None:
    """The rule for an array without objects in it; None: numpy must reduce it."""
    dtype = array.dtype
    if dtype.hasobject or not dtype.itemsize:
        return None
    flags = array.flags
    order = "C" if flags.c_contiguous else "F"
    if order == "F" and not flags.f_contiguous:
        order, writable = "C", flags.writeable
        array = np.ascontiguousarray(array)
        array.flags.writeable = writable
    name = dtype.str if dtype.kind in "biufc" else dtype
    try:
        return array_on, (_Buffer(array), name, array.shape, order)
    except (ValueError, BufferError):  # datetime64 and dtypes of other libraries export no buffer
        flat = array.reshape(-1, order=order).view(np.uint8)  # type: ignore[call-overload]
        return array_on, (_Buffer(flat), name, array.shape, order)


def reduce_memmap(array: Array) -> Rule | None:
    """The rule for a `np.memmap`: it crosses by value and comes back writable, as numpy's own pickle does it."""
    rule = reduce_array(array.view(np.ndarray))
    return None if rule is None else (memmap_on, rule[1])


# -- making again ----------------------------------------------------------------------------------------------------


def tensor_on(buffer: Any, code: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """A contiguous tensor on the memory of a buffer."""
    twin = _TWINS[code] if type(code) is int else None
    if twin is not None:  # one call of numpy for dtype and shape costs half of torch's two
        tensor = torch.from_numpy(np.ndarray(shape, twin, buffer))
    else:
        tensor = torch.frombuffer(buffer, dtype=_dtype_of(code)).resize_(shape)
    if type(buffer) is np.ndarray:
        setattr(tensor.untyped_storage(), LEASE, buffer)
    return tensor


def strided_on(buffer: Any, code: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """A tensor of any layout on the memory of a buffer, of which it reaches the first and the last byte."""
    tensor = torch.frombuffer(buffer, dtype=_dtype_of(code)).as_strided_(shape, stride)
    if type(buffer) is np.ndarray:
        setattr(tensor.untyped_storage(), LEASE, buffer)
    return tensor


def part_of(base: torch.Tensor, code: Any, offset: int, shape: tuple[int, ...], stride: Any) -> torch.Tensor:
    """A tensor on the storage of another: so tensors that share memory still share it on the other side."""
    return on_storage(base.untyped_storage(), code, offset, shape, stride)


def on_storage(storage: Any, code: Any, offset: int, shape: tuple[int, ...], stride: Any) -> torch.Tensor:
    """A tensor on a storage."""
    return torch.empty(0, dtype=_dtype_of(code), device="cpu").set_(storage, offset, shape, stride)


def empty_of(code: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """A tensor without elements: there is no memory to make it on."""
    return torch.empty_strided(shape, stride, dtype=_dtype_of(code), device="cpu")


def set_flags(tensor: torch.Tensor, flags: tuple[bool, dict[str, Any]]) -> None:
    """Gives a rebuilt tensor what `with_flags` has written."""
    requires_grad, attributes = flags
    tensor.__dict__.update(attributes)
    if requires_grad:
        tensor.requires_grad_()


def subclass_of(plain: torch.Tensor, kind: type, requires_grad: bool, state: Any) -> torch.Tensor:
    """A tensor of a subclass on the memory of a plain one, with its attributes."""
    rebuilt: torch.Tensor = _tensor._rebuild_from_type_v2(_same, kind, (plain,), state)
    with torch._C.DisableTorchFunctionSubclass():
        return rebuilt.requires_grad_() if requires_grad else rebuilt


def storage_on(buffer: Any) -> Any:
    """A storage on the memory of a buffer."""
    if not len(buffer):
        return _UntypedStorage(0)
    storage = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    if type(buffer) is np.ndarray:
        setattr(storage, LEASE, buffer)
    return storage


def typed_storage(storage: torch.UntypedStorage, code: Any) -> Any:
    """A storage that knows its dtype."""
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=_dtype_of(code), _internal=True)  # type: ignore[no-untyped-call]


def array_on(buffer: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Array:
    """An array on the memory of a buffer; it can be written if the buffer can."""
    return np.ndarray(shape, dtype, buffer, 0, None, order)


def memmap_on(buffer: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Array:
    """A `np.memmap` of no file on the memory of a buffer, writable though the file may not have been."""
    if type(buffer) is bytes:
        buffer = bytearray(buffer)
    elif type(buffer) is memoryview and buffer.readonly and type(owner := _exporter(buffer)) is np.ndarray:
        buffer = owner  # the lease's owner, which pickle has wrapped because its source could not be written
    return array_on(buffer, dtype, shape, order).view(np.memmap)


def _dtype_of(code: Any) -> Any:
    return _DTYPES[code] if type(code) is int else code


def _exporter(view: memoryview) -> Any:
    return view.obj


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
