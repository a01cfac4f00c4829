"""Exceptions <-> bytes: what a worker's code raised is raised in the parent as it was. Nothing is raised in here.

Torch rebuilds an exception from its class and one string, and loses `errno`, HTTP status, `response`, notes and every
class with another constructor. Here three ways are tried, in the worker, which can compare the result:

1. pickle (cloudpickle for local classes), if type, arguments and attributes come back the same;
2. in parts: class, arguments, attributes each for itself, put together without calling `__init__`. A part that cannot
   be pickled becomes its repr;
3. `SampleError`, with the text.

What would end the user's program or cut his epoch short if it were raised where he awaits a batch (`SystemExit`,
`KeyboardInterrupt`, `CancelledError`, `StopIteration` …) goes the third way at once.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import traceback
from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

from ..errors import SampleError, WorkerTraceback
from ..options import KIB, MIB
from .hints import hint
from .offender import safe_repr
from .payload import Cloud, Plain, dump

#: Bounds of what one fault may weigh: an exception may hold a whole batch.
FAULT_BYTES = MIB
PART_BYTES = 64 * KIB
TEXT_CHARS = 64 * KIB
REPR_CHARS = KIB
BRIEF_CHARS = 300

# Some of these are no `Exception`, but a class may derive from one of them and from `Exception` too.
_NEVER_RAISED_AGAIN = (
    *(StopIteration, StopAsyncIteration, GeneratorExit),
    *(SystemExit, KeyboardInterrupt, asyncio.CancelledError),
)

# -- in the worker ---------------------------------------------------------------------------------------------------


def pack_fault(exc: BaseException, context: str, note: str = "") -> bytes:
    """Writes what user code has raised. Never fails.

    `context` says where, as "DataLoader worker process 0"; `note` names the sample. At most about 1.3 MiB.
    """
    line = f"Caught {type(exc).__name__} in {context}."
    text = f"{line}\nOriginal {_cut(_formatted(exc), TEXT_CHARS)}"
    summary = f"{line}\n{_cut(_summary(exc), TEXT_CHARS)}"
    said = "\n".join(filter(None, (line, note, _cut(hint(exc), TEXT_CHARS))))
    return pickle.dumps((_exception_bytes(exc), text, summary, said), 5)


class _Parts(NamedTuple):
    """An exception taken apart. Each part is a pickle of its own, with a repr in its place if that cannot be read."""

    kind: bytes
    args: tuple[_Part, ...]
    members: dict[str, _Part]  # fields that builtin classes and `__slots__` keep outside `__dict__`
    attributes: dict[str, _Part]


class _Part(NamedTuple):
    content: bytes | tuple[_Part, ...] | None  # tuple: a sequence of parts (the members of a group)
    text: str  # in its place, if it cannot be read


def _exception_bytes(exc: BaseException) -> bytes | None:
    """The exception by the first way that brings it back; None: by no way."""
    if not _may_be_raised(exc):
        return None
    for way in (_whole, _in_parts):
        try:
            data = way(exc)
        except BaseException:  # `__reduce__`, `__init__`, `__eq__` … of user classes may raise anything
            continue
        if data is not None and len(data) <= FAULT_BYTES:
            return data
    return None


def _whole(exc: BaseException) -> bytes | None:
    data = _pickled(exc, FAULT_BYTES)
    return data if data is not None and _is_same(pickle.loads(data), exc) else None


def _in_parts(exc: BaseException) -> bytes | None:
    data = pickle.dumps(_take_apart(exc), 5)
    return data if type(_put_together(pickle.loads(data))) is type(exc) else None


def _take_apart(exc: BaseException) -> _Parts:
    kind = _pickled(type(exc), PART_BYTES)
    if kind is None or pickle.loads(kind) is not type(exc):
        raise TypeError(type(exc))
    members = {name: _part(value) for name, value in _members(exc) if value is not None}
    attributes = {name: _part(value) for name, value in exc.__dict__.items()}
    return _Parts(kind, tuple(map(_part, exc.args)), members, attributes)


def _part(value: object) -> _Part:
    text = safe_repr(value, REPR_CHARS)
    if isinstance(value, BaseException):
        return _Part(_nested(value), text)
    if isinstance(value, list | tuple) and any(isinstance(item, BaseException) for item in value):
        return _Part(tuple(map(_part, value)), text)
    try:
        data = _pickled(value, PART_BYTES)
        if data is not None:
            pickle.loads(data)
    except BaseException:
        data = None
    return _Part(data, text)


def _nested(exc: BaseException) -> bytes:
    """An exception inside another: a group that has one which cannot be carried keeps the others."""
    return _exception_bytes(exc) or pickle.dumps(SampleError(_summary(exc)), 5)


def _pickled(value: object, most: int) -> bytes | None:
    for kind in (Plain, Cloud):
        try:
            body = dump(kind, value, sys.maxsize).body
        except BaseException:
            continue
        return body if len(body) <= most else None
    return None


def _is_same(other: Any, exc: BaseException) -> bool:
    return (
        type(other) is type(exc)
        and _alike(other.args, exc.args)
        and _alike(dict(_members(other)), dict(_members(exc)))
        and _alike(other.__dict__, exc.__dict__)
    )


def _alike(one: Any, other: Any) -> bool:
    """Equal, as far as the objects let one say it."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, BaseException):
        return _is_same(other, one)
    equal: Any = type(one).__eq__
    try:
        return equal is object.__eq__ or bool(one == other) or repr(one) == repr(other)
    except Exception:  # tensors and arrays have no single answer
        return True


