"""Rules of the house that a machine can see: sizes, module state, what `import aloader` costs, sleeps, true docs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "aloader").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_LINES = 350

#: `global` statements that may be, as "path:name", each with its reason beside it.
GLOBALS_ALLOWED: frozenset[str] = frozenset()

#: `import aloader` takes less than this share of what `import torch` takes. The promise is a tenth of that; the rest is
#: for whoever keeps no bytecode, and compiles the package each time.
IMPORT_SHARE = 0.5

#: Files whose waiting is the thing itself: the fixture that waits for what a test leaves to go.
SLEEPS_ALLOWED = frozenset({"tests/conftest.py"})


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_files_stay_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{named(path)} has {lines} lines: which two things is it about?"


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_modules_keep_no_state(path: Path) -> None:
    found = {
        f"{named(path)}:{name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Global)
        for name in node.names
    }
    assert not found - GLOBALS_ALLOWED


def test_importing_aloader_costs_next_to_nothing_beyond_torch() -> None:
    """In processor time, against torch's own: neither a slow machine nor a busy one is our fault."""
    code = (
        "import sys, threading, time\n"
        "began = time.thread_time(); import torch; torchs, before = time.thread_time() - began, set(sys.modules)\n"
        "began = time.thread_time(); from aloader import DataLoader, datasets, storage\n"
        "storage.S3Store, datasets.ImageFolder; ours = time.thread_time() - began\n"
        "print(ours / torchs); assert threading.active_count() == 1\n"
        "late = {'aiobotocore', 'botocore', 'PIL', 'tqdm', 'accelerate', 'transformers', 'lightning'}\n"
        "early = late & (set(sys.modules) - before); assert not early, early"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < IMPORT_SHARE


def sleeps(tree: ast.AST, source: list[str], inside_dunder: bool = False) -> Iterator[int]:
    """Lines that sleep for a time. A dataset's `__getitem__` may: it stands for work there. Or say `# sleep: why`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and not inside_dunder:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if name == "sleep" and not zero and "# sleep: " not in source[node.lineno - 1]:
                yield node.lineno
        is_dunder = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("__")
        yield from sleeps(node, source, inside_dunder or is_dunder)


@pytest.mark.parametrize("path", TESTS, ids=named)
def test_tests_wait_for_events_and_never_sleep(path: Path) -> None:
    if named(path) in SLEEPS_ALLOWED:
        return
    text = path.read_text()
    found = [f"{named(path)}:{line}" for line in sleeps(ast.parse(text), text.splitlines())]
    assert not found, f"{found}: wait for an event; or say `# sleep: why` where the sleep stands for work"


def test_sleeps_are_found() -> None:
    source = (
        "import time, asyncio\ntime.sleep(1)\n"
        "async def test():\n    await asyncio.sleep(0)\n    await asyncio.sleep(x)\n"
        "class D:\n    def __getitem__(self, i):\n        time.sleep(9)\nsleep(3)  # sleep: what a stuck worker does\n"
    )
    assert list(sleeps(ast.parse(source), source.splitlines())) == [2, 5]


def test_commands_in_the_docs_exist() -> None:
    """Every `make x` that a page names is a target; every target of the Makefile's first lines is one too."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    spans = re.compile(r"```sh\n.*?```|`[^`\n]+`", flags=re.DOTALL)
    code = [span for page in pages for span in spans.findall(page.read_text())]
    named_there = {name for span in code for name in re.findall(r"\bmake ([a-z-]+)", span)}
    assert {"demo", "test"} <= named_there
    assert named_there <= targets
    assert set(re.findall(r"^#   make ([a-z-]+)", makefile, flags=re.MULTILINE)) == targets - {"help"}


def test_links_and_code_blocks_of_the_docs_are_sound() -> None:
    done = subprocess.run(
        [sys.executable, "docs/check.py", "--no-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
