"""The layers of the package hold: a lower one never imports a higher one, wherever in a file the import stands.

Only the source is read, nothing is imported: an import inside a function or under `TYPE_CHECKING` counts as any other.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "aloader"

#: Top to bottom. Neighbours in one layer do not import each other, except in the lowest.
LAYERS = (
    {"loader"},
    {"arguments", "controls", "runtime"},
    {"state"},
    {"settings"},
    {"pool", "worker"},
    {"device", "datasets"},
    {"channel", "storage"},
    {"engine", "sampling"},
    {"options", "errors", "stats", "ranks", "lazy"},
)

#: They look at everything, and nothing looks at them.
FREE = {"testing", "integrations", "cli", "checkup"}

#: The engine decides and does nothing else. What it may use of the standard library is short enough to be listed.
ENGINE_MAY_IMPORT = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math",
    "operator", "typing",
}  # fmt: skip

#: Sampling is arithmetic on indices (torch's generators included): nothing that waits, reads clocks or does I/O.
SAMPLING_MAY_NOT_IMPORT = {
    "aiofiles", "asyncio", "concurrent", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "queue",
    "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uvloop",
}  # fmt: skip


class Import(NamedTuple):
    path: Path
    line: int
    target: str  # absolute and dotted, with the name that is imported from it: `aloader.engine.events.Drawn`

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.target}"


def imports_of(path: Path, source: str) -> Iterator[Import]:
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            for alias in node.names:
                yield Import(path, node.lineno, ".".join((*above, *filter(None, [node.module]), alias.name)))


def part_of(path: Path) -> str:
    """The package or module of aloader that a file belongs to: `pool` for `aloader/pool/start.py`."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def layer_of(part: str) -> int:
    return next(number for number, parts in enumerate(reversed(LAYERS)) if part in parts)


def violation(imported: Import) -> str | None:
    """Why an import may not stand where it does, or None."""
    part = part_of(imported.path)
    if part in FREE or part in ("__init__", "__main__"):
        return None
    top, _, rest = imported.target.partition(".")
    if top != "aloader":
        if part == "engine" and top not in ENGINE_MAY_IMPORT:
            return "the engine only decides"
        if part == "sampling" and top in SAMPLING_MAY_NOT_IMPORT:
            return "sampling is pure"
        return None
    target = rest.partition(".")[0]
    if not any(target in parts for parts in LAYERS):
        return "nothing inside imports the public names, nor what is there for tests and integrations"
    if target == part:
        return None
    if layer_of(target) > layer_of(part):
        return f"{target} lies above {part}"
    if layer_of(target) == layer_of(part) > 0:
        return f"{target} and {part} are neighbours: they meet in a layer below"
    return None


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_layer_may(path: Path) -> None:
    part = part_of(path)
    known = set().union(*LAYERS, FREE, {"__init__", "__main__"})
    assert part in known, f"aloader/{part} has no layer yet: give it one in LAYERS, and in docs/design.md"
    wrong = [f"{found}: {why}" for found in imports_of(path, path.read_text()) if (why := violation(found))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["aloader", "aloader.storage", "aloader.datasets", "aloader.testing"])
def test_what_a_package_lists_type_checkers_see_and_programs_get(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    typed = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.name for node in ast.walk(typed[0]) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert not [name for name in module.__all__ if name.startswith("_")]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_the_package_imports_nothing_before_it_is_asked_for() -> None:
    code = "import sys, aloader, aloader.storage; assert not {'torch', 'numpy', 'asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("where", "source"),
    [
        ("engine/dispatcher.py", "import asyncio"),
        ("engine/dispatcher.py", "def late():\n    from time import monotonic"),
        ("engine/dispatcher.py", "from aloader.channel import arena"),
        ("sampling/order.py", "import os.path"),
        ("channel/link.py", "from ..pool.start import Process"),
        ("channel/link.py", "from .. import loader"),
        ("channel/link.py", "import aloader.storage.local"),
        ("pool/start.py", "if TYPE_CHECKING:\n    from ..worker import serve"),
        ("worker/serve.py", "import aloader.pool"),
        ("errors.py", "from aloader.stats import x\nfrom .engine.events import Drawn"),
        ("storage/s3/store.py", "from aloader import StorageError"),
        ("datasets/images.py", "from ..testing import fakes"),
    ],
)
def test_a_planted_violation_is_seen(where: str, source: str) -> None:
    assert any(violation(found) for found in imports_of(PACKAGE / where, source))


@pytest.mark.parametrize(
    ("where", "source"),
    [
        ("engine/dispatcher.py", "from collections import deque\nfrom .events import Drawn\nfrom .. import options"),
        ("sampling/order.py", "import torch"),
        ("pool/start.py", "import asyncio, socket\nfrom ..channel.link import Link\nfrom ..engine import events"),
        ("errors.py", "from .options import KIB"),
        ("testing/fakes.py", "from aloader import DataLoader\nfrom ..pool import start"),
        ("loader.py", "from .pool.start import Process\nfrom .worker import serve"),
    ],
)
def test_what_the_layers_allow_is_let_through(where: str, source: str) -> None:
    assert not [why for found in imports_of(PACKAGE / where, source) if (why := violation(found))]