def _members(exc: BaseException) -> Iterator[tuple[str, object]]:
    """`errno`, `encoding`, `lineno`, what `__slots__` hold …: fields that are not in `__dict__`."""
    for kind in type(exc).__mro__:
        for name, descriptor in vars(kind).items():
            # `obj` of an AttributeError is whatever the attribute was missing on: the dataset, as a rule.
            if name.startswith("__") or name in ("args", "obj"):
                continue
            if isinstance(descriptor, MemberDescriptorType | GetSetDescriptorType):
                try:
                    yield name, descriptor.__get__(exc)
                except AttributeError:
                    pass  # not set


def _formatted(exc: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(exc))
    except BaseException:  # a hostile `__str__` is dealt with by traceback itself; other hooks are not
        stack = "".join(traceback.format_tb(exc.__traceback__))
        return f"Traceback (most recent call last):\n{stack}{_summary(exc)}"


def _summary(exc: BaseException) -> str:
    try:
        text = str(exc)
    except BaseException:
        text = "<its str() fails>"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def brief(exc: BaseException) -> str:
    """Its type and text, for a line of somebody else's."""
    return _cut(_summary(exc), BRIEF_CHARS)


def _cut(text: str, most: int) -> str:
    """What is said first and last is worth most."""
    if len(text) > most:
        text = f"{text[: most // 2]}\n[… {len(text) - most} characters …]\n{text[-(most // 2) :]}"
    return text.encode("utf-8", "backslashreplace").decode()  # lone surrogates could not be written


# -- in the parent ---------------------------------------------------------------------------------------------------


def unpack_fault(data: bytes | memoryview) -> Exception:
    """The exception to raise in the parent, with the worker's traceback as its `__cause__`. Never fails."""
    packed, text, summary, note = pickle.loads(data)
    exc = None if packed is None else _read(packed, None)
    if not _may_be_raised(exc):
        exc = SampleError(summary)
    assert isinstance(exc, Exception)
    # Not by assignment and `add_note`: a frozen dataclass refuses both, and a class may have an `add_note` of its own.
    BaseException.__dict__["__cause__"].__set__(exc, WorkerTraceback(text))
    notes = exc.__dict__.setdefault("__notes__", [])
    if isinstance(notes, list):
        notes.append(note)
    return exc


def _read(data: bytes, otherwise: Any) -> Any:
    try:
        found = pickle.loads(data)
        return _put_together(found) if isinstance(found, _Parts) else found
    except KeyboardInterrupt:
        raise  # the user's own
    except BaseException:  # a class that cannot be imported here, a `__setstate__` that raises …
        return otherwise


def _put_together(parts: _Parts) -> BaseException:
    kind: Any = pickle.loads(parts.kind)
    args = tuple(map(_value, parts.args))
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    try:
        exc = kind.__new__(kind, *args)
    except Exception:
        exc = builtin.__new__(kind, *args)
    try:
        builtin.__init__(exc, *args)  # this one only fills fields; `kind.__init__` may want other arguments
    except Exception:
        pass
    for name, part in parts.members.items():
        try:
            object.__setattr__(exc, name, _value(part))
        except Exception:
            pass  # a field that is derived from the arguments
    BaseException.__dict__["args"].__set__(exc, args)
    exc.__dict__.update((name, _value(part)) for name, part in parts.attributes.items())
    assert isinstance(exc, BaseException)
    return exc


def _value(part: _Part) -> Any:
    if part.content is None:
        return part.text
    if isinstance(part.content, tuple):
        return [_value(item) for item in part.content]
    return _read(part.content, part.text)


def _may_be_raised(exc: object) -> bool:
    return isinstance(exc, Exception) and not isinstance(exc, _NEVER_RAISED_AGAIN)
