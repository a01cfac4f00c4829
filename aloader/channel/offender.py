"""Where in an object the part is that cannot be pickled. Only after a pickle has failed: it tries every part again."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

DEPTH = 64

#: What lies inside these is nobody's concern: a lock's semaphore, a queue's pipe.
OPAQUE = ("multiprocessing.", "torch.multiprocessing.")


def explain(root: object, name: str | Sequence[str], write: Callable[[object], object]) -> str:
    """The place and type of the innermost part that `write` fails on: "batch['meta'][2]: _thread.lock".

    `name` is what the root is called; several names are those of its items.
    """
    try:
        path, part = find(root, name, write)
    except Exception:  # objects of users' classes are asked for their parts, and may answer anything
        path, part = name if isinstance(name, str) else ", ".join(name), root
    return f"{path}: {type_name(type(part))}"


def find(root: object, name: str | Sequence[str], write: Callable[[object], object]) -> tuple[str, object]:
    """The path to that part, and the part."""
    path, part = ("", root) if not isinstance(name, str) else (name, root)
    children = zip(name, root, strict=False) if not isinstance(name, str) else None  # type: ignore[call-overload]
    seen = {id(root)}
    for _ in range(DEPTH):
        if type_name(type(part)).startswith(OPAQUE):
            break
        below = children if children is not None else parts_of(part, path)
        children = None
        for child_path, child in below:
            if id(child) not in seen and _fails(child, write):
                path, part = child_path, child
                seen.add(id(child))
                break
        else:
            break
    return path or ", ".join(name), part


def type_name(kind: type) -> str:
    """How an error names a type."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _fails(part: object, write: Callable[[object], object]) -> bool:
    try:
        write(part)
    except Exception:
        return True
    return False


def parts_of(obj: Any, path: str) -> Iterator[tuple[str, object]]:
    """What an object is pickled with, each with its path."""
    if isinstance(obj, FunctionType):
        yield from ((f"{path}, captured {name!r}", value) for name, value in captured_by(obj))
        defaults = (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values())
        yield from ((f"{path}, a default", value) for value in defaults)
        return
    if isinstance(obj, MethodType):
        yield f"{path}.__self__", obj.__self__
        return
    if isinstance(obj, dict):
        for key, value in obj.items():
            yield f"{path}[{safe_repr(key)}]", value
            yield f"{path}, key {safe_repr(key)}", key
    elif isinstance(obj, tuple) and hasattr(obj, "_fields"):
        yield from ((f"{path}.{field}", value) for field, value in zip(obj._fields, obj, strict=False))
    elif isinstance(obj, list | tuple):
        yield from ((f"{path}[{place}]", value) for place, value in enumerate(obj))
    elif isinstance(obj, set | frozenset):
        yield from ((f"{path}, element {safe_repr(value)}", value) for value in obj)
    yield from _state_of(obj, path)


def _state_of(obj: Any, path: str) -> Iterator[tuple[str, object]]:
    """What `__getstate__` or `__reduce_ex__` give: not `__dict__`, of which an object may leave parts out."""
    try:
        rule = obj.__reduce_ex__(4)
    except Exception:  # it says itself that it cannot be pickled; its attributes may say why
        rule = (None, (), getattr(obj, "__dict__", None))
    if not isinstance(rule, tuple):
        return
    state = rule[2] if len(rule) > 2 else None
    for attributes in state if isinstance(state, tuple) else (state,):
        if isinstance(attributes, dict):
            yield from ((f"{path}.{key}", value) for key, value in attributes.items())
    if isinstance(rule[1], tuple):
        yield from ((path, value) for value in rule[1] if not isinstance(value, type))
    for values in rule[3:4]:
        if values is not None and not isinstance(obj, list):
            yield from ((f"{path}[{place}]", value) for place, value in enumerate(values))


def captured_by(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The globals and outer variables that a function uses: pickled by value, it takes them along."""
    for name in sorted(_globals_in(function.__code__) & function.__globals__.keys()):
        yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            pass  # not yet assigned


def _globals_in(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def safe_repr(value: object, most: int = 60) -> str:
    """A repr that never raises, and is never longer than `most`."""
    try:
        text = repr(value)
    except BaseException:  # somebody's `__repr__` may raise anything
        text = f"<{type_name(type(value))} whose repr() fails>"
    return text if len(text) <= most else text[: most - 3] + "..."
