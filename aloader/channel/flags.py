"""Flags in modules: `PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True` in the script holds in a worker, as after a fork.

A worker imports modules anew, and they have the values there that their own code gives them. The parent does not know
which of its values are that, so it sends all simple ones of public names (`snapshot`), and the worker sets those that
differ: in modules that are there already, and from then on in each module at the end of its import, lazy ones too.

What is left alone, since a fork would have had the rest of it as well:

- what a module's own functions assign (`global name`): its state, as a counter, a cache, or `initialized = True` beside
  a client that is not carried. Those that look like a setting nevertheless are named (`Flags.left`);
- names with a leading underscore, and private modules; everything of the standard library, torch and numpy
  (`defaults` carries what matters), of this package, and of `__main__`, which cloudpickle looks after;
- how many threads something uses: in workers, one.
"""

from __future__ import annotations

import dis
import importlib.machinery
import pickle
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from itertools import compress
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Self

Simple = bool | int | float | str | None
Values = dict[str, dict[str, Simple]]  # module → name → value

_SIMPLE: Final = frozenset({bool, int, float, str, type(None)})
_NOT_OURS: Final = frozenset(sys.stdlib_module_names) | {"torch", "functorch", "numpy", "aloader"}

#: A longer text is documentation or data.
_LONGEST: Final = 1000

#: Loaders that belong to one module each, so that they can be told what to do at its end.
_LOADERS: Final = (
    importlib.machinery.SourceFileLoader,
    importlib.machinery.SourcelessFileLoader,
    importlib.machinery.ExtensionFileLoader,
)


# -- in the parent ---------------------------------------------------------------------------------------------------


def snapshot() -> Values:
    """The simple values of all public names of the modules that are loaded. 5 ms where there are two thousand."""
    found = {}
    for name, module in sys.modules.copy().items():
        if "._" in name or name[:1] == "_" or name.partition(".")[0] in _NOT_OURS:
            continue
        namespace = _namespace(module).copy()
        simple = compress(namespace.items(), map(_SIMPLE.__contains__, map(type, namespace.values())))
        mine = {key: value for key, value in simple if key[:1] != "_" and not _is_long(value)}
        if mine:
            found[name] = mine
    return found


def changes(old: Values, new: Values) -> bytes:
    """What has another value in `new`, or is only there: for `follow`; nothing at all where nothing has."""
    found = {}
    for name, values in new.items():
        before = old.get(name, {})
        changed = {key: value for key, value in values.items() if not _same(before.get(key, before), value)}
        if changed:
            found[name] = changed
    return pickle.dumps(found, 5) if found else b""


def replaced_by_main() -> list[str]:
    """Names of public modules that hold a function or class of the script: they will hold their own in a worker."""
    main = sys.modules.get("__main__")
    own = _namespace(main)
    found = []
    for name, module in sys.modules.copy().items():
        if "._" in name or name[:1] == "_" or name == "sys" or module is main:
            continue
        namespace = _namespace(module).copy()
        functions = compress(namespace.items(), map({FunctionType, type}.__contains__, map(type, namespace.values())))
        found += [f"{name}.{key}" for key, value in functions if _is_of(value, own)]
    return found


def _is_of(value: Any, own: dict[str, Any]) -> bool:
    if type(value) is FunctionType:
        return value.__globals__ is own
    return value.__module__ == "__main__" and own.get(value.__name__) is value


def _is_long(value: Simple) -> bool:
    return type(value) is str and len(value) > _LONGEST


# -- in a worker -----------------------------------------------------------------------------------------------------


def follow(pickled: bytes) -> None:
    """Have the parent's values (pickled `Values`) from now on."""
    values: Values = pickle.loads(pickled)
    if values:
        Flags.of_this_process().follow(values)


class Flags(MetaPathFinder):
    """Finds modules as the others do, and sees to it that they get the parent's values once they have been imported."""

    def __init__(self) -> None:
        self.values: Values = {}
        self.left: set[str] = set()  # settings, by their looks, that a module's own functions have made in the parent

    @classmethod
    def of_this_process(cls) -> Self:
        """The one that is in use here."""
        for finder in sys.meta_path:
            if isinstance(finder, cls):
                return finder
        made = cls()
        sys.meta_path.insert(0, made)
        return made

    def follow(self, values: Values) -> None:
        """Set these from now on, and where they are already."""
        for name, mine in values.items():
            self.values.setdefault(name, {}).update(mine)
            if name in sys.modules:
                self._set(name)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.values:
            return None
        others = (getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not self)
        spec = next((spec for find in others if find and (spec := find(fullname, path, target))), None)
        if spec is not None and isinstance(spec.loader, _LOADERS):
            self._set_after_import(fullname, spec.loader)
        return spec

    def _set_after_import(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_set(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._set(name)

        loader.exec_module = execute_and_set

    def _set(self, name: str) -> None:
        module = sys.modules.get(name)  # which may have put another one in its place
        namespace = _namespace(module)
        wanted = self.values[name].items()
        differing = {key: value for key, value in wanted if not _same(namespace.get(key, self), value)}
        if not differing or not namespace:
            return
        own = set(_assigned_by(_code_of(name, namespace)))
        for key, value in differing.items():
            if key in own:
                if _looks_set(key, value, namespace):
                    self.left.add(f"{name}.{key}")
            elif "thread" not in key.lower():
                namespace[key] = value


def _looks_set(key: str, value: Simple, namespace: dict[str, Any]) -> bool:
    """Whether it is rather a setting than a counter or a cache, going by its name and by whose module it is."""
    if key.isupper():
        return True
    file = str(namespace.get("__file__"))
    return type(value) is not int and "site-packages" not in file and "dist-packages" not in file


def _code_of(name: str, namespace: dict[str, Any]) -> CodeType | None:
    """The module's code: all its functions are in there, however they have been wrapped since."""
    loader = getattr(namespace.get("__spec__"), "loader", None)
    try:
        code = loader.get_code(name)  # type: ignore[union-attr]
    except Exception:  # no such method, no source any more …
        return None
    return code if isinstance(code, CodeType) else None


def _assigned_by(code: CodeType | None, inside: bool = False) -> Iterator[str]:
    """The names that functions declare `global` and assign."""
    if code is None:
        return
    if inside:
        yield from (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _assigned_by(constant, True)


def _namespace(module: Any) -> dict[str, Any]:
    """A module's names, without waking one that loads itself on first use."""
    if not isinstance(module, ModuleType):
        return {}
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return names


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))  # not a number
