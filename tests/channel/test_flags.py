"""Flags in modules: a worker's have the parent's values, those imported later too; a module's state is left alone."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aloader.channel import flags

SOURCE = """
import functools
ON = False
level = 3
text = None
ratio = 0.5
_private = 1
both = 1
NUM_THREADS = 1
LICENSE = "x" * 5000
items = [1]

count = 0
seen = ""
READY = False

def work():
    global count, seen
    count += 1
    seen = "it"

class Client:
    @functools.lru_cache
    def connect(self):
        def inside():
            global READY
            READY = True
        inside()
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes modules that can be imported, and lets go of them and of all finders afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    modules, finders = set(sys.modules), list(sys.meta_path)

    def make(name: str, source: str = SOURCE) -> None:
        file = tmp_path / (name.replace(".", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        importlib.invalidate_caches()

    yield make
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def values_of(name: str) -> dict[str, Any]:
    return flags.snapshot()[name]


def anew(*names: str) -> None:
    """As in another process: imported modules are forgotten."""
    for name in names:
        del sys.modules[name]


def follow(values: flags.Values) -> flags.Flags:
    flags.follow(pickle.dumps(values))
    return flags.Flags.of_this_process()


def test_a_snapshot_has_simple_values_of_public_names(make):
    make("shelf")
    shelf = importlib.import_module("shelf")
    shelf.added = "later"
    settings = {"ON": False, "level": 3, "text": None, "ratio": 0.5, "both": 1, "NUM_THREADS": 1, "added": "later"}
    assert values_of("shelf") == settings | {"count": 0, "seen": "", "READY": False}


def test_a_snapshot_leaves_out_what_is_carried_otherwise_or_private(make):
    make("_hidden", "ON = 1")
    make("open_one._hidden", "ON = 1")
    make("open_one.seen", "ON = 1")
    for name in ("_hidden", "open_one._hidden", "open_one.seen", "PIL.ImageFile", "json", "torch.nn", "numpy.linalg"):
        importlib.import_module(name)
    found = flags.snapshot()
    assert {"PIL.ImageFile", "open_one.seen"} <= found.keys()
    tops = {name.partition(".")[0] for name in found}
    assert not tops & {"__main__", "json", "os", "torch", "numpy", "aloader", "_hidden"}
    assert "open_one._hidden" not in found


def test_a_snapshot_wakes_no_module_that_loads_itself_on_first_use(make):
    make("sleeper", "raise AssertionError('woken')")
    spec = importlib.util.find_spec("sleeper")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sleeper"] = module
    spec.loader.exec_module(module)
    flags.snapshot()
    flags.replaced_by_main()
    with pytest.raises(AssertionError, match="woken"):
        module.anything  # noqa: B018


@pytest.mark.parametrize("loaded_before", [True, False])
def test_what_was_set_from_outside_is_set_in_a_worker(make, loaded_before):
    make("shelf")
    shelf: Any = importlib.import_module("shelf")
    shelf.ON, shelf.level, shelf.text, shelf.ratio, shelf.added = True, True, "set", None, 5
    values = flags.snapshot()
    anew("shelf")
    if loaded_before:
        importlib.import_module("shelf")
    finder = follow({"shelf": values["shelf"]})
    again: Any = importlib.import_module("shelf")
    assert again is not shelf
    assert (again.ON, again.text, again.ratio, again.added, again._private) == (True, "set", None, 5, 1)
    assert again.level is True
    assert "exec_module" not in vars(again.__loader__)
    assert finder.left == set()


def test_a_modules_own_state_is_left_alone_and_named_where_it_looks_like_a_setting(make):
    make("shelf")
    shelf: Any = importlib.import_module("shelf")
    shelf.work()
    shelf.Client().connect()
    assert (shelf.count, shelf.seen, shelf.READY) == (1, "it", True)
    values = values_of("shelf")
    anew("shelf")
    finder = follow({"shelf": values})
    again: Any = importlib.import_module("shelf")
    assert (again.count, again.seen, again.READY) == (0, "", False)
    assert finder.left == {"shelf.seen", "shelf.READY"}  # the counter is nobody's setting


def test_lower_case_state_of_installed_packages_is_not_named(make, tmp_path):
    make("site-packages/lib")
    sys.path.insert(0, str(tmp_path / "site-packages"))
    lib: Any = importlib.import_module("lib")
    lib.work()
    lib.Client().connect()
    values = values_of("lib")
    anew("lib")
    finder = follow({"lib": values})
    importlib.import_module("lib")
    assert finder.left == {"lib.READY"}


def test_workers_stay_single_threaded(make):
    make("shelf")
    follow({"shelf": {"NUM_THREADS": 8, "ON": True}})
    shelf: Any = importlib.import_module("shelf")
    assert (shelf.NUM_THREADS, shelf.ON) == (1, True)


def test_a_name_that_is_something_else_here_becomes_what_it_is_there(make):
    """`library.optional_dependency = None` switches it off."""
    make("shelf", "import json\noptional = json")
    follow({"shelf": {"optional": None}})
    assert importlib.import_module("shelf").optional is None  # type: ignore[attr-defined]


def test_a_module_that_puts_another_in_its_place_is_the_one_that_is_set(make):
    lines = ["import sys, types", "new = types.ModuleType('swapped')", "new.ON = False", "sys.modules['swapped'] = new"]
    make("swapped", "\n".join(lines))
    follow({"swapped": {"ON": True}})
    module: Any = importlib.import_module("swapped")
    assert isinstance(module, ModuleType)
    assert module.ON is True


def test_an_import_that_fails_fails_and_can_be_repeated(make, tmp_path):
    make("broken", "ON = False\nraise ValueError('not today')")
    follow({"broken": {"ON": True}, "missing": {"ON": True}})
    with pytest.raises(ValueError, match="not today"):
        importlib.import_module("broken")
    make("broken", "ON = False\n# this time it works")
    assert importlib.import_module("broken").ON is True  # type: ignore[attr-defined]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("missing")


def test_packages_and_their_modules_are_set(make):
    make("house.__init__", "ON = False\nfrom house import room")
    make("house.room", "ON = False\nfrom house import ON as copied")
    follow({"house": {"ON": True}, "house.room": {"ON": 7, "copied": True}})
    house: Any = importlib.import_module("house")
    assert (house.ON, house.room.ON, house.room.copied) == (True, 7, True)


def test_what_is_set_again_after_following_stays(make):
    make("shelf")
    follow({"shelf": {"ON": True}})
    shelf: Any = importlib.import_module("shelf")
    shelf.ON = "mine"
    assert importlib.import_module("shelf").ON == "mine"  # type: ignore[attr-defined]


def test_only_what_has_changed_since_is_sent_again():
    old: flags.Values = {"a": {"x": 1, "y": None}, "b": {"z": "t"}}
    assert flags.changes(old, {"a": {"x": 1, "y": None}, "b": {"z": "t"}}) == b""
    changed = flags.changes(old, {"a": {"x": True, "y": None}, "b": {}, "c": {"new": None}})
    assert pickle.loads(changed) == {"a": {"x": True}, "c": {"new": None}}
    assert type(pickle.loads(changed)["a"]["x"]) is bool


def test_later_changes_add_to_what_is_followed(make):
    make("shelf")
    first = follow({"shelf": {"ON": True}})
    shelf: Any = importlib.import_module("shelf")
    assert follow({"shelf": {"level": 9}}) is first
    assert (shelf.ON, shelf.level) == (True, 9)
    anew("shelf")
    again: Any = importlib.import_module("shelf")
    assert (again.ON, again.level) == (True, 9)


def test_nothing_to_follow_costs_nothing():
    before = list(sys.meta_path)
    flags.follow(pickle.dumps({}))
    assert sys.meta_path == before


def test_functions_of_the_script_in_other_modules_are_named(make, monkeypatch):
    make("shelf")
    shelf: Any = importlib.import_module("shelf")
    main = sys.modules["__main__"]
    assert "shelf.work" not in flags.replaced_by_main()
    exec("def patch(): pass\nclass Patch: pass", vars(main))
    monkeypatch.setattr(main.Patch, "__module__", "__main__")
    try:
        shelf.work, shelf.Client = main.patch, main.Patch
        assert [name for name in flags.replaced_by_main() if name.startswith("shelf")] == ["shelf.work", "shelf.Client"]
    finally:
        del main.patch, main.Patch
